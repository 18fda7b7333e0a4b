//! The stack walk.
//!
//! The first return address is read below the canonical frame address of the probe site, so that the caller of the allocation
//! function is never lost. From there, the row of each frame determines its CFA. Every step is checked: the stack pointer
//! increases, a frame pointer stays on the thread's stack, and a return address is in mapped code. A failed check ends the walk
//! with a status.

use core::{
    ffi::c_void,
    ptr::{addr_of, addr_of_mut, write_volatile},
};

use aya_ebpf::helpers::generated::bpf_loop;
use jjleak_common::{
    process::{FreedCode, ImageId, ProcessRow, ProcessSlot},
    stack::{MAX_FRAMES, StackFrame, StackHash, StackStatus},
    unwind::{CodeFile, Hint, MAX_FOUND, MappingTable, Row, RowKind, SavedFp, layer, step::is_possible_cfa},
};

use super::{
    Claimed, Walk, Walked, code, generated, go, heap,
    known::{Known, read_freed_code, scope_of_code},
    leave, ordinary,
    replay::{self, Start},
    rows::{self, Tables},
    scratch::Scratch,
    trampoline, unfinished,
    window::{self, word},
};
use crate::{
    maps::HINTS,
    memory::opaque,
    registers::{Hit, Registers},
    threads,
};

const CONTINUE: u64 = 0;
const STOP: u64 = 1;

/// Context of the loop's callback: the kernel requires it on the BPF stack.
struct Loop {
    scratch: *mut Scratch,
    mappings: *const MappingTable,
}

/// Result of a step: continue with the caller's frame, or end.
pub(super) type Step = Result<(), StackStatus>;

/// Walks the stack at the entry of the call `hit` into `scratch`.
#[inline(always)]
pub(super) fn from_call(scratch: Claimed, image: ImageId, process: *const ProcessRow, hit: &Hit) -> Walked {
    let cfa = hit.cfa();
    let site = hit.instruction_pointer();
    let walk = scratch.walk();
    walk.thread = threads::current(image.slot());
    read_freed_code(walk, image, process);
    // The walk begins with the saved frame pointer if there is one, or else with the return address.
    let words = hit.words_to_begin_with();
    let first_at = cfa.wrapping_sub(words << 3);
    let expected = replay::extent(scratch, site, cfa);
    let known = Known::of(process, image);
    let is_open = known.is_some() && window::open(scratch, first_at, expected, words);
    let Some(known) = known.filter(|_| is_open) else {
        walk.return_address = 0;
        begin(scratch, image, cfa, hit.frame_pointer(), 1);
        push(scratch, StackFrame::new(hit.site(), layer::OF_SITE));
        walk.status = if cfa & 7 == 0 { StackStatus::Fault } else { StackStatus::BadFrame } as u64;
        return Walked::New;
    };
    let first = window::first(first_at);
    let return_address = window::at(scratch, first + words - 1);
    walk.return_address = return_address;
    // Loaded at a constant offset of the context, which the verifier requires: LLVM would select one of two addresses and load
    // from that.
    let in_register = opaque(hit.frame_pointer());
    let is_saved = hit.has_saved_frame_pointer();
    let frame_pointer = if is_saved { window::at(scratch, first) } else { in_register };
    let scope = scope_of_code(walk, known.scope);
    let start = Start { scope, site, cfa, frame_pointer, first, is_saved, return_address };
    if let Some(stack) = replay::find(scratch, &start) {
        return Walked::Again(stack);
    }
    begin(scratch, image, cfa, frame_pointer, 1);
    push(scratch, StackFrame::new(hit.site(), layer::OF_SITE));
    walk.instruction_pointer = return_address;
    replay::begin(scratch, &start);
    go(scratch, image, &known);
    Walked::New
}

/// Walks the stack of the current thread's system call into `scratch`. The instruction pointer is after the syscall instruction,
/// which is no call, so that the first frame's row is that of the instruction pointer itself.
#[inline(always)]
pub(super) fn from_syscall(scratch: Claimed, image: ImageId, process: *const ProcessRow, at: &Registers) {
    let walk = scratch.walk();
    walk.thread = threads::current(image.slot());
    read_freed_code(walk, image, process);
    window::close(walk);
    begin(scratch, image, at.stack_pointer, at.frame_pointer, 0);
    walk.instruction_pointer = at.instruction_pointer;
    if let Some(known) = Known::of(process, image) {
        go(scratch, image, &known);
    }
}

/// Initializes a walk, except its thread and its window.
#[inline(always)]
fn begin(scratch: Claimed, image: ImageId, stack_pointer: u64, frame_pointer: u64, after_call: u64) {
    let walk = scratch.walk();
    walk.stack_pointer = stack_pointer;
    walk.frame_pointer = frame_pointer;
    walk.frame_pointer_at = replay::NOTED;
    walk.after_call = after_call;
    walk.unproven = 0;
    walk.stack_begin = 0;
    walk.stack_end = 0;
    walk.return_instance = 0;
    walk.by_frame_pointer = 0;
    walk.base_saved = 0;
    walk.scheduler = 0;
    walk.hash = StackHash::new(image.0 as u64);
    if threads::are_told_apart() {
        walk.hash = walk.hash.push(walk.thread);
    }
    walk.frame_count = 0;
    forget_found(walk);
    walk.is_java = 0;
    walk.unfinished.begin();
    walk.heap.begin();
    walk.status = StackStatus::TooDeep as u64;
    // Only `replay::begin` enables recording.
    replay::spoil(walk);
}

/// Clears mappings found by an earlier walk.
#[inline(always)]
fn forget_found(walk: &mut Walk) {
    if walk.found_count == 0 {
        return;
    }
    walk.found_count = 0;
    let mut place = 0;
    while place < MAX_FOUND {
        // Volatile: LLVM would call a function that writes byte by byte.
        // SAFETY: fields of a map value.
        unsafe {
            write_volatile(addr_of_mut!(walk.found[place].end), 0);
            write_volatile(addr_of_mut!(walk.found[place].begin), 0);
        }
        place += 1;
    }
}

/// Maximum number of queries to the kernel per walk. Results are repeated for later walks until the user side knows the mapping.
const MAX_LOOKUPS: u32 = MAX_FOUND as u32;

/// Walks from frame to frame.
#[inline(always)]
fn go(scratch: Claimed, image: ImageId, known: &Known) {
    let walk = scratch.walk();
    walk.image = image;
    walk.scope = known.scope;
    let mut context = Loop { scratch: scratch.into_ptr(), mappings: known.mappings };
    let steps = MAX_FRAMES as u32 + MAX_LOOKUPS + heap::MAX_STEPS;
    // SAFETY: the callback has the helper's signature, and the context outlives the call.
    unsafe { bpf_loop(steps, step as *mut c_void, (&raw mut context).cast(), 0) };
    if walk.heap.is_entered() {
        walk.status = heap::end(scratch) as u64;
    }
    // Unmapped memory cannot have been part of the stack.
    if walk.status == StackStatus::Fault as u64 && !code::is_mapped(walk.window_at) {
        walk.status = StackStatus::BadFrame as u64;
    }
    if !known.is_unchanged() {
        walk.status = StackStatus::Changed as u64;
    }
    // The code that made a system call and the caller of an allocation function are frames even if their code is unknown, because
    // they have just run. Any other address may be garbage.
    let is_unknown =
        walk.status == StackStatus::NoMapping as u64 || walk.status == StackStatus::GeneratedCode as u64;
    if is_unknown && walk.frame_count <= 1 {
        let last = (walk.found_count as u16).wrapping_sub(1) & (MAX_FOUND as u16 - 1);
        let layer = if walk.found_count == 0 { layer::UNKNOWN } else { layer::FOUND + last };
        push(scratch, StackFrame::new(walk.instruction_pointer, layer));
    }
    unfinished::prepare(scratch, image);
}

/// Asks the user side to scan a process after an event. If the buffer is full, it has enough hints to scan all processes.
#[inline(always)]
pub(crate) fn hint(slot: ProcessSlot) {
    let file = CodeFile { inode: 0, changed_s: 0, changed_ns: 0, device: 0 };
    let hint = Hint { slot: slot.0 as u32, image: 0, begin: 0, end: 0, file_offset: 0, file };
    let _ = HINTS.output::<Hint>(&hint, 0);
}

#[inline(never)]
extern "C" fn step(_index: u64, context: *mut Loop) -> i64 {
    // SAFETY: the helper passes the context given by `go`.
    let context = unsafe { &*context };
    // SAFETY: claimed by `go`, which has not released it.
    if ordinary::advance_some(unsafe { Claimed::again(context.scratch) }) {
        return CONTINUE as i64;
    }
    // The verifier requires one of two values, and does not know what the other function returns.
    (opaque(walk_step(context.scratch, context.mappings)) & 1) as i64
}

/// A step of the walk. Exported, so that the verifier follows it once and by itself. As a part of the loop it would be followed for
/// each of the many states in which a walk can arrive at it: from 6.19.4 on, Linux compares states within a `bpf_loop` by all that
/// they hold, and before 7.1 that takes more than a million instructions (<https://github.com/kxxt/tracexec/issues/164>).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_step(scratch: *mut Scratch, mappings: *const MappingTable) -> u64 {
    let Some(cache) = rows::ROW_CACHE.get_ptr_mut(0) else { return STOP };
    if scratch.is_null() || mappings.is_null() {
        return STOP;
    }
    // SAFETY: not null, so they are what `go` gives to the loop.
    let (scratch, tables) = unsafe {
        let scratch = Claimed::again(scratch);
        let walk = scratch.walk();
        (scratch, Tables { cache, mappings, scope: walk.scope, found: addr_of!(walk.found) })
    };
    match advance(scratch, &tables) {
        Ok(()) => CONTINUE,
        Err(status) => {
            scratch.walk().status = status as u64;
            STOP
        }
    }
}

/// Adds the current frame and continues with its caller.
#[inline(always)]
fn advance(scratch: Claimed, tables: &Tables) -> Step {
    let walk = scratch.walk();
    if walk.heap.is_on_the_way() {
        return heap::go_on(scratch);
    }
    let row = match rows::find(tables, walk.instruction_pointer.wrapping_sub(walk.after_call)) {
        Some(row) => row,
        None if walk.heap.is_entered() => return Err(StackStatus::InHeap),
        None => {
            replay::spoil(walk);
            trampoline::resolve(walk);
            match rows::find(tables, walk.instruction_pointer.wrapping_sub(walk.after_call)) {
                Some(row) => row,
                None => return look_up(scratch),
            }
        }
    };
    if walk.frame_count >= MAX_FRAMES as u64 {
        if walk.heap.is_entered() {
            walk.heap.cut();
            return Ok(());
        }
        return Err(StackStatus::TooDeep);
    }
    let row = if row.kind() == RowKind::Generated as u64 {
        walk.is_java = 1;
        // Reads from the JVM's memory are not recorded for replay. They describe code, which stays the same until it is freed.
        if walk.freed_code == FreedCode::NOT_COUNTED.0 {
            replay::spoil(walk);
        }
        let address = walk.instruction_pointer.wrapping_sub(walk.after_call);
        let row = generated::row(scratch, row, tables.scope, address)?;
        if row.kind() == RowKind::Continuation as u64 {
            replay::spoil(walk);
            return heap::enter(scratch, StackFrame::new(walk.instruction_pointer, row.address() as u16));
        }
        // Code of another compilation at the same address is another frame.
        walk.hash = walk.hash.push((row.address() >> 16) as u64);
        row
    } else {
        row
    };
    let kind = row.kind();
    if walk.heap.is_entered() {
        return heap::leave_frame(scratch, row);
    }
    if kind == RowKind::Interpreter as u64 {
        return leave::interpreted_frame(scratch);
    }
    let frame = StackFrame::new(walk.instruction_pointer, row.address() as u16);
    push(scratch, frame.found_by_frame_pointer(walk.by_frame_pointer));
    let by_frame_pointer = row.is_by_frame_pointer();
    if kind == RowKind::End as u64 {
        return Err(finished(walk));
    }
    if kind == RowKind::Signal as u64 {
        return leave::signal_frame(scratch);
    }
    if kind == RowKind::Go as u64 {
        return go::switch_stack(scratch, row);
    }
    if by_frame_pointer || kind == RowKind::Fp as u64 || kind == RowKind::Deref as u64 {
        replay::note_frame_pointer(scratch);
    }
    if by_frame_pointer && walk.frame_pointer == 0 {
        // At the root of a stack, the frame pointer is zero (System V ABI, x86-64), as for threads of musl.
        walk.unproven = 1;
        return Err(finished(walk));
    }
    let cfa = canonical_frame_address(scratch, row)?;
    let is_possible = is_possible_cfa(cfa, walk.stack_pointer);
    if !is_possible || by_frame_pointer && !code::is_on_stack(scratch, cfa) {
        return Err(row.status_of_bad_frame());
    }
    let saved_at = match row.saved() {
        saved if by_frame_pointer || saved == SavedFp::AtFp as u64 => Some(walk.frame_pointer),
        saved if saved == SavedFp::AtCfa as u64 => Some(cfa.wrapping_add(row.fp_offset_bytes())),
        _ => None,
    };
    if row.saved() == SavedFp::AtFp as u64 {
        replay::note_frame_pointer(scratch);
    }
    if let Some(saved_at) = saved_at {
        let place = window::place(scratch, saved_at)?;
        walk.frame_pointer = window::at(scratch, place);
        walk.frame_pointer_at = replay::in_buffer(place);
    }
    let return_address = word(scratch, cfa - 8)?;
    walk.stack_pointer = cfa;
    walk.instruction_pointer = return_address;
    walk.after_call = 1;
    walk.by_frame_pointer = by_frame_pointer as u64;
    walk.base_saved = row.base_saved_bytes();
    if return_address != 0 {
        return Ok(());
    }
    // A function that could not return has no caller: fibres of Ruby and libco begin so, and debuggers end there. Where call
    // frame information does not say where the return address is, the zero may be any word of memory.
    walk.unproven |= by_frame_pointer as u64;
    Err(finished(walk))
}

/// Queries the kernel for the mapping at the instruction pointer; the next step tries again.
#[inline(always)]
fn look_up(scratch: Claimed) -> Step {
    let walk = scratch.walk();
    let address = walk.instruction_pointer.wrapping_sub(walk.after_call);
    if walk.found_count < MAX_LOOKUPS as u64 {
        code::look_up(scratch, walk.image, address)
    } else {
        walk.unfinished.awaits_rows = 1;
        Err(StackStatus::NoMapping)
    }
}

/// CFA of the current frame.
#[inline(always)]
fn canonical_frame_address(scratch: Claimed, row: Row) -> Result<u64, StackStatus> {
    let walk = scratch.walk();
    let kind = row.kind();
    let offset = row.offset_bytes();
    if kind == RowKind::Sp as u64 {
        Ok(walk.stack_pointer.wrapping_add(offset))
    } else if kind == RowKind::Fp as u64 {
        Ok(walk.frame_pointer.wrapping_add(offset))
    } else if row.is_by_frame_pointer() {
        walk.unproven = 1;
        Ok(walk.frame_pointer.wrapping_add(16))
    } else if kind == RowKind::Plt as u64 {
        Ok(row.plt_cfa(walk.instruction_pointer, walk.stack_pointer))
    } else if kind == RowKind::Deref as u64 {
        let at = walk.frame_pointer.wrapping_add(row.fp_offset_bytes());
        Ok(word(scratch, at)?.wrapping_add(offset))
    } else if kind == RowKind::FarSp as u64 {
        Ok(walk.stack_pointer.wrapping_add(row.far_offset_bytes()))
    } else if kind == RowKind::Base as u64 && walk.base_saved != 0 {
        // The stack pointer is the CFA of the called frame.
        Ok(word(scratch, walk.stack_pointer.wrapping_sub(walk.base_saved))?.wrapping_add(offset))
    } else {
        Err(StackStatus::Unsupported)
    }
}

/// Status of a walk that has reached the root.
#[inline(always)]
pub(super) fn finished(walk: &Walk) -> StackStatus {
    if walk.unproven == 0 { StackStatus::Complete } else { StackStatus::FramePointers }
}

/// Adds a frame.
#[inline(always)]
pub(super) fn push(scratch: Claimed, frame: StackFrame) {
    // SAFETY: the mask keeps the index in bounds.
    unsafe {
        let walk = scratch.walk();
        let index = (walk.frame_count & (MAX_FRAMES as u64 - 1)) as usize;
        *addr_of_mut!((*scratch.record()).frames).cast::<u64>().add(index) = frame.0;
        walk.frame_count += 1;
        walk.hash = walk.hash.push(frame.0);
    }
}
