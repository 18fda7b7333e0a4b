//! Stacks that the kernel side could not finish, because they lead into code whose rows are not loaded yet.
//!
//! The user side finishes them from a copy of the thread's stack once it has the rows.

use crate::unwind::Row;
use crate::unwind::step::{WORD, interpreter};

/// State of a walk before its next step, with the copied stack.
///
/// A record of the ring buffer is this header, followed by [`HashedWords`] for each page, and by the pages; their number is one of
/// the [sizes](COPY_PAGES).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Unfinished {
    /// Hash of the unfinished stack, as in its row.
    pub hash: u64,
    /// Index of its row.
    pub row: u32,
    /// Image in which the stack was captured.
    pub image: u32,
    /// Time of the copy, in nanoseconds of `CLOCK_MONOTONIC`.
    pub taken_ns: u64,
    /// Address of the code whose rows are missing.
    pub instruction_pointer: u64,
    /// Stack pointer of its frame.
    pub stack_pointer: u64,
    /// Frame pointer of its frame.
    pub frame_pointer: u64,
    /// Distance in bytes below the stack pointer where the called frame has saved the base register; 0 if unknown.
    pub base_saved: u64,
    /// Mapping that contains the stack.
    pub stack_begin: u64,
    /// First address after it.
    pub stack_end: u64,
    /// Address of the copy: the start of a page.
    pub copied_at: u64,
    /// The copied pages: a bit for each. Pages that the thread has not written to yet are in no memory.
    pub copied_pages: u64,
    /// 1 if the instruction pointer is a return address, 0 if execution was interrupted there.
    pub after_call: u8,
    /// 1 once a frame was unwound by its frame pointer, which is no proof.
    pub unproven: u8,
    /// 1 if the frame was found by a frame pointer.
    pub by_frame_pointer: u8,
    /// 1 if the frame pointer is a part of the stack's identity.
    pub frame_pointer_hashed: u8,
    /// Explicit padding, always 0.
    pub reserved: [u8; 4],
}

const _: () = assert!(size_of::<Unfinished>() == 96 && align_of::<Unfinished>() == 8);

/// Size of a page of memory.
pub const PAGE_BYTES: u64 = 4096;

/// Sizes of copies in pages. The kernel reserves room of constant sizes only. A stack of 256 frames of a Python program has some
/// 40 KiB.
pub const COPY_PAGES: [usize; 6] = [2, 3, 4, 6, 9, 16];

/// Number of bytes below the stack pointer that the next step can read: those with a saved base register.
pub const BYTES_BELOW: u64 = (Row::MAX_BASE_WORDS + 1) << 3;

/// Size of the ring buffer in bytes: 125 copies of 16 KiB before the user side takes them, which it does at once. The kernel maps it
/// twice, all of it resident. With 16 MiB, no more stacks of perl and python were finished, also beside two busy threads.
pub const RING_BYTES: u32 = 2 << 20;

/// A process's unfinished stacks may use this share of the stack table, as a shift: an eighth.
pub const SHARE_SHIFT: u32 = 3;

/// Words of a page that are a part of the stack's identity: a bit for each.
pub type HashedWords = [u64; (PAGE_BYTES / WORD) as usize / u64::BITS as usize];

/// Returns true if an address is of a frame on a copied stack: as a frame pointer, which points to the word below a return address; as
/// the CFA of a frame with a realigned stack, above a return address; or as the base register of glibc's trampolines, two words below
/// one. The copy has so many `words` from the address `copied_at` on; `is_code` returns true if the word at a place in it is an address
/// of code.
#[inline(always)]
#[must_use]
pub fn points_to_frame(address: u64, copied_at: u64, words: u64, is_code: impl Fn(u64) -> bool) -> bool {
    let offset = address.wrapping_sub(copied_at);
    let to = offset / WORD;
    let is_in_copy = offset & (WORD - 1) == 0 && to >= 1 && to < words;
    is_in_copy && (is_code(to + 1) || is_code(to - 1) || is_code(to + 2))
}

/// Returns true if a word at this place of a copied stack belongs to the identity of the stack although it is no address of code: if
/// it can lead to an outer frame. It is a saved frame pointer, or, with `is_below_signal`, the stack pointer that a signal has saved
/// below the instruction pointer. A chain of frame pointers ends with zero, below a return address.
#[inline(always)]
#[must_use]
pub fn can_lead_to_frame(
    word: u64,
    place: u64,
    copied_at: u64,
    words: u64,
    is_below_signal: bool,
    is_code: impl Fn(u64) -> bool,
) -> bool {
    if word == 0 {
        return is_code(place + 1);
    }
    let offset = word.wrapping_sub(copied_at);
    let is_above = offset & (WORD - 1) == 0 && offset / WORD > place && offset / WORD < words;
    is_above && (is_below_signal || points_to_frame(word, copied_at, words, is_code))
}

/// Returns true if the word at this place of a copied stack is one of an interpreted Java frame that the walk reads, because the word
/// above the frame pointer is a return address into generated code, for which `is_generated` returns true.
#[inline(always)]
#[must_use]
pub fn is_of_interpreted_frame(place: u64, is_generated: impl Fn(u64) -> bool) -> bool {
    let returns_above = |below_frame_pointer: u64| is_generated(place + below_frame_pointer / WORD + 1);
    returns_above(interpreter::SENDER_STACK_POINTER)
        || returns_above(interpreter::METHOD)
        || returns_above(interpreter::BYTECODE)
}

/// Returns true if a word can be the segment registers that a signal has saved: those of 64-bit user code (`__USER_CS` and `__USER_DS`
/// in arch/x86/include/asm/segment.h; kernels before 4.5 save no stack segment).
#[inline(always)]
#[must_use]
pub const fn can_be_segments(word: u64) -> bool {
    const CODE: u64 = 0x33;
    const STACK: u64 = 0x2b << 48;
    word == CODE || word == CODE | STACK
}

/// Distance in words of the saved segment registers from the stack pointer below the instruction pointer and the flags.
pub const SEGMENTS_ABOVE: u64 = 3;

/// Resources that an image has used for its unfinished stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UnfinishedUse {
    /// The image.
    pub image: u32,
    /// Number of rows.
    pub rows: u32,
    /// Time of its first unfinished stack, in nanoseconds of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// Work to identify its stacks: words examined, and [`QUERY_WORK`] for each query of a mapping.
    pub work: u64,
}

const _: () = assert!(size_of::<UnfinishedUse>() == 24 && align_of::<UnfinishedUse>() == 8);

/// Work of a query of a mapping, in words: some 200 ns.
pub const QUERY_WORK: u64 = 16;

/// Work that an image may use at once: some 2 s. A program that loads a hundred libraries uses a hundredth of this.
const BURST_WORK: u64 = 1 << 27;

/// Work that an image may use later on: 1 in 2^10 ns, some 1.5 % of a CPU.
const WORK_SHIFT: u64 = 10;

impl UnfinishedUse {
    /// Returns true if the image may use more at this time.
    #[inline(always)]
    #[must_use]
    pub const fn has_budget(&self, now_ns: u64, max_rows: u64) -> bool {
        let earned = now_ns.wrapping_sub(self.since_ns) >> WORK_SHIFT;
        (self.rows as u64) < max_rows && self.work < BURST_WORK + earned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7fff_0000_0000;
    const WORDS: u64 = 1024;

    /// Returns true if a word at place 10 belongs to the identity; the words at these places are addresses of code.
    fn leads(word: u64, code: &[u64]) -> bool {
        can_lead_to_frame(word, 10, AT, WORDS, false, |place| code.contains(&place))
    }

    #[test]
    fn saved_frame_pointers_lead_to_a_frame() {
        let frame = AT + 20 * WORD;
        assert!(leads(frame, &[21]), "it points to the word below a return address");
        assert!(can_lead_to_frame(frame, 10, AT, WORDS, true, |_| false), "a signal has saved it");
        assert!(leads(frame, &[19]), "it is a CFA");
        assert!(leads(frame, &[22]), "it is the base register of a trampoline");
        assert!(leads(0, &[11]), "it ends the chain");
    }

    #[test]
    fn words_of_an_interpreted_frame_are_those_below_a_return_into_generated_code() {
        let generated = |place| place == 20;
        let places: Vec<u64> = (0..30).filter(|place| is_of_interpreted_frame(*place, generated)).collect();
        // The frame pointer is at place 19.
        assert_eq!(places, [11, 16, 18]);
    }

    #[test]
    fn other_words_do_not() {
        let frame = AT + 20 * WORD;
        assert!(!leads(frame, &[]) && !leads(frame, &[11]), "it points into an array");
        assert!(!leads(frame + 4, &[21]), "it is not aligned");
        assert!(!leads(AT + 9 * WORD, &[10]), "it points to inner frames");
        assert!(!leads(AT + WORDS * WORD, &[WORDS + 1]), "it points behind the copy");
        assert!(!leads(0, &[12]) && !leads(77, &[11]));
        assert!(
            !points_to_frame(AT, AT, WORDS, |place| place == u64::MAX),
            "nothing is known below the copy"
        );
    }

    #[test]
    fn an_image_may_use_a_burst_and_then_a_share_of_the_time() {
        let second = 1_000_000_000;
        let used = |work| UnfinishedUse { image: 1, rows: 5, since_ns: second, work };
        assert!(used(BURST_WORK - 1).has_budget(second, 6) && !used(BURST_WORK).has_budget(second, 6));
        assert!(used(BURST_WORK + 900_000).has_budget(2 * second, 6));
        assert!(!used(BURST_WORK + 1_000_000).has_budget(2 * second, 6));
        assert!(!used(0).has_budget(second, 5), "it has used its rows");
    }
}
