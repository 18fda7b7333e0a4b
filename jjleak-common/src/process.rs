//! The table of profiled processes.

use crate::unwind::CodeChanges;

/// Index of a process in the process table, carried in every attach cookie.
///
/// The probes of a process fire only for tasks that share its memory, so the slot identifies the address
/// space: threads, and the child of a `vfork`, are accounted where their heap is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ProcessSlot(pub u16);

/// Number of bits of a slot.
const SLOT_BITS: u32 = 10;

/// Maximum number of processes profiled at a time per load of the BPF object. It is bounded by what a person
/// can read, not by memory.
pub const MAX_PROCESSES: u32 = 1 << SLOT_BITS;

impl ProcessSlot {
    /// In an attach cookie: the probe belongs to the file, and each event to the process that hits it.
    pub const OF_WHOEVER_HITS: Self = Self(u16::MAX);
}

/// Identifies a program image of a process: the process's slot, and a generation that changes with each new
/// process in the slot and at every `exec`, so that blocks of an old image are never attributed to a new one.
/// 0 means none. 17 bits are used: a [`crate::live::Key`] has no room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ImageId(pub u32);

impl ImageId {
    const GENERATION_BITS: u32 = 7;
    const GENERATION_MASK: u32 = (1 << Self::GENERATION_BITS) - 1;
    /// Number of bits of an image.
    pub const BITS: u32 = SLOT_BITS + Self::GENERATION_BITS;

    /// The first image in a slot.
    #[inline(always)]
    #[must_use]
    pub const fn first(slot: ProcessSlot) -> Self {
        Self((slot.0 as u32 & (MAX_PROCESSES - 1)) << Self::GENERATION_BITS | 1)
    }

    /// The next image in the same slot. Generations repeat after 127 of them: by then, readers of the tables
    /// should have cleared what the first had left there ([`ProcessRow::swept`]). Skips 0, which would disarm
    /// the process.
    #[inline(always)]
    #[must_use]
    pub const fn next(self) -> Self {
        if self.generation() == Self::GENERATION_MASK {
            Self(self.0 & !Self::GENERATION_MASK | 1)
        } else {
            Self(self.0 + 1)
        }
    }

    /// The slot of its process.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self) -> ProcessSlot {
        ProcessSlot((self.0 >> Self::GENERATION_BITS & (MAX_PROCESSES - 1)) as u16)
    }

    /// Number of the image within its slot; never 0.
    #[inline(always)]
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.0 & Self::GENERATION_MASK
    }
}

/// Address of the kernel's return-probe trampoline in an image: the start of a page (kernel/events/uprobes.c,
/// `uprobe_get_trampoline_vaddr`), tagged with the image in the bits below. The kernel maps it (`[uprobes]`)
/// at the first hit of a probe, so it is unknown at first. The tag keeps an address found just before an
/// `exec` from being used for the new image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Trampoline(pub u64);

impl Trampoline {
    const TAG: u64 = 4095;

    /// The trampoline of `image` at `address`.
    #[must_use]
    pub const fn new(image: ImageId, address: u64) -> Self {
        Self(address & !Self::TAG | image.generation() as u64)
    }

    /// Returns true if a return slot that holds `word` belongs to a call that is running in `image`. While the
    /// image's trampoline is unknown, every page-aligned word matches.
    #[inline(always)]
    #[must_use]
    pub const fn is_in(self, word: u64, image: ImageId) -> bool {
        if self.0 & Self::TAG == image.generation() as u64 && self.0 > Self::TAG {
            word == self.0 & !Self::TAG
        } else {
            word != 0 && word & Self::TAG == 0
        }
    }
}

/// A process, shared by both sides and read by every probe. The row is initialized by the user side for a
/// process that runs already, and by the kernel side for one that a followed process starts. After that, the
/// user side writes what it learns of the image, and the kernel side what happens to the process.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ProcessRow {
    /// The running image; 0 while the probes are not armed. Setting it arms all probe sites of the process at
    /// once: no free is missed because it was attached after its malloc.
    pub image: u64,
    /// The last armed image; 0 before the first.
    pub last_image: u64,
    /// A [`ProcessState`].
    pub state: u32,
    /// PID of the process, as the user side knows it.
    pub pid: u32,
    /// Flags, see [`flag`].
    pub flags: u32,
    /// PID of the process whose memory was copied by `fork`; 0 after `exec`, or if unknown.
    pub parent: u32,
    /// Start of the image, in nanoseconds of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// The oldest image of the process that may have entries in the tables: those of older ones have been
    /// cleared.
    pub swept: u64,
    /// NUL-terminated name of the thread that ran `exec` or `fork`, written by the kernel side. Some
    /// processes end before the user side can ask for theirs.
    pub comm: [u8; COMM_BYTES],
    /// A [`Trampoline`]; 0 while unknown.
    pub trampoline: u64,
    /// Index of the process's current [`crate::unwind::MappingTable`].
    pub mappings: u64,
    /// The image of those mappings.
    pub mappings_image: u64,
    /// Changes of the code since.
    pub code: CodeChanges,
    /// A [`FreedCode`]; 0 if freed code is not counted.
    pub freed_code: u64,
    /// The image that `allocator_text` describes; differs from `image` while that is unknown.
    pub text_image: u64,
    /// Mappings already reported to the user side: their [`code_identity`](crate::unwind::code_identity),
    /// mixed with the image's generation.
    pub reported: [u64; MAX_REPORTED],
    /// Address ranges of the allocators' code, and of the dynamic loader's; unused entries are empty. Calls that nest in
    /// a pending one come from there.
    pub allocator_text: [TextRange; MAX_ALLOCATORS],
}

/// Counter of the pieces of code that a JVM has freed, with the image of the JVM in its higher half.
///
/// While it stays the same, an address has the same code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct FreedCode(pub u64);

impl FreedCode {
    /// Freed code is not counted.
    pub const NOT_COUNTED: Self = Self(0);

    /// The state when counting begins.
    #[must_use]
    pub const fn begun(image: ImageId) -> Self {
        Self((image.0 as u64) << 32)
    }

    /// The state if it is that of this image, and otherwise [`Self::NOT_COUNTED`].
    #[inline(always)]
    #[must_use]
    pub const fn of(self, image: ImageId) -> Self {
        if self.0 >> 32 == image.0 as u64 { self } else { Self::NOT_COUNTED }
    }

    /// Returns true if freed code is counted.
    #[inline(always)]
    #[must_use]
    pub const fn is_counted(self) -> bool {
        self.0 != 0
    }
}

/// Number of mappings per process that are not reported again; programs have some ten libraries.
pub const MAX_REPORTED: usize = 16;

/// Bytes of a thread's name (`TASK_COMM_LEN` in include/linux/sched.h).
pub const COMM_BYTES: usize = 16;

/// Bits of [`ProcessRow::flags`].
pub mod flag {
    /// The image's memory is a copy of another process's (`fork`): it frees blocks that were never allocated
    /// in it.
    pub const FORKED: u32 = 1;
    /// Another process shares the memory of this one (`clone` with `CLONE_VM`), or has done so, and may outlive it.
    pub const SHARED: u32 = 2;
}

/// State of a row of the process table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ProcessState {
    /// No process; the slot is free.
    Free = 0,
    /// A running process.
    Running = 1,
    /// A process that has ended, with its accounting still open.
    Ended = 2,
    /// A running process that the user side is about to count. It is counted already if it runs another program first.
    Attaching = 3,
}

impl ProcessState {
    /// The state with this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Free),
            1 => Some(Self::Running),
            2 => Some(Self::Ended),
            3 => Some(Self::Attaching),
            _ => None,
        }
    }
}

/// Maximum number of allocators per process whose code is recognized: a C library's, a preloaded one's, and
/// two linked under names of their own.
pub const MAX_ALLOCATORS: usize = 4;

/// Address range of code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TextRange {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

impl TextRange {
    /// Returns true if `address` is in the range.
    #[inline(always)]
    #[must_use]
    pub const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

const _: () = assert!(
    size_of::<ProcessRow>() == 120 + COMM_BYTES + 8 * MAX_REPORTED + 16 * MAX_ALLOCATORS
        && align_of::<ProcessRow>() == 8
);

// SAFETY: integers only, no padding (asserted above), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for ProcessRow {}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x7fff_f7ff_a000;

    #[test]
    fn a_known_trampoline_is_the_only_one() {
        let trampoline = Trampoline::new(ImageId(3), ADDRESS);
        assert!(trampoline.is_in(ADDRESS, ImageId(3)));
        assert!(!trampoline.is_in(ADDRESS + 4096, ImageId(3)));
        assert!(!trampoline.is_in(ADDRESS + 3, ImageId(3)));
    }

    #[test]
    fn an_unknown_trampoline_can_be_at_the_start_of_any_page() {
        for unknown in [Trampoline(0), Trampoline::new(ImageId(2), ADDRESS)] {
            assert!(unknown.is_in(ADDRESS + 4096, ImageId(3)));
            assert!(!unknown.is_in(ADDRESS + 8, ImageId(3)));
            assert!(!unknown.is_in(0, ImageId(3)));
        }
    }

    #[test]
    fn freed_code_is_counted_for_one_image() {
        let [image, next] = [ImageId(7), ImageId(7).next()];
        let begun = FreedCode::begun(image);
        let later = FreedCode(begun.0 + 3);
        assert!(begun.is_counted() && !FreedCode::NOT_COUNTED.is_counted());
        assert_eq!((begun.of(image), later.of(image)), (begun, later));
        assert_eq!(
            (later.of(next), FreedCode(3).of(image)),
            (FreedCode::NOT_COUNTED, FreedCode::NOT_COUNTED)
        );
    }

    #[test]
    fn images_follow_each_other_in_their_slot_and_none_is_number_0() {
        for slot in [0, 7, 1023].map(ProcessSlot) {
            let mut image = ImageId::first(slot);
            for _ in 0..300 {
                assert_eq!(image.slot(), slot);
                assert_ne!(image.generation(), 0);
                assert!(image.0 < 1 << ImageId::BITS);
                assert_ne!(image.next(), image);
                image = image.next();
            }
        }
    }
}
