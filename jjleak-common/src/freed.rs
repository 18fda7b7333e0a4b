//! Blocks that are freed while a snapshot is being taken.
//!
//! Reading the table of live blocks takes milliseconds, in which the program runs on. To get the blocks of one instant,
//! the reader leaves out those allocated after it, and the kernel side notes those freed after it: whoever takes a block
//! of before the instant out of the table notes it *first*, so that a reader who no longer finds the block in the table
//! finds the note.

use crate::live::Record;

/// Notes that fit one snapshot: 16,384 frees within the 20 ms that reading a million blocks takes are 800,000 a second, more
/// than a processor or two get done under probes. 640 KiB.
pub const MAX_NOTES: usize = 1 << 14;

/// The notes of the snapshot that is being taken.
#[repr(C)]
pub struct FreedLog {
    /// The instant of the snapshot, in nanoseconds of `CLOCK_MONOTONIC`; 0 while none is being taken. It is set a little
    /// ahead, so that all processors know of it when it comes.
    pub instant_ns: u64,
    /// Notes begun so far; may run past the end.
    pub begun: u64,
    /// Whether a block has ever gone into the spill: when 0, nobody has to read it. Outlasts snapshots.
    pub has_spilled: u64,
    /// The notes.
    pub notes: [Note; MAX_NOTES],
}

/// One block that was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Note {
    /// The block's [`crate::live::Key`].
    pub key: u64,
    /// What was known of it.
    pub record: Record,
    /// [`Self::seal_of`] the fields and the instant: a note that is half written, or left from a snapshot before, does
    /// not carry it.
    pub seal: u64,
}

impl Note {
    /// Mixes all fields and the instant of the snapshot.
    #[inline(always)]
    #[must_use]
    pub const fn seal_of(key: u64, record: &Record, instant_ns: u64) -> u64 {
        let mixed = key ^ record.size.rotate_left(17) ^ record.time_ns.rotate_left(34);
        (mixed ^ instant_ns.rotate_left(51)).wrapping_add(record.stack as u64) | 1
    }
}

const _: () = assert!(size_of::<Note>() == 40 && align_of::<Note>() == 8);
const _: () = assert!(size_of::<FreedLog>() == 24 + 40 * MAX_NOTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_belongs_to_its_fields_and_its_snapshot() {
        let record = Record { size: 64, time_ns: 5_000, stack: 7, reserved: 0 };
        let seal = Note::seal_of(0x1_7fff, &record, 9_000);
        assert_ne!(seal, 0);
        assert_ne!(seal, Note::seal_of(0x1_7fff, &record, 9_100));
        assert_ne!(seal, Note::seal_of(0x1_7fff, &Record { size: 65, ..record }, 9_000));
        assert_ne!(seal, Note::seal_of(0x1_7fff, &Record { stack: 8, ..record }, 9_000));
    }
}
