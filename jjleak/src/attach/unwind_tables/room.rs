//! Sizes of rows, and the files whose rows make room for others. Knows numbers only.

use jjleak_common::unwind::GROUPS;

use super::groups::Groups;
use crate::processes::FileVersion;
use crate::unwind::ModuleRows;

/// Share of the capacity that is kept free of rows of files that are not mapped yet, and that is freed at once when files are
/// removed: each removal waits for running walks, some 10 ms.
const SPARE: u64 = 8;

/// Space for rows: words of chunks, and entries of the directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) words: u64,
    pub(super) groups: u64,
}

impl Extent {
    /// Maximum size of a file in groups: 512 MiB of text, several times that of a browser. A file with two rows far apart, which takes
    /// two pages of its own, would otherwise take the directory of all others.
    pub(super) const MAX_GROUPS: u64 = GROUPS as u64 / 8;

    /// Space for the rows of a module.
    pub(super) fn of(module: &ModuleRows) -> Self {
        let sizes = Groups::of(module).sizes();
        Self { words: sizes.iter().map(|size| u64::from(*size)).sum(), groups: sizes.len() as u64 }
    }

    /// Returns true if this much space has room for another extent.
    pub(super) const fn holds(self, other: Self) -> bool {
        self.words >= other.words && self.groups >= other.groups
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self { words: self.words + other.words, groups: self.groups + other.groups }
    }
}

/// A share of the capacity.
pub(super) const fn spare(capacity: Extent) -> Extent {
    Extent { words: capacity.words / SPARE, groups: capacity.groups / SPARE }
}

/// Space to free for `extent`, which does not fit into this `room`. If there is enough of both, the room is in pieces.
pub(super) fn missing(room: Extent, extent: Extent, spare: Extent) -> Extent {
    let of = |has: bool, needed: u64, spare: u64| if has { 0 } else { needed.max(spare) };
    let words = of(room.words >= extent.words, extent.words, spare.words);
    let groups = of(room.groups >= extent.groups, extent.groups, spare.groups);
    if words == 0 && groups == 0 {
        return Extent { words: extent.words.max(spare.words), groups: extent.groups };
    }
    Extent { words, groups }
}

/// The first files that together have at least this extent and number.
pub(super) fn first_of(
    sizes: impl Iterator<Item = (FileVersion, Extent)>,
    extent: Extent,
    files: usize,
) -> Vec<FileVersion> {
    let mut freed = Extent::default();
    let counted = sizes.enumerate().take_while(|(index, (_, size))| {
        let is_enough = freed.holds(extent) && *index >= files;
        freed = freed.and(*size);
        !is_enough
    });
    counted.map(|(_, (file, _))| file).collect()
}

#[cfg(test)]
mod tests {
    use jjleak_common::unwind::{Row, RowKind};

    use super::*;
    use crate::processes::FileId;

    const fn extent(words: u64, groups: u64) -> Extent {
        Extent { words, groups }
    }

    fn file(inode: u64) -> FileVersion {
        FileVersion { file: FileId { device: (8, 1), inode }, changed: (0, 0) }
    }

    #[test]
    fn of_what_is_missing_a_spare_is_freed_and_of_nothing_else() {
        let spare = extent(1000, 10);
        assert_eq!(missing(extent(5000, 3), extent(20, 4), spare), extent(0, 10), "the directory is full");
        assert_eq!(missing(extent(5, 3000), extent(2000, 4), spare), extent(2000, 0));
        assert_eq!(missing(extent(500, 30), extent(20, 4), spare), extent(1000, 4), "it is in pieces");
    }

    #[test]
    fn a_full_directory_takes_the_rows_of_as_few_files_as_it_needs() {
        let sizes = || (1..=9).map(|inode| (file(inode), extent(1000, 4)));
        assert_eq!(first_of(sizes(), extent(0, 10), 1), [1, 2, 3].map(file));
        assert_eq!(first_of(sizes(), extent(1001, 0), 1), [1, 2].map(file));
        assert_eq!(first_of(sizes(), extent(0, 0), 4), [1, 2, 3, 4].map(file));
        assert_eq!(first_of(sizes(), extent(0, 100), 1).len(), 9);
    }

    #[test]
    fn a_file_with_rows_far_apart_is_too_long() {
        let rows =
            |last| ModuleRows::of_rows([0, last].map(|at| Row::plain(at, RowKind::Sp)).into()).unwrap();
        assert!(Extent::of(&rows(400 << 20)).groups <= Extent::MAX_GROUPS);
        assert!(Extent::of(&rows(u32::MAX)).groups > Extent::MAX_GROUPS);
    }
}
