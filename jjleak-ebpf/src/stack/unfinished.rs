//! Stacks that lead into code whose rows are not loaded yet: copied for the user side, which finishes them.
//!
//! Until then, such a stack is identified by the frames walked, the registers, and those words of the stack that can lead to other
//! frames, with their places: addresses of code, and saved frame pointers. The user side reads no other words, so stacks with one
//! identity end alike; other words may change from call to call. The number of mappings of code that the process has made is a part of
//! the identity, because another file can take the place of a file.

mod budget;
mod copy;

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_find_vma, bpf_get_current_task_btf, bpf_loop};
use jjleak_common::{
    process::ImageId,
    stack::StackStatus,
    unfinished::{
        BYTES_BELOW, COPY_PAGES, HashedWords, PAGE_BYTES, QUERY_WORK, SEGMENTS_ABOVE, can_be_segments,
        can_lead_to_frame, is_of_interpreted_frame, points_to_frame,
    },
    unwind::step::{LAST_ADDRESS, WORD},
};

use budget::{has_budget, use_budget};
pub(super) use copy::send;

use super::{
    Claimed, Walk,
    code::{self, NO_MAPPING, PAGE_SHIFT, VM_EXEC},
    rows::changes,
    window::{self, CHUNK_BYTES, word},
};
use crate::{constants::kernel_offset, maps::PROCESSES, memory::read_kernel};

/// Lowest address of a mapping (`vm.mmap_min_addr`).
const FIRST_ADDRESS: u64 = 1 << 16;
/// Number of pages for which the result of a query is kept. A stack refers to some dozens besides those of the heap.
const PAGES: usize = 64;
/// Bits of an entry for the number of the walk, by which the entries of other walks are void.
const WALK_BITS: u64 = 27;
/// Bits of an address. The bits above take a word's place in the stack.
const ADDRESS_BITS: u64 = 48;
/// Hashed in place of a frame pointer that leads nowhere; no aligned address.
const NO_FRAME: u64 = 1;
/// Maximum number of queries of mappings in a walk; beyond, words count as addresses of code.
const MAX_QUERIES: u64 = 1024;

const CONTINUE: i64 = 0;
/// Maximum number of copied pages.
const MAX_PAGES: u64 = COPY_PAGES[5] as u64;
/// log2 of the number of words of a page.
const PAGE_WORDS_SHIFT: u64 = PAGE_SHIFT - WORD.ilog2() as u64;
const CHUNK_WORDS: u64 = CHUNK_BYTES / WORD;
const PLACE_WORDS: usize = size_of::<HashedWords>() / size_of::<u64>() * COPY_PAGES[5];

const _: () = assert!(PLACE_WORDS.is_power_of_two() && PAGE_BYTES % CHUNK_BYTES == 0);

/// Entries: page, number of the walk, and the [kind](memory) of the page.
pub(super) type Pages = [u64; PAGES];

/// Kinds of memory, as bits.
mod memory {
    /// Any other.
    pub(super) const DATA: u64 = 0;
    /// Code.
    pub(super) const CODE: u64 = 1;
    /// Code in no file, in addition to [`CODE`].
    pub(super) const GENERATED: u64 = 2;
    /// All bits.
    pub(super) const MASK: u64 = 3;
    pub(super) const BITS: u64 = 2;
}

/// Kind of a page that may hold anything. Words that are no addresses of code then count for the identity of a stack: one
/// stack may take several rows, but none ends early.
const ANY_MEMORY: u64 = memory::CODE | memory::GENERATED;

/// Words of a copied stack: a bit for each, in order.
pub(super) type Places = [u64; PLACE_WORDS];

/// State of an unfinished walk.
#[repr(C)]
pub(super) struct State {
    /// 1 if the walk ended in code whose rows may come.
    pub(super) awaits_rows: u64,
    /// 1 if the image has used its budget.
    is_refused: u64,
    /// Part of the stack to copy; no pages for a stack that stays as it is.
    copied_at: u64,
    pages: u64,
    /// Copied pages: a bit for each.
    copied: u64,
    /// Address of a page that is in no memory.
    absent: u64,
    /// Place of a word that can be the segment registers saved for a signal.
    segments: u64,
    /// 1 if the frame pointer was hashed.
    frame_pointer_hashed: u64,
    /// Number of walks prepared with this buffer.
    walks: u64,
    /// Number of queries of mappings.
    queries: u64,
    /// Kind of the mapping found by the last query.
    mapping_kind: u64,
    /// Addresses of the last mapping without code, most likely the heap.
    data_begin: u64,
    data_end: u64,
}

impl State {
    #[inline(always)]
    pub(super) fn begin(&mut self) {
        self.awaits_rows = 0;
        self.is_refused = 0;
        self.pages = 0;
    }
}

/// Prepares a walk for the user side, if that can finish it: determines the part of the stack to copy, and includes its words in
/// the hash.
#[inline(always)]
pub(super) fn prepare(scratch: Claimed, image: ImageId) {
    let walk = scratch.walk();
    let is_unknown =
        walk.status == StackStatus::NoMapping as u64 || walk.status == StackStatus::GeneratedCode as u64;
    if is_unknown && walk.unfinished.awaits_rows != 0 {
        identify(scratch, image.0);
    }
}

#[inline(never)]
fn identify(scratch: Claimed, image: u32) -> u64 {
    let walk = scratch.walk();
    // The user side does not know the memory of Go's runtime, and the memory of a JVM may have changed when it reads that.
    if walk.is_java != 0 || walk.scheduler != 0 || walk.heap.is_entered() {
        return 0;
    }
    if !has_budget(ImageId(image)) {
        walk.unfinished.is_refused = 1;
        return 0;
    }
    let stack_pointer = walk.stack_pointer;
    if !code::is_on_stack(scratch, stack_pointer) {
        return 0;
    }
    let walk = scratch.walk();
    let size = walk.stack_end.wrapping_sub(walk.stack_begin);
    if stack_pointer & (WORD - 1) != 0 || stack_pointer.wrapping_sub(walk.stack_begin) >= size {
        return 0;
    }
    let copied_at = stack_pointer.wrapping_sub(BYTES_BELOW) & !(PAGE_BYTES - 1);
    let pages = walk.stack_end.wrapping_sub(copied_at) >> PAGE_SHIFT;
    let pages = if pages > MAX_PAGES { MAX_PAGES } else { pages };
    walk.unfinished.copied_at = copied_at;
    walk.unfinished.pages = pages;
    // No page.
    walk.unfinished.absent = 1;
    walk.unfinished.walks = (walk.unfinished.walks + 1) & ((1 << WALK_BITS) - 1);
    walk.unfinished.segments = 0;
    walk.unfinished.queries = 0;
    walk.unfinished.data_begin = 0;
    walk.unfinished.data_end = 0;
    let state = walk.after_call | walk.unproven << 1 | walk.by_frame_pointer << 2 | walk.base_saved << 3;
    let registers = walk.hash.push(walk.instruction_pointer).push(stack_pointer);
    walk.hash = registers.push(state).push(walk.stack_end).push(mappings_made(ImageId(image)));
    window::close(walk);
    let below = stack_pointer.wrapping_sub(walk.base_saved).wrapping_sub(copied_at) / WORD;
    let words = (pages << PAGE_WORDS_SHIFT).wrapping_sub(below);
    let mut context = scratch;
    // SAFETY: the callback has the helper's signature, and the context outlives the call.
    unsafe { bpf_loop(words as u32, add_word as *mut c_void, (&raw mut context).cast(), 0) };
    add_frame_pointer(scratch);
    use_budget(ImageId(image), words + scratch.walk().unfinished.queries * QUERY_WORK);
    0
}

/// Adds the frame pointer to the hash if it can lead to another frame: it may hold any other value.
#[inline(always)]
fn add_frame_pointer(scratch: Claimed) {
    let walk = scratch.walk();
    let words = walk.unfinished.pages << PAGE_WORDS_SHIFT;
    let (address, copied_at) = (walk.frame_pointer, walk.unfinished.copied_at);
    let is_frame =
        address == 0 || points_to_frame(address, copied_at, words, |place| is_code_at(scratch, place, words));
    walk.unfinished.frame_pointer_hashed = is_frame as u64;
    walk.hash = walk.hash.push(if is_frame { address } else { NO_FRAME });
}

/// Number of mappings of code that the process has made: until another one, an address is that of the same code.
#[inline(always)]
fn mappings_made(image: ImageId) -> u64 {
    let Some(process) = PROCESSES.get_ptr(image.slot().0 as u32) else { return 0 };
    // SAFETY: points into a map value.
    unsafe { changes(process).made }
}

/// Adds a word of the stack to the hash if it can lead to another frame. Goes from the end of the copy down: whether a word is a saved
/// frame pointer depends on the words above.
#[inline(never)]
extern "C" fn add_word(index: u64, context: *mut Claimed) -> i64 {
    // SAFETY: the helper passes the context given by `identify`.
    let scratch = unsafe { *context };
    let state = &scratch.walk().unfinished;
    let (copied_at, words) = (state.copied_at, state.pages << PAGE_WORDS_SHIFT);
    let place = words.wrapping_sub(index + 1);
    let at = copied_at.wrapping_add(place * WORD);
    let of_place = place as usize / u64::BITS as usize & (PLACE_WORDS - 1);
    // SAFETY: the mask keeps the index in bounds.
    let (code, generated, hashed) = unsafe {
        (
            scratch.code_words().add(of_place),
            scratch.generated_words().add(of_place),
            scratch.hashed_words().add(of_place),
        )
    };
    let bit = 1 << (place & (u64::BITS as u64 - 1));
    if bit == 1 << (u64::BITS - 1) {
        // SAFETY: all point into a map value that is ours while claimed.
        unsafe { (*code, *generated, *hashed) = (0, 0, 0) };
    }
    let page = at & !(PAGE_BYTES - 1);
    if page == state.absent {
        return CONTINUE;
    }
    // The last word of a block: the window moves to the block.
    let index = place & (CHUNK_WORDS - 1);
    if index == CHUNK_WORDS - 1 && word(scratch, at & !(CHUNK_BYTES - 1)).is_err() {
        scratch.walk().unfinished.absent = page;
        return CONTINUE;
    }
    let word = window::at(scratch, index);
    let kind = kind_of_memory(scratch, word);
    let state = &mut scratch.walk().unfinished;
    if can_be_segments(word) {
        state.segments = place;
    }
    let is_below_signal = place + SEGMENTS_ABOVE == state.segments;
    let is_code_at = |place| is_code_at(scratch, place, words);
    let is_generated_at = |place| is_at(scratch.generated_words(), place, words);
    let is_code = kind & memory::CODE != 0;
    // SAFETY: all point into a map value that is ours while claimed.
    unsafe {
        if is_code {
            *code |= bit;
        }
        if kind & memory::GENERATED != 0 {
            *generated |= bit;
        }
        if is_code
            || can_lead_to_frame(word, place, copied_at, words, is_below_signal, is_code_at)
            || is_of_interpreted_frame(place, is_generated_at)
        {
            *hashed |= bit;
            let walk = scratch.walk();
            walk.hash = walk.hash.push(word | place << ADDRESS_BITS);
        }
    }
    CONTINUE
}

/// Returns true if the word at a place is an address of code; words below the current one do not count yet.
#[inline(always)]
fn is_code_at(scratch: Claimed, place: u64, words: u64) -> bool {
    is_at(scratch.code_words(), place, words)
}

/// Returns true if the bit of a place is set. `bits` are [`Places`] of the scratch.
#[inline(always)]
fn is_at(bits: *const u64, place: u64, words: u64) -> bool {
    let index = place as usize / u64::BITS as usize & (PLACE_WORDS - 1);
    // SAFETY: the mask keeps the index in bounds.
    let bits = unsafe { *bits.add(index) };
    place < words && bits >> (place & (u64::BITS as u64 - 1)) & 1 != 0
}

/// Beginning and size of the stack. If the memory map was locked, the part to copy is all that is known of it.
#[inline(always)]
fn stack(walk: &Walk) -> (u64, u64) {
    if walk.stack_end == u64::MAX {
        (walk.unfinished.copied_at, walk.unfinished.pages << PAGE_SHIFT)
    } else {
        (walk.stack_begin, walk.stack_end.wrapping_sub(walk.stack_begin))
    }
}

/// [Kind](memory) of the memory at an address; that of the stack counts as data.
#[inline(always)]
fn kind_of_memory(scratch: Claimed, address: u64) -> u64 {
    let walk = scratch.walk();
    let (data_begin, data_end) = (walk.unfinished.data_begin, walk.unfinished.data_end);
    let (stack_begin, stack_bytes) = stack(walk);
    if address < FIRST_ADDRESS
        || address > LAST_ADDRESS
        || address.wrapping_sub(stack_begin) < stack_bytes
        || address.wrapping_sub(data_begin) < data_end.wrapping_sub(data_begin)
    {
        return memory::DATA;
    }
    let page = address >> PAGE_SHIFT;
    let key = page << (WALK_BITS + memory::BITS) | walk.unfinished.walks << memory::BITS;
    let place = (page ^ page >> 6) as usize & (PAGES - 1);
    // SAFETY: the mask keeps the index in bounds.
    let entry = unsafe { scratch.pages().add(place) };
    // SAFETY: as above.
    let known = unsafe { *entry };
    if known & !memory::MASK == key {
        return known & memory::MASK;
    }
    if walk.unfinished.queries >= MAX_QUERIES {
        return ANY_MEMORY;
    }
    walk.unfinished.queries += 1;
    walk.unfinished.mapping_kind = memory::DATA;
    let mut context: *mut Walk = walk;
    // SAFETY: the callback has the helper's signature, and its context outlives the call.
    let status = unsafe {
        let task = bpf_get_current_task_btf();
        bpf_find_vma(task, address, note_mapping as *mut c_void, (&raw mut context).cast(), 0)
    };
    if status != 0 && status != NO_MAPPING {
        // The memory map is locked.
        return ANY_MEMORY;
    }
    let kind = scratch.walk().unfinished.mapping_kind;
    // SAFETY: as above.
    unsafe { *entry = key | kind & memory::MASK };
    kind
}

#[inline(never)]
extern "C" fn note_mapping(_task: *const c_void, vma: *const c_void, context: *mut *mut Walk) -> i64 {
    // SAFETY: the helper passes the context given by `kind_of_memory`.
    let walk = unsafe { &mut **context };
    let vma = vma as u64;
    let flags = read_kernel(vma + kernel_offset!(vma_flags)).unwrap_or(0);
    if flags & VM_EXEC != 0 {
        let is_generated = read_kernel::<u64>(vma + kernel_offset!(vma_file)) == Some(0);
        let generated = if is_generated { memory::GENERATED } else { memory::DATA };
        walk.unfinished.mapping_kind = memory::CODE | generated;
    } else if let (Some(begin), Some(end)) =
        (read_kernel(vma + kernel_offset!(vma_start)), read_kernel(vma + kernel_offset!(vma_end)))
    {
        walk.unfinished.data_begin = begin;
        walk.unfinished.data_end = end;
    }
    0
}
