//! Unwind tables: for each instruction, the rule that leads from a frame to its caller.
//!
//! The user side compiles a module's call frame information (`.eh_frame`) into [`Row`]s, sorted by address, and divides them
//! into *groups*, the rows of [`GROUP_PAGES`] pages of text each. Chunks of [`CHUNK_WORDS`] 64-bit words, which are created as
//! needed, hold the groups. A group is in one chunk:
//!
//! | part | content |
//! |---|---|
//! | offsets, `u16` | for each page, and for the end of the last: the last row that begins at or before it, in words from the start of the group |
//! | rows | those of the pages, after the one that is valid at the beginning of the first page |
//!
//! A directory gives the place of each group: its chunk is in the high bits. A process's [`Mapping`]s lead from an address to its
//! module's part of the directory.

mod row;
pub mod step;

pub use row::{GoSwitch, Row, RowKind, SavedFp, ToRunning, ToScheduler};

/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = 10;
/// Bytes of text per index entry.
pub const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
/// Steps of the binary search in a page, which has at most 2^10 rows, one per byte.
pub const SEARCH_STEPS: u32 = 11;

/// log2 of [`GROUP_PAGES`].
pub const GROUP_SHIFT: u32 = 5;
/// Pages of text per group. With a row for each byte, a group is smaller than the 2^16 words that its offsets can express.
pub const GROUP_PAGES: usize = 1 << GROUP_SHIFT;
/// Capacity of the directory in groups: 512 KiB for 4 GiB of text. A power of two: the kernel side masks indexes with it.
pub const GROUPS: usize = 1 << 17;

/// log2 of [`CHUNK_WORDS`].
pub const CHUNK_SHIFT: u32 = 18;
/// Words of a chunk: 2 MiB, for a program with some dozen libraries, and for several groups of any size. A power of two: the
/// kernel side masks indexes with it.
pub const CHUNK_WORDS: usize = 1 << CHUNK_SHIFT;
/// Size of the array of chunks. Number 0 is never used, so that an empty place in the directory leads nowhere. Each chunk takes a
/// file descriptor of the user side.
pub const CHUNKS: usize = 257;

/// Index of a table that always stays empty, for processes whose mappings are unknown. The tables of processes follow
/// it.
pub const NO_MAPPINGS: u32 = 0;

/// Maximum number of files whose rows are known: a busy host has some hundred libraries, and as many programs.
pub const MAX_CODE_FILES: u32 = 4096;

/// Maximum number of executable mappings of a process that the kernel side knows.
pub const MAX_MAPPINGS: usize = 512;

/// Maximum number of mappings that a walk can find besides the known ones. Stacks of programs with plugins lead through a
/// dozen libraries.
pub const MAX_FOUND: usize = 16;

/// Mapping tables per process: one in use, one to write the next version into.
pub const TABLES_PER_PROCESS: u32 = 2;

/// An executable mapping of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Mapping {
    /// First address.
    pub begin: u64,
    /// First address after it.
    pub end: u64,
    /// Address at which the start of the module's text is, or would be.
    pub text: u64,
    /// Number of the module's first page: that of its first group, times [`GROUP_PAGES`].
    pub first_page: u32,
    /// Number of pages of the module's text, [`Mapping::GENERATED`] or [`Mapping::WITHOUT_ROWS`].
    pub pages: u32,
    /// [`code_identity`] of the mapped code; 0 for memory without a file.
    pub identity: u64,
    /// Number of the file among those that have been mapped at these addresses, in order of arrival, or one of
    /// [`layer`]. It is part of each frame, so that frames in one file are not taken for frames in another that is
    /// mapped in its place later.
    pub layer: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
}

/// Values of [`Mapping::layer`] and of a frame's layer that are not file numbers.
pub mod layer {
    /// Maximum file number.
    pub const MAX: u16 = GENERATED - 1;
    /// From here up to 0x5fff: a JVM generated the code, and the lowest bits are those of its [compilation
    /// ID](crate::jvm::id_in_frame).
    pub const GENERATED: u16 = 0x4000;
    /// From here up to 0x6fff: the frame is an [`InterpretedFrame`](crate::stack::InterpretedFrame).
    pub const INTERPRETED: u16 = 0x6000;
    /// The code is in no file.
    pub const NO_FILE: u16 = 0x7ffd;
    /// From here on: the walk found the mapping itself, and the stack's record identifies it.
    pub const FOUND: u16 = 0x7fe0;
    /// Unknown what the code was when the stack was captured.
    pub const UNKNOWN: u16 = 0x7ffe;
    /// The frame of a probe site, which was not looked up: its file is the one with the probe.
    pub const OF_SITE: u16 = 0x7fff;

    const _: () = assert!(FOUND as usize + super::MAX_FOUND <= NO_FILE as usize);
}

/// Distinguishes mapped code from other code at the same addresses, by the file and the address at which its
/// beginning is, or would be. 0 is reserved for memory without a file, and [`NOT_IDENTIFIED`] for code that could not
/// be examined.
#[inline(always)]
#[must_use]
pub const fn code_identity(device: (u32, u32), inode: u64, file_start: u64) -> u64 {
    // The kernel's packing of a device number (MKDEV in include/linux/kdev_t.h).
    let device = (device.0 << 20 | device.1) as u64;
    let mixed = (inode ^ device << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29 ^ file_start) | 1 << 63
}

/// Identity of code that the kernel side could not examine.
pub const NOT_IDENTIFIED: u64 = 1;

/// Detects that a process's mapping table is outdated. Part of the process's row.
///
/// The kernel side counts each mapping of code as it is made. A table records the count at which its scan of the
/// mappings began, and is valid until a mapping in it is replaced. During a scan, the table in use lacks mappings
/// that the next one may have; therefore every mapping made during a scan invalidates the next table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CodeChanges {
    /// Number of mappings of code made. Written by the kernel side.
    pub made: u64,
    /// Number of the last one that replaced a mapping in the table in use. Written by the kernel side.
    pub replaced: u64,
    /// Number of scans begun by the user side, which writes it.
    pub scan: u64,
    /// Number of the last mapping made during a scan. Written by the kernel side.
    pub disturbed: u64,
}

impl CodeChanges {
    /// Returns true if a table whose scan began in the state `seen` is still valid. The user side removes an invalid
    /// table before it begins the next scan: a disturbance of a scan is known only until then. A table of a later
    /// state belongs to the process of which this one's memory is a copy.
    #[inline(always)]
    #[must_use]
    pub const fn hold(&self, seen: &CodeSeen) -> bool {
        self.replaced <= seen.made
            && seen.made <= self.made
            && seen.scan <= self.scan
            && (seen.scan != self.scan || self.disturbed <= seen.made)
    }

    /// Counts a new mapping. `in_use` is the state of the table in use, if there is one; `replaces` is true if the
    /// mapping replaces one in that table.
    #[inline(always)]
    #[must_use]
    pub const fn after(&self, in_use: Option<&CodeSeen>, replaces: bool) -> Self {
        let made = self.made + 1;
        let is_scanning = match in_use {
            Some(seen) => seen.scan != self.scan,
            None => true,
        };
        Self {
            made,
            replaced: if replaces { made } else { self.replaced },
            scan: self.scan,
            disturbed: if is_scanning { made } else { self.disturbed },
        }
    }
}

/// State in which the user side began a scan of the mappings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CodeSeen {
    /// [`CodeChanges::made`] at that time.
    pub made: u64,
    /// Number of the scan.
    pub scan: u64,
}

impl Mapping {
    /// A mapping without addresses.
    pub const EMPTY: Self =
        Self { begin: 0, end: 0, text: 0, first_page: 0, pages: 0, identity: 0, layer: 0, reserved: 0 };

    /// Replaces a number of pages: the code was generated by a JVM. The first page is the slot of that JVM, the text
    /// is the number of the heap.
    pub const GENERATED: u32 = u32::MAX - 1;
    /// Replaces a number of pages: the code is unwound by frame pointers. It was generated at run time, or its file
    /// has no call frame information.
    pub const WITHOUT_ROWS: u32 = u32::MAX;
}

/// The executable mappings of a process, sorted by address.
#[repr(C)]
pub struct MappingTable {
    /// Changes with every change of any process's table; part of the key of the row cache. Odd while the table is
    /// being written.
    pub generation: u32,
    /// Number of mappings in use.
    pub count: u32,
    /// State in which the table's scan began.
    pub seen: CodeSeen,
    /// The mappings.
    pub mappings: [Mapping; MAX_MAPPINGS],
}

/// A mapped file, as the kernel identifies it, at one time: inode numbers are reused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct CodeFile {
    /// Inode number.
    pub inode: u64,
    /// Time of the last change of content or status, in seconds.
    pub changed_s: i64,
    /// Nanoseconds of that time.
    pub changed_ns: u32,
    /// Device number as in the kernel: 12 bits of major, 20 bits of minor number.
    pub device: u32,
}

/// Maximum number of parts of a file's code with separate address ranges that the kernel side knows. Tools that optimize linked files
/// (BOLT, as for rustc's LLVM) append a second one.
pub const MAX_CODE_PARTS: usize = 2;

/// A part of a file's code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CodePart {
    /// File offsets of its pages; an empty range if there is no such part.
    pub begin: u64,
    /// First file offset behind it.
    pub end: u64,
    /// Address at which the start of the text would be if the file's start were mapped at 0, as a wrapping addend.
    pub text: u64,
}

/// Rows of a file, and the conversion of an offset in the file to an address in its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CodeRows {
    /// See [`Mapping::first_page`].
    pub first_page: u32,
    /// See [`Mapping::pages`].
    pub pages: u32,
    /// Parts of its code, which do not overlap.
    pub parts: [CodePart; MAX_CODE_PARTS],
}

/// A hint to the user side to examine a process: it maps code that is in no known mapping, runs another program,
/// begins or ends. The hint describes the mapping if the kernel has found it: the process can be gone before the user
/// side reads its mappings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Hint {
    /// Slot of the process.
    pub slot: u32,
    /// Image of the process.
    pub image: u32,
    /// First address of the mapping; 0 without a mapping.
    pub begin: u64,
    /// First address after it.
    pub end: u64,
    /// File offset mapped at the first address.
    pub file_offset: u64,
    /// The mapped file.
    pub file: CodeFile,
}

/// Size of a reported program path, with the trailing zero byte. Longer paths are truncated and then lead nowhere.
pub const PATH_BYTES: usize = 256;

/// Event: a process has begun to run a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ProgramBegun {
    /// Time of the event, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The new image.
    pub image: u32,
    /// Number of the process's mount namespace, in which its files are; 0 if unknown.
    pub mount_namespace: u32,
    /// File of the program; its inode is 0 if unknown.
    pub file: CodeFile,
    /// Path as given to `exec`, with a trailing zero byte; for a script, its interpreter's path.
    pub path: [u8; PATH_BYTES],
}

const _: () = assert!(GROUP_PAGES / 4 + 1 + (GROUP_PAGES << PAGE_SHIFT) < u16::MAX as usize);
const _: () = assert!(CHUNKS <= 1 << (u32::BITS - CHUNK_SHIFT) && GROUPS <= 1 << (u32::BITS - GROUP_SHIFT));
const _: () = assert!(size_of::<ProgramBegun>() == 40 + PATH_BYTES && align_of::<ProgramBegun>() == 8);
const _: () = assert!(size_of::<Hint>() == 56 && align_of::<Hint>() == 8);
const _: () = assert!(size_of::<CodeFile>() == 24 && size_of::<CodeRows>() == 56);
const _: () = assert!(size_of::<Mapping>() == 48 && align_of::<Mapping>() == 8);
const _: () = assert!(size_of::<MappingTable>() == 24 + 48 * MAX_MAPPINGS);

// SAFETY: integers only, no padding (asserted above), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for CodeFile {}

// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for CodeRows {}

// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Hint {}

// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for ProgramBegun {}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: CodeChanges = CodeChanges { made: 7, replaced: 2, scan: 3, disturbed: 1 };
    const SEEN: CodeSeen = CodeSeen { made: 7, scan: 3 };

    #[test]
    fn a_table_holds_until_what_it_has_is_replaced() {
        assert!(BEGUN.hold(&SEEN));
        let beside = BEGUN.after(Some(&SEEN), false);
        assert!(beside.hold(&SEEN));
        let replaced = beside.after(Some(&SEEN), true);
        assert!(!replaced.hold(&SEEN));
        assert!(replaced.hold(&CodeSeen { made: replaced.made, scan: 3 }));
    }

    #[test]
    fn a_scan_that_is_disturbed_gives_no_table_and_takes_none_away() {
        // The table in use is from an earlier scan, or there is none.
        let before = CodeSeen { made: 5, scan: 2 };
        for in_use in [Some(&before), None] {
            let disturbed = BEGUN.after(in_use, false);
            assert!(!disturbed.hold(&SEEN));
            assert!(disturbed.hold(&before));
            let next = CodeChanges { scan: 4, ..disturbed };
            assert!(next.hold(&CodeSeen { made: 8, scan: 4 }));
        }
    }

    #[test]
    fn a_table_that_the_parent_makes_after_the_fork_is_not_its_childs() {
        assert!(!BEGUN.hold(&CodeSeen { made: 7, scan: 4 }));
        assert!(!BEGUN.hold(&CodeSeen { made: 8, scan: 3 }));
    }

    #[test]
    fn code_is_distinguished_by_file_and_place() {
        let identity = code_identity((8, 1), 77, 0x7f00_0000_0000);
        assert_ne!(identity, code_identity((8, 1), 78, 0x7f00_0000_0000));
        assert_ne!(identity, code_identity((8, 2), 77, 0x7f00_0000_0000));
        assert_ne!(identity, code_identity((8, 1), 77, 0x7f00_0000_1000));
        assert!(identity > NOT_IDENTIFIED);
    }
}
