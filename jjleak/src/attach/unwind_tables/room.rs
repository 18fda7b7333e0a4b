//! Gives back the places of rows that nothing leads to any more, when others need them.
//!
//! Walks come to a file's rows by a table of mappings that a process uses, or by what is published of files. Files are given up
//! that no table in use leads to. They are published no longer, and then all programs are waited for that run on the kernel
//! side: among them can be walks that have found the rows before, and one that lets a child use the table of mappings that its
//! parent had. What no table in use leads to then, either, nobody will come to again: tables are written here alone.

use std::collections::HashSet;

use super::{Loaded, UnwindTables};
use crate::attach::ProcessTable;
use crate::processes::FileVersion;

/// With what is given up, as much as this part of a table is to be free: the kernel side is waited for once for many files.
const SPARE: usize = 8;

/// Rows, entries of the index, and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) pages: usize,
    pub(super) files: usize,
}

impl Size {
    /// More than there is of anything.
    const EVERYTHING: Self = Self { rows: usize::MAX, pages: usize::MAX, files: usize::MAX };

    const fn and(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            pages: self.pages + other.pages,
            files: self.files + other.files,
        }
    }

    const fn has_room_for(self, other: Self) -> bool {
        self.rows >= other.rows && self.pages >= other.pages && self.files >= other.files
    }
}

/// How much is to be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// What is needed, and some more.
    Enough,
    /// All that can be: free places that are large enough together may be small ones.
    All,
}

impl UnwindTables {
    /// Makes room for a file of this size, but not of the rows of files that are to be kept; whether any became free.
    pub(super) fn make_room(
        &mut self,
        needed: Size,
        extent: Extent,
        kept: &HashSet<FileVersion>,
        processes: &ProcessTable,
    ) -> bool {
        let in_use = self.led_to(processes);
        let unused = self.modules.iter().filter(|(file, _)| !in_use.contains(file) && !kept.contains(file));
        let unused = unused.map(|(file, loaded)| (*file, loaded.size(), loaded.used)).collect();
        let spare = Size {
            rows: self.capacity.rows / SPARE,
            pages: self.capacity.pages / SPARE,
            files: self.capacity.files / SPARE,
        };
        let wanted = match extent {
            Extent::Enough => needed.and(spare),
            Extent::All => Size::EVERYTHING,
        };
        let victims: Vec<_> =
            oldest(unused, self.free(), wanted).into_iter().filter(|file| self.hide(*file)).collect();
        if victims.is_empty() {
            return false;
        }
        let are_over = self.grace.as_ref().is_some_and(|grace| grace.wait().is_ok());
        let in_use = self.led_to(processes);
        let mut given_up = 0;
        for file in victims {
            if !are_over || in_use.contains(&file) {
                self.show(file);
            } else if let Some(Loaded { rows, pages, .. }) = self.modules.remove(&file) {
                self.rows_free.give_back(rows);
                self.pages_free.give_back(pages);
                given_up += 1;
            }
        }
        tracing::debug!(
            given_up,
            rows = self.rows_free.free(),
            "rows of files that nobody maps are given up"
        );
        given_up > 0
    }

    /// What is free, here and there.
    fn free(&self) -> Size {
        Size {
            rows: self.rows_free.free(),
            pages: self.pages_free.free(),
            files: self.capacity.files.saturating_sub(self.modules.len()),
        }
    }

    /// The files that tables in use lead to.
    fn led_to(&self, processes: &ProcessTable) -> HashSet<FileVersion> {
        let tables = processes.tables_in_use();
        tables.iter().filter_map(|table| self.leads_to.get(table)).flatten().copied().collect()
    }

    /// Publishes a file no longer; whether it is not.
    fn hide(&mut self, file: FileVersion) -> bool {
        let Some(loaded) = self.modules.get(&file) else { return false };
        !loaded.is_published || self.unpublish(file)
    }

    /// Publishes a file again.
    fn show(&mut self, file: FileVersion) {
        let Some(Loaded { is_published: true, text: Some(text), .. }) = self.modules.get(&file) else {
            return;
        };
        self.publish_at(file, *text);
    }
}

/// Those files that have not been used for longest, until so much is free.
fn oldest(mut unused: Vec<(FileVersion, Size, u64)>, mut free: Size, wanted: Size) -> Vec<FileVersion> {
    unused.sort_by_key(|(_, _, used)| *used);
    let is_needed = |(_, size, _): &(FileVersion, Size, u64)| {
        let is_needed = !free.has_room_for(wanted);
        free = free.and(*size);
        is_needed
    };
    unused.into_iter().take_while(is_needed).map(|(file, ..)| file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::FileId;

    #[test]
    fn those_are_given_up_that_were_used_longest_ago_and_no_more_than_is_needed() {
        let file = |inode| FileVersion { file: FileId { device: (8, 1), inode }, changed: (0, 0) };
        let size = |rows, pages| Size { rows, pages, files: 1 };
        let unused = vec![(file(1), size(10, 1), 30), (file(2), size(10, 1), 10), (file(3), size(1, 10), 20)];
        let given_up = |free, wanted| oldest(unused.clone(), free, wanted);
        assert_eq!(given_up(size(5, 5), size(5, 5)), []);
        assert_eq!(given_up(size(5, 5), size(6, 5)), [file(2)]);
        assert_eq!(given_up(size(5, 5), size(15, 7)), [file(2), file(3)]);
        assert_eq!(given_up(size(5, 5), Size { files: 2, ..size(5, 5) }), [file(2)]);
        assert_eq!(given_up(size(5, 5), Size::EVERYTHING), [2, 3, 1].map(file));
    }
}
