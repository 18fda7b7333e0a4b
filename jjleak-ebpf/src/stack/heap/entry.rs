//! HotSpot's record of a continuation on the stack (`ContinuationEntry` in the JDK).

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use jjleak_common::{jvm::Continuations, stack::StackStatus};

use super::{
    super::{Claimed, generated::address_at},
    task,
};

/// Maximum number of words between the last frame on the stack and the entry: arguments passed on the stack, and alignment.
pub(super) const MAX_PASSED: u64 = 16;

/// Maximum size of a thread's stack in bytes: the JVM's default for carriers of virtual threads.
const MAX_STACK_BYTES: u64 = 8 << 20;

/// Upper limit for the number of monitors held by a carrier when it mounts a virtual thread, and of reasons that prevent
/// unmounting.
const MAX_HELD: u64 = 1 << 12;

/// Checks for the entry at the current distance above the last frame.
#[inline(always)]
pub(super) fn search(scratch: Claimed) -> Result<(), StackStatus> {
    let walk = scratch.walk();
    if walk.heap.passed >= MAX_PASSED {
        return Err(StackStatus::InHeap);
    }
    walk.heap.entry = walk.stack_pointer.wrapping_add(walk.heap.passed << 3);
    if is_entry(scratch) {
        walk.heap.task = task::FIRST;
    }
    walk.heap.passed += 1;
    Ok(())
}

/// Returns true if the current place can be a `ContinuationEntry`. A reference to a `Continuation` alone is no proof: the first
/// word of an entry is never written and has arbitrary content. An entry is aligned like frames of compiled code, and lies
/// directly above the arguments of such a frame (`ContinuationEntry::bottom_sender_sp`).
#[inline(always)]
fn is_entry(scratch: Claimed) -> bool {
    let walk = scratch.walk();
    let entry = walk.heap.entry;
    // SAFETY: the buffer is larger, and ours while the scratch is claimed.
    let (parent, chunk, flags, passed, fast_path, held) = unsafe {
        let header = scratch.header().cast::<c_void>();
        if bpf_probe_read_user(header, Continuations::ENTRY_BYTES, entry as *const c_void) != 0 {
            return false;
        }
        let field = |at: u64| address_at(scratch, (at >> 2) as u32);
        let two = field(Continuations::FLAGS_AT);
        (
            field(Continuations::PARENT_AT),
            field(Continuations::CHUNK_AT),
            two & u32::MAX as u64,
            two >> 32,
            field(Continuations::FAST_PATH_AT),
            field(Continuations::HELD_AT),
        )
    };
    // Both are addresses on this stack, or null: an outer entry, and the outermost slow frame before this one.
    let is_parent = (parent == 0) | (parent.wrapping_sub(entry) < MAX_STACK_BYTES);
    let around = fast_path.wrapping_sub(entry).wrapping_add(MAX_STACK_BYTES);
    let is_fast_path = (fast_path == 0) | (around < 2 * MAX_STACK_BYTES);
    let is_held = (held & (u32::MAX as u64) < MAX_HELD) & (held >> 32 < MAX_HELD);
    let is_right_above = (passed == 0) | (walk.heap.passed.wrapping_sub(passed) <= 1);
    let is_plain = (entry & 15 == 0) & (chunk == 0) & (flags <= 1);
    // Without branches, because the verifier follows each one.
    is_plain & is_parent & is_right_above & is_fast_path & is_held
}
