//! The code that a program has ever had at each address, by the kernel's records of what it has mapped.

use std::collections::HashMap;

use crate::attach::Recorded;
use crate::processes::FileId;

/// Code by address.
pub(super) struct CodeHistory {
    /// Beginnings of ranges, in order. Each range ends where the next one begins.
    ranges: Vec<(u64, Code)>,
}

/// The code that has ever been in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    Nothing,
    Only(Origin),
    Several,
}

/// Where code comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Origin {
    /// Memory without a file.
    Memory,
    /// A file, mapped so that addresses minus offsets are this.
    File(FileId, u64),
}

impl CodeHistory {
    /// `recorded` is all that the program has made executable.
    pub(super) fn new<'a>(recorded: impl Iterator<Item = &'a Recorded>) -> Self {
        let mut boundaries = Vec::new();
        for recorded in recorded {
            let (addresses, origin) = match recorded {
                Recorded::Program => continue,
                Recorded::Memory(addresses) => (addresses, Origin::Memory),
                Recorded::File(mapped) => {
                    let addend = mapped.addresses.start.wrapping_sub(mapped.file_offset);
                    (&mapped.addresses, Origin::File(mapped.file, addend))
                }
            };
            boundaries.extend([(addresses.start, 1, origin), (addresses.end, -1, origin)]);
        }
        boundaries.sort_unstable();
        let (mut present, mut ranges): (HashMap<Origin, i64>, _) = (HashMap::new(), Vec::new());
        for at_address in boundaries.chunk_by(|one, other| one.0 == other.0) {
            for (_, change, origin) in at_address {
                *present.entry(*origin).or_default() += change;
            }
            present.retain(|_, count| *count > 0);
            let mut origins = present.keys();
            let code = match (origins.next(), origins.next()) {
                (None, _) => Code::Nothing,
                (Some(only), None) => Code::Only(*only),
                (Some(_), Some(_)) => Code::Several,
            };
            ranges.push((at_address[0].0, code));
        }
        Self { ranges }
    }

    /// Returns true if other code than that at `offset` of `file` was ever executable at an address.
    pub(super) fn has_other(&self, address: u64, file: FileId, offset: u64) -> bool {
        match self.at(address) {
            Code::Nothing => false,
            Code::Only(origin) => origin != Origin::File(file, address.wrapping_sub(offset)),
            Code::Several => true,
        }
    }

    /// Returns true if only memory without a file was ever executable at an address.
    pub(super) fn is_generated(&self, address: u64) -> bool {
        self.at(address) == Code::Only(Origin::Memory)
    }

    fn at(&self, address: u64) -> Code {
        let next = self.ranges.partition_point(|(begin, _)| *begin <= address);
        next.checked_sub(1).map_or(Code::Nothing, |at| self.ranges[at].1)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::attach::RecordedFile;

    const FILE: FileId = FileId { device: (8, 1), inode: 7 };
    const OTHER: FileId = FileId { device: (8, 1), inode: 8 };

    fn mapped(addresses: std::ops::Range<u64>, file: FileId, file_offset: u64) -> Recorded {
        Recorded::File(RecordedFile { addresses, file_offset, file, path: PathBuf::from("/lib/a.so") })
    }

    #[test]
    fn code_is_the_same_only_at_the_same_offset_of_the_same_file() {
        let history = CodeHistory::new([mapped(0x7000..0x9000, FILE, 0x3000)].iter());
        assert!(!history.has_other(0x8010, FILE, 0x4010));
        assert!(history.has_other(0x8010, FILE, 0x1010), "another part of the file");
        assert!(history.has_other(0x8010, OTHER, 0x4010), "another file");
        assert!(
            !history.has_other(0x9010, FILE, 0) && !history.has_other(0x6fff, FILE, 0),
            "not mapped there"
        );
    }

    #[test]
    fn generated_code_is_other_code_than_that_of_any_file() {
        let history = CodeHistory::new([Recorded::Memory(0x7000..0x9000), Recorded::Program].iter());
        assert!(history.has_other(0x8010, FILE, 0x1010) && history.is_generated(0x8010));
        assert!(!history.has_other(0x9000, FILE, 0x1010) && !history.is_generated(0x9000));
    }

    #[test]
    fn code_at_an_address_that_a_file_once_had_is_not_generated_for_certain() {
        let recorded = [Recorded::Memory(0x7000..0x9000), mapped(0x8000..0x9000, FILE, 0)];
        let history = CodeHistory::new(recorded.iter());
        assert!(history.is_generated(0x7800) && !history.is_generated(0x8800));
    }

    #[test]
    fn code_that_was_mapped_again_or_in_parts_is_the_same() {
        let recorded = [
            mapped(0x7000..0x9000, FILE, 0x3000),
            mapped(0x8000..0xa000, FILE, 0x4000),
            mapped(0x8000..0x8800, FILE, 0x4000),
            mapped(0x9800..0xb000, OTHER, 0),
        ];
        let history = CodeHistory::new(recorded.iter());
        let is_only = |address| !history.has_other(address, FILE, address - 0x4000);
        assert!(is_only(0x7800) && is_only(0x8400) && is_only(0x9000));
        assert!(!is_only(0x9800) && !is_only(0xa800));
        assert!(!history.has_other(0xa800, OTHER, 0x1000));
    }
}
