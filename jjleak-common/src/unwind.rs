//! Unwind tables: how to get from a frame to its caller, for each instruction.
//!
//! The user side compiles a module's call frame information (`.eh_frame`) into [`Row`]s, sorted by address. Rows of all
//! modules lie one after the other in one array; an index with one entry per [`PAGE_BYTES`] of text tells where to
//! search. A process's [`Mapping`]s lead from an address to its module's part of that index.

/// A frame's rule, valid from its address up to the next row's.
///
/// | bits | field |
/// |---|---|
/// | 0..32 | address, relative to the start of the module's text |
/// | 32..36 | [`RowKind`] |
/// | 36..50 | offset of the CFA in words, unsigned; for [`RowKind::Plt`] the byte threshold |
/// | 50..52 | [`SavedFp`] |
/// | 52..64 | offset of the saved frame pointer in words, signed; for [`RowKind::Deref`] that of the pointer to the CFA |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Row(pub u64);

/// How a row finds the canonical frame address (CFA): the stack pointer before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RowKind {
    /// Nothing is known about this code.
    None = 0,
    /// Stack pointer + offset.
    Sp = 1,
    /// Frame pointer + offset.
    Fp = 2,
    /// An entry of the procedure linkage table: stack pointer + 8, or + 16 from the threshold on, counted in bytes from
    /// the entry's 16-byte boundary.
    Plt = 3,
    /// The frame that the kernel pushes for a signal handler: all registers are in it.
    Signal = 4,
    /// The outermost frame.
    End = 5,
    /// The word at frame pointer + displacement, plus offset: frames with a realigned stack.
    Deref = 6,
    /// There is a rule, but none that a row can express.
    Unsupported = 7,
    /// Frame pointer + 16, with the caller's frame pointer below it: code that keeps frame pointers.
    FramePointer = 8,
    /// A frame of HotSpot's interpreter, which is laid out around the frame pointer.
    Interpreter = 9,
    /// Code that a JVM generates: what is there now is asked of the JVM's memory. The offset of the CFA is the JVM's slot, that
    /// of the saved frame pointer is the number of the heap.
    Generated = 10,
    /// What a virtual thread's frames return to while those that called them are in the Java heap.
    Continuation = 11,
}

/// Where a frame keeps its caller's frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SavedFp {
    /// In the register.
    Register = 0,
    /// At CFA + offset.
    AtCfa = 1,
    /// Where the frame pointer points to.
    AtFp = 2,
}

const KIND_SHIFT: u64 = 32;
const KIND_MASK: u64 = 15;
const OFFSET_SHIFT: u64 = 36;
const OFFSET_MASK: u64 = (1 << 14) - 1;
const SAVED_SHIFT: u64 = 50;
const SAVED_MASK: u64 = 3;
const FP_OFFSET_SHIFT: u64 = 52;

impl Row {
    /// The largest CFA offset, in words: frames of 128 KiB.
    pub const MAX_OFFSET_WORDS: u64 = OFFSET_MASK;
    /// The largest distance of the saved frame pointer from the CFA in either direction, in words.
    pub const MAX_FP_OFFSET_WORDS: i64 = (1 << 11) - 1;

    /// Packs a row; `None` when an offset does not fit.
    #[must_use]
    pub const fn new(
        address: u32,
        kind: RowKind,
        offset: u64,
        saved: SavedFp,
        fp_offset: i64,
    ) -> Option<Self> {
        if offset > Self::MAX_OFFSET_WORDS
            || fp_offset > Self::MAX_FP_OFFSET_WORDS
            || fp_offset < -Self::MAX_FP_OFFSET_WORDS
        {
            return None;
        }
        Some(Self(
            address as u64
                | (kind as u64) << KIND_SHIFT
                | offset << OFFSET_SHIFT
                | (saved as u64) << SAVED_SHIFT
                | fp_offset.cast_unsigned() << FP_OFFSET_SHIFT,
        ))
    }

    /// A row without offsets.
    #[must_use]
    pub const fn plain(address: u32, kind: RowKind) -> Self {
        Self(address as u64 | (kind as u64) << KIND_SHIFT)
    }

    /// First address it holds for, relative to the start of the text.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the address is in the low 32 bits")]
    pub const fn address(self) -> u32 {
        self.0 as u32
    }

    /// The rule without the address: equal for rows that can be merged.
    #[inline(always)]
    #[must_use]
    pub const fn rule(self) -> u32 {
        (self.0 >> KIND_SHIFT) as u32
    }

    /// The number of its [`RowKind`].
    #[inline(always)]
    #[must_use]
    pub const fn kind(self) -> u64 {
        self.0 >> KIND_SHIFT & KIND_MASK
    }

    /// The CFA offset in bytes; for [`RowKind::Plt`] 8 times the threshold.
    #[inline(always)]
    #[must_use]
    pub const fn offset_bytes(self) -> u64 {
        (self.0 >> OFFSET_SHIFT & OFFSET_MASK) << 3
    }

    /// The number of its [`SavedFp`].
    #[inline(always)]
    #[must_use]
    pub const fn saved(self) -> u64 {
        self.0 >> SAVED_SHIFT & SAVED_MASK
    }

    /// The saved frame pointer's offset in bytes, as a wrapping addend.
    #[inline(always)]
    #[must_use]
    pub const fn fp_offset_bytes(self) -> u64 {
        ((self.0.cast_signed() >> FP_OFFSET_SHIFT) << 3).cast_unsigned()
    }
}

/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = 10;
/// Bytes of text per entry of the index.
pub const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
/// Steps of the binary search in a page: it has at most 2^10 rows, one for each byte.
pub const SEARCH_STEPS: u32 = 11;

/// Rows of all modules together: 2^21 (16 MiB) hold a JVM with all its libraries five times over, or all but the
/// largest compilers. A power of two: the kernel side masks indexes with it.
pub const ROWS: usize = 1 << 21;
/// Entries of the index: 2^19 (2 MiB) for 512 MiB of text.
pub const PAGES: usize = 1 << 19;

/// The table that always stays empty: of processes whose mappings are not known. Those of processes come after it.
pub const NO_MAPPINGS: u32 = 0;

/// Files whose rows are known, at most: there are some hundred libraries on a busy host, and as many programs.
pub const MAX_CODE_FILES: u32 = 4096;

/// Most executable mappings of a process that are known to the kernel side.
pub const MAX_MAPPINGS: usize = 512;

/// Mappings that a walk can find besides those that are known: stacks of a program that has just begun lead through some
/// libraries.
pub const MAX_FOUND: usize = 8;

/// Tables of mappings per process: one in use, one to write the next version into.
pub const TABLES_PER_PROCESS: u32 = 2;

/// An executable mapping of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Mapping {
    /// First address.
    pub begin: u64,
    /// First address after it.
    pub end: u64,
    /// Where the start of the module's text is, or would be.
    pub text: u64,
    /// Where the module's entries begin in the index; it has one more than pages.
    pub first_page: u32,
    /// Pages of the module's text, [`Mapping::GENERATED`] or [`Mapping::WITHOUT_ROWS`].
    pub pages: u32,
    /// The [`code_identity`] of what is mapped; 0 for memory without a file.
    pub identity: u64,
    /// Which of the files that have been mapped at these addresses it is, in the order in which they came, or one of
    /// [`layer`]. A part of each frame, so that frames in one file are not taken for frames in another that is mapped in
    /// its place later.
    pub layer: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
}

/// Values of [`Mapping::layer`] and of a frame's layer that are no number of a file.
pub mod layer {
    /// Files are counted up to here.
    pub const MAX: u16 = GENERATED - 1;
    /// From here on, up to 0x5fff: the code was generated by a JVM, and the lowest bits are those of the
    /// [number of its compilation](crate::jvm::id_in_frame).
    pub const GENERATED: u16 = 0x4000;
    /// From here on, up to 0x6fff: the frame is an [`InterpretedFrame`](crate::stack::InterpretedFrame).
    pub const INTERPRETED: u16 = 0x6000;
    /// The code is in no file.
    pub const NO_FILE: u16 = 0x7ffd;
    /// From here on: the stack's walk has found the mapping itself, and its record tells what it is.
    pub const FOUND: u16 = 0x7ff0;
    /// Nobody knows what the code was when the stack was taken.
    pub const UNKNOWN: u16 = 0x7ffe;
    /// Nobody has looked: the frame of a probe site, whose file has the probe.
    pub const OF_SITE: u16 = 0x7fff;
}

/// What tells mapped code from other code at the same addresses: the file, and where its beginning is, or would be. 0
/// is kept for memory without a file, and [`NOT_IDENTIFIED`] for what could not be looked at.
#[inline(always)]
#[must_use]
pub const fn code_identity(device: (u32, u32), inode: u64, file_start: u64) -> u64 {
    // As the kernel packs a device number (MKDEV in include/linux/kdev_t.h).
    let device = (device.0 << 20 | device.1) as u64;
    let mixed = (inode ^ device << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29 ^ file_start) | 1 << 63
}

/// Stands for code that the kernel side could not look at.
pub const NOT_IDENTIFIED: u64 = 1;

/// What keeps a process's table of mappings from being used for code that has been replaced. A part of its row.
///
/// The kernel side counts each mapping of code as it is made. A table tells at which count the user side began to look;
/// it holds until a mapping that is in it is replaced. While the user side looks, the table in use does not have all that
/// the next one may have, so that in this time every mapping that is made makes the next one void.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CodeChanges {
    /// Mappings of code that have been made. The kernel side's to write.
    pub made: u64,
    /// The last of them that replaced what the table in use has. The kernel side's to write.
    pub replaced: u64,
    /// Looks that the user side has begun. The user side's to write.
    pub look: u64,
    /// The last mapping that was made during a look. The kernel side's to write.
    pub disturbed: u64,
}

impl CodeChanges {
    /// Whether a table that was begun in that state can still be used. Before the next look begins, the user side takes one
    /// that cannot be used away: what disturbed a look is known only until then.
    /// A table of a later state is that of the process
    /// that this one's memory is a copy of.
    #[inline(always)]
    #[must_use]
    pub const fn hold(&self, seen: &CodeSeen) -> bool {
        self.replaced <= seen.made
            && seen.made <= self.made
            && seen.look <= self.look
            && (seen.look != self.look || self.disturbed <= seen.made)
    }

    /// Counts a mapping that is made now. `in_use` is the state of the table in use, if there is one, and `replaces`
    /// whether the mapping replaces one that this table has.
    #[inline(always)]
    #[must_use]
    pub const fn after(&self, in_use: Option<&CodeSeen>, replaces: bool) -> Self {
        let made = self.made + 1;
        let is_looking = match in_use {
            Some(seen) => seen.look != self.look,
            None => true,
        };
        Self {
            made,
            replaced: if replaces { made } else { self.replaced },
            look: self.look,
            disturbed: if is_looking { made } else { self.disturbed },
        }
    }
}

/// What there was to see when the user side began to look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CodeSeen {
    /// [`CodeChanges::made`] then.
    pub made: u64,
    /// The number of the look.
    pub look: u64,
}

impl Mapping {
    /// In the place of a number of pages: the code is a JVM's, generated at run time. The first page is the slot of that JVM,
    /// the text is the number of the heap.
    pub const GENERATED: u32 = u32::MAX - 1;
    /// In the place of a number of pages: the code is unwound by frame pointers. It was generated at run time, or its
    /// file has no call frame information.
    pub const WITHOUT_ROWS: u32 = u32::MAX;
}

/// The executable mappings of a process, sorted by address.
#[repr(C)]
pub struct MappingTable {
    /// Changes with every change of any process's table; a part of what the row cache is keyed by. Odd while the table is
    /// being written.
    pub generation: u32,
    /// Mappings in use.
    pub count: u32,
    /// What it was made from.
    pub seen: CodeSeen,
    /// The mappings.
    pub mappings: [Mapping; MAX_MAPPINGS],
}

/// A file as the kernel knows a mapped one, as it was at one time: a file's number is given again when it is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct CodeFile {
    /// Inode number.
    pub inode: u64,
    /// When its content or status last changed: seconds.
    pub changed_s: i64,
    /// And nanoseconds.
    pub changed_ns: u32,
    /// Device number, as the kernel has it: 12 bits of major, 20 bits of minor number.
    pub device: u32,
}

/// Where a file's rows are, and how an offset in the file becomes an address in its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CodeRows {
    /// See [`Mapping::first_page`].
    pub first_page: u32,
    /// See [`Mapping::pages`].
    pub pages: u32,
    /// Where the start of the text would be if the file's start were mapped at 0, as a wrapping addend.
    pub text: u64,
}

/// A hint to the user side that there is something to look at: a process maps code that is in no known mapping, runs
/// another program, begins or ends. When the kernel has told what is mapped at an address, the hint tells it: by the time
/// that somebody looks, the process can be gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Hint {
    /// Slot of the process.
    pub slot: u32,
    /// Its image.
    pub image: u32,
    /// First address of the mapping; 0 when nothing is told of one.
    pub begin: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file that is mapped at the first address.
    pub file_offset: u64,
    /// The file.
    pub file: CodeFile,
}

const _: () = assert!(size_of::<Hint>() == 56 && align_of::<Hint>() == 8);
const _: () = assert!(size_of::<CodeFile>() == 24 && size_of::<CodeRows>() == 16);
const _: () = assert!(size_of::<Mapping>() == 48 && align_of::<Mapping>() == 8);
const _: () = assert!(size_of::<MappingTable>() == 24 + 48 * MAX_MAPPINGS);

// SAFETY: integers only, no padding (asserted above), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for CodeFile {}

// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for CodeRows {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_row_gives_back_what_was_packed(
            address: u32, offset in 0..=Row::MAX_OFFSET_WORDS,
            fp_offset in -Row::MAX_FP_OFFSET_WORDS..=Row::MAX_FP_OFFSET_WORDS,
        ) {
            let row = Row::new(address, RowKind::Deref, offset, SavedFp::AtFp, fp_offset).unwrap();
            prop_assert_eq!(row.address(), address);
            prop_assert_eq!(row.kind(), RowKind::Deref as u64);
            prop_assert_eq!(row.offset_bytes(), offset * 8);
            prop_assert_eq!(row.saved(), SavedFp::AtFp as u64);
            prop_assert_eq!(row.fp_offset_bytes(), (fp_offset * 8).cast_unsigned());
        }
    }

    const BEGUN: CodeChanges = CodeChanges { made: 7, replaced: 2, look: 3, disturbed: 1 };
    const SEEN: CodeSeen = CodeSeen { made: 7, look: 3 };

    #[test]
    fn a_table_holds_until_what_it_has_is_replaced() {
        assert!(BEGUN.hold(&SEEN));
        let beside = BEGUN.after(Some(&SEEN), false);
        assert!(beside.hold(&SEEN));
        let replaced = beside.after(Some(&SEEN), true);
        assert!(!replaced.hold(&SEEN));
        assert!(replaced.hold(&CodeSeen { made: replaced.made, look: 3 }));
    }

    #[test]
    fn a_look_that_is_disturbed_gives_no_table_and_takes_none_away() {
        // The table in use is from an earlier look, or there is none.
        let before = CodeSeen { made: 5, look: 2 };
        for in_use in [Some(&before), None] {
            let disturbed = BEGUN.after(in_use, false);
            assert!(!disturbed.hold(&SEEN));
            assert!(disturbed.hold(&before));
            let next = CodeChanges { look: 4, ..disturbed };
            assert!(next.hold(&CodeSeen { made: 8, look: 4 }));
        }
    }

    #[test]
    fn a_table_that_the_parent_makes_after_the_fork_is_not_its_childs() {
        assert!(!BEGUN.hold(&CodeSeen { made: 7, look: 4 }));
        assert!(!BEGUN.hold(&CodeSeen { made: 8, look: 3 }));
    }

    #[test]
    fn code_is_told_apart_by_file_and_place() {
        let identity = code_identity((8, 1), 77, 0x7f00_0000_0000);
        assert_ne!(identity, code_identity((8, 1), 78, 0x7f00_0000_0000));
        assert_ne!(identity, code_identity((8, 2), 77, 0x7f00_0000_0000));
        assert_ne!(identity, code_identity((8, 1), 77, 0x7f00_0000_1000));
        assert!(identity > NOT_IDENTIFIED);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let new = |offset, fp_offset| Row::new(0, RowKind::Sp, offset, SavedFp::AtCfa, fp_offset);
        assert_eq!(new(Row::MAX_OFFSET_WORDS + 1, 0), None);
        assert_eq!(new(0, Row::MAX_FP_OFFSET_WORDS + 1), None);
        assert_eq!(new(0, -Row::MAX_FP_OFFSET_WORDS - 1), None);
    }
}
