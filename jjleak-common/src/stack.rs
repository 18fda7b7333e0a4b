//! Deduplicated stacks.
//!
//! A 64-bit hash over the image and the frames identifies a stack; if threads are distinguished, the hash includes
//! the allocating thread. Linear probing from the hash finds the stack's row in the stack table. The frames go to the
//! user side once, through a ring buffer. When an image is gone, the user side empties its rows; before the table fills
//! up, it also evicts stacks without live blocks. A stack whose probe sequence passes an emptied row may then get a
//! second row, which the user side adds to the first.
//!
//! The table begins with few rows, and doubles when a burst of new stacks comes or many have live blocks. A doubling moves
//! no row: a stack that allocates again gets a second row at its new place.
//!
//! A row that is evicted first gets the hash [`EVICTED`], which no walk finds. The user side then waits for the programs
//! that run at that time. From then on, nobody counts for the row: walks, kept walks and pending calls compare the
//! hash each time. If the stack has no live blocks now, its sums are final: the user side moves them, and empties the
//! row. Otherwise it puts the hash back.

mod frame;

use crate::named::named_variants;
use crate::process::{COMM_BYTES, MAX_PROCESSES, ProcessSlot};
use crate::unwind::MAX_FOUND;

pub use frame::{InterpretedFrame, StackFrame};

/// Maximum number of frames kept of a stack. Stacks of pandas' imports have more than 256. Twice as many do not fit: the kernel
/// limits a per-CPU value, which has the buffers of a walk, to 32 KiB.
pub const MAX_FRAMES: usize = 512;

/// Default capacity in stacks with live blocks, in 2^19 rows of 32 bytes.
pub const DEFAULT_STACKS: u32 = 160_000;

/// log2 of the number of rows that are used at first, for 40,000 stacks with live blocks. The user side reads all used rows at
/// each snapshot.
const FIRST_ROWS_LOG2: u32 = 17;

/// Maximum capacity in stacks.
pub const MAX_STACKS: u32 = 1 << 24;

/// log2 of the maximum number of rows: 1 GiB.
const MAX_ROWS_LOG2: u32 = 25;

/// log2 of the number of rows for this capacity: at most one row in three is used by stacks with live blocks. Another third
/// takes new stacks until the user side has evicted others. See [`MAX_PROBES`].
#[must_use]
pub const fn rows_log2(stacks: u32) -> u32 {
    let stacks = if stacks < 64 { 64 } else { stacks };
    let rows_log2 = (3 * stacks).next_power_of_two().ilog2();
    if rows_log2 > MAX_ROWS_LOG2 { MAX_ROWS_LOG2 } else { rows_log2 }
}

/// log2 of the number of rows used at first of a table with this capacity.
#[must_use]
pub const fn first_rows_log2(stacks: u32) -> u32 {
    let rows_log2 = rows_log2(stacks);
    if rows_log2 < FIRST_ROWS_LOG2 { rows_log2 } else { FIRST_ROWS_LOG2 }
}

/// Maximum number of rows of one process: half of them, so that a process that makes new stacks without end leaves
/// room for others.
#[inline(always)]
#[must_use]
pub const fn max_rows_of_process(rows_log2: u32) -> u64 {
    1 << (rows_log2 - 1)
}

/// Maximum number of bytes of one process's frames that wait in a ring buffer of this size; the rest is for other
/// processes.
#[inline(always)]
#[must_use]
pub const fn max_frame_bytes_of_process(ring_bytes: u32) -> u64 {
    ring_bytes as u64 / 4 * 3
}

/// Number of rows that a process claims between two wake-ups of the user side: a sixteenth of the table.
#[inline(always)]
#[must_use]
pub const fn rows_between_wakeups(rows_log2: u32) -> u64 {
    1 << (rows_log2 - 4)
}

/// Hash of a row whose stack is being evicted. No stack has it.
pub const EVICTED: u64 = 1;

/// Number of rows probed before the table counts as full. At a load of three quarters, one new stack in 10^8 finds no row.
pub const MAX_PROBES: u32 = 64;

/// Row where to look for a stack with this hash in a table of this size, for each probe below [`MAX_PROBES`]. Quadratic probing
/// in steps of the golden ratio: the probes are all over the table, because parts of it can be much fuller than others. Once it
/// has grown, its first rows are.
#[inline(always)]
#[must_use]
pub const fn probed_row(hash: u64, rows_log2: u32, probe: u32) -> u32 {
    // The high bits of the hash are best mixed.
    let first = (hash >> 32) as u32;
    let steps = probe * (probe + 1) / 2;
    FIRST_ROW + (first.wrapping_add(steps.wrapping_mul(0x9e37_79b9)) >> (32 - rows_log2))
}

/// Number of rows at the start of the table that stand for no stack: one per process, for allocations whose stack
/// could not be kept.
pub const FIRST_ROW: u32 = MAX_PROCESSES;

/// Row for the allocations of a process whose stack could not be kept.
#[inline(always)]
#[must_use]
pub const fn lost_row(slot: ProcessSlot) -> u32 {
    slot.0 as u32
}

/// Default size of the ring buffer for frames, in bytes: 20,000 new stacks of 23 frames between two reads by the user
/// side.
pub const DEFAULT_FRAME_BYTES: u32 = 4 << 20;

/// Maximum size of the ring buffer for frames, in bytes.
pub const MAX_FRAME_BYTES: u32 = 1 << 30;

macro_rules! statuses {
    ($($(#[doc = $doc:literal])+ $variant:ident = $value:literal, $name:literal;)+) => {
        /// Outcome of a stack walk. It stays with the stack up to the report.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum StackStatus { $($(#[doc = $doc])+ $variant = $value,)+ }

        named_variants! { StackStatus: $($(#[doc = $doc])+ $variant = $name;)+ }

        impl StackStatus {
            /// The status with this number; `None` for a number no status has.
            #[must_use]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number { $($value => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

statuses! {
    /// The stack was not kept: a table was full.
    Lost = 0, "lost";
    /// Every frame up to the root was found by a proven rule.
    Complete = 1, "complete";
    /// Frame pointers were followed to the end of their chain; frames of code compiled without them may be missing.
    FramePointers = 2, "frame_pointers";
    /// The chain of frame pointers broke off: code compiled without them is on the stack.
    BrokenChain = 3, "broken_chain";
    /// A part of the stack could not be read, because it was not in memory.
    Fault = 4, "fault";
    /// The stack has more frames than are kept; the outermost are missing.
    TooDeep = 5, "too_deep";
    /// A return address is in code that jjleak did not know when the stack was taken.
    NoMapping = 6, "no_mapping";
    /// A frame is in code without call frame information.
    NoRow = 7, "no_row";
    /// A frame has call frame information that jjleak cannot follow.
    Unsupported = 8, "unsupported";
    /// A frame's call frame information leads to no possible caller.
    BadFrame = 9, "bad_frame";
    /// The table of the process's mappings was being updated when the stack was taken.
    Changed = 10, "changed";
    /// The remaining frames are in the Java heap, where a virtual thread's frames are kept until they run again.
    InHeap = 11, "in_heap";
    /// Another tool took the stack, and its profile does not say how it ended.
    Foreign = 12, "foreign";
    /// A return address is in code generated at run time that jjleak did not know when the stack was taken.
    GeneratedCode = 13, "generated_code";
}

/// A stack, and what was allocated from it since the start.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct StackRow {
    /// Identity of the stack; 0 in a free row, [`EVICTED`] while the stack is being evicted. Claimed by compare-and-swap.
    pub hash: u64,
    /// Image in which the stack was captured.
    pub image: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
    /// Allocations since the start; when sampling, an estimate with [`crate::sampling::WEIGHT_BITS`] fractional bits.
    pub allocated_objects: u64,
    /// Bytes requested by those allocations; when sampling, an estimate.
    pub allocated_bytes: u64,
}

const _: () = assert!(size_of::<StackRow>() == 32 && align_of::<StackRow>() == 8);

/// Live blocks of a stack, summed up by the kernel side when only sums are asked for. Objects are in the unit of
/// [`StackRow::allocated_objects`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct StackTotals {
    /// Live blocks.
    pub objects: u64,
    /// Bytes requested by them.
    pub bytes: u64,
}

const _: () = assert!(size_of::<StackTotals>() == 16 && align_of::<StackTotals>() == 8);

/// Share of a process in the stack table and in the buffer of frames. All fields only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StackUsage {
    /// Rows that the process has claimed.
    pub claimed: u64,
    /// Rows of the process that the user side has emptied.
    pub emptied: u64,
    /// Bytes of frames that were sent.
    pub sent_bytes: u64,
    /// Bytes of frames that the user side has received.
    pub received_bytes: u64,
}

const _: () = assert!(size_of::<StackUsage>() == 32 && align_of::<StackUsage>() == 8);

/// Record of a new stack for the user side, truncated after its last frame.
#[repr(C)]
pub struct StackRecord {
    /// Hash of the stack, as in its row.
    pub hash: u64,
    /// Index of its row.
    pub row: u32,
    /// Image in which the stack was captured.
    pub image: u32,
    /// Number of frames.
    pub frame_count: u32,
    /// A [`StackStatus`].
    pub status: u32,
    /// [Code identities](crate::unwind::code_identity) of the mappings that the walk found itself; frames refer to
    /// them from [`layer::FOUND`](crate::unwind::layer::FOUND) on.
    pub found: [u64; MAX_FOUND],
    /// [`thread_identity`] of the thread; 0 if threads are not distinguished, or if it is unknown.
    pub thread: u64,
    /// Number of the thread; 0 if threads are not distinguished.
    pub thread_number: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
    /// Name of the thread when the stack was first seen (`/proc/PID/task/TID/comm`), up to a zero byte.
    pub thread_name: [u8; COMM_BYTES],
    /// [`StackFrame`]s, leaf first, starting at the probe site: addresses, or [`InterpretedFrame`]s.
    pub frames: [u64; MAX_FRAMES],
}

impl StackRecord {
    /// Size of the record without frames, in bytes.
    pub const HEADER_BYTES: usize = 24 + 8 * MAX_FOUND + 16 + COMM_BYTES;
}

const _: () = assert!(size_of::<StackRecord>() == StackRecord::HEADER_BYTES + 8 * MAX_FRAMES);

/// Identity of a thread, never 0. A thread's number can be reused once the thread has ended, so the identity includes
/// the time when the thread was first seen.
#[inline(always)]
#[must_use]
pub const fn thread_identity(number: u32, seen_ns: u64) -> u64 {
    StackHash::new(number as u64).push(seen_ns).finish(0)
}

/// An incremental hash over frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct StackHash(pub u64);

impl StackHash {
    /// Hash of an empty stack in `image`.
    #[inline(always)]
    #[must_use]
    pub const fn new(image: u64) -> Self {
        Self(image.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Adds a frame: one multiplication, and a fold of the product's high bits, which are mixed best.
    #[inline(always)]
    #[must_use]
    pub const fn push(self, frame: u64) -> Self {
        let mixed = (self.0 ^ frame).wrapping_mul(0xff51_afd7_ed55_8ccd);
        Self(mixed ^ mixed >> 29)
    }

    /// Finishes the hash with the status mixed in; neither 0, which marks a free row, nor [`EVICTED`].
    #[inline(always)]
    #[must_use]
    pub const fn finish(self, status: u8) -> u64 {
        let hash = self.push(status as u64).0;
        if hash <= EVICTED { hash + 2 } else { hash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_keep_their_numbers() {
        for status in StackStatus::ALL {
            assert_eq!(StackStatus::from_number(*status as u8), Some(*status));
        }
        assert_eq!(StackStatus::from_number(200), None);
    }

    #[test]
    fn a_number_that_another_thread_has_again_is_another_identity() {
        let first = thread_identity(4711, 1_000_000);
        assert_ne!(first, thread_identity(4711, 1_000_001));
        assert_ne!(first, thread_identity(4712, 1_000_000));
    }

    /// A table that is doubled at half its load has the old stacks in its first half.
    #[test]
    fn each_new_stack_finds_a_row_in_a_table_that_grows() {
        let (mut rows_log2, most_log2) = (12, 18);
        let mut rows = vec![0; (FIRST_ROW + (1 << most_log2)) as usize];
        for stack in 0..1 << (most_log2 - 1) {
            rows_log2 += u32::from(stack >= 1 << (rows_log2 - 1));
            let hash = StackHash::new(1).push(0x55d0_1234_5678).push(0x55d0_0000_0000 + 16 * stack).finish(1);
            let row = (0..MAX_PROBES)
                .map(|probe| probed_row(hash, rows_log2, probe) as usize)
                .find(|row| rows[*row] == 0);
            rows[row.unwrap_or_else(|| panic!("stack {stack} found no row in a table of 2^{rows_log2}"))] =
                hash;
        }
    }

    #[test]
    fn there_are_rows_for_the_stacks_asked_for() {
        assert_eq!(rows_log2(DEFAULT_STACKS), 19);
        assert_eq!((rows_log2(0), rows_log2(1_000), rows_log2(MAX_STACKS)), (8, 12, 25));
        assert_eq!([0, 1_000, DEFAULT_STACKS, MAX_STACKS].map(first_rows_log2), [8, 12, 17, 17]);
    }

    #[test]
    fn a_process_has_rows_for_all_stacks_asked_for_and_leaves_some() {
        for stacks in [64, 100, 1_000, DEFAULT_STACKS, MAX_STACKS] {
            let rows_log2 = rows_log2(stacks);
            let of_process = max_rows_of_process(rows_log2);
            assert!(of_process >= u64::from(stacks) && of_process <= 1 << (rows_log2 - 1), "{stacks}");
        }
    }

    #[test]
    fn no_stack_has_the_hash_of_a_free_or_an_evicted_row() {
        // The inverse of the last step of `push` leads to any hash.
        let before = |hash: u64| {
            let mut mixed = hash;
            for _ in 0..3 {
                mixed = hash ^ mixed >> 29;
            }
            let mut inverse = 1u64;
            for _ in 0..6 {
                inverse =
                    inverse.wrapping_mul(2u64.wrapping_sub(0xff51_afd7_ed55_8ccd_u64.wrapping_mul(inverse)));
            }
            StackHash(mixed.wrapping_mul(inverse) ^ 1)
        };
        assert_eq!(before(77).finish(1), 77);
        assert_eq!((before(0).finish(1), before(EVICTED).finish(1)), (2, 3));
    }

    #[test]
    fn stacks_that_differ_in_order_image_or_status_differ_in_hash() {
        let hash = |image, frames: &[u64], status| {
            frames.iter().fold(StackHash::new(image), |hash, frame| hash.push(*frame)).finish(status)
        };
        let reference = hash(1, &[0x5000, 0x6000], 1);
        assert_ne!(reference, hash(1, &[0x6000, 0x5000], 1));
        assert_ne!(reference, hash(2, &[0x5000, 0x6000], 1));
        assert_ne!(reference, hash(1, &[0x5000, 0x6000], 2));
        assert_ne!(reference, hash(1, &[0x5000], 1));
    }
}
