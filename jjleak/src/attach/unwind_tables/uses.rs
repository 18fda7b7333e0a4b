//! Which files the tables of mappings refer to. Knows files by their versions only.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use jjleak_common::process::ProcessSlot;

use crate::processes::FileVersion;

/// Files by table of mappings, and by the time of their last use.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// Files that each table refers to: those in use, and outdated ones, which a running walk or a forked child may still use.
    tables: HashMap<u32, Rc<[FileVersion]>>,
    /// The table in use of each process.
    current: HashMap<ProcessSlot, u32>,
    /// Files that are about to be in a process's next table.
    announced: HashMap<ProcessSlot, Rc<[FileVersion]>>,
    /// Time of the last change of a table with the file.
    last: HashMap<FileVersion, u64>,
    now: u64,
}

impl Uses {
    /// Notes a new file.
    pub(super) fn add(&mut self, file: FileVersion) {
        self.touch(&[file]);
    }

    /// Forgets a file.
    pub(super) fn remove(&mut self, file: FileVersion) {
        self.last.remove(&file);
    }

    /// Keeps files until the next table of the process.
    pub(super) fn announce(&mut self, slot: ProcessSlot, files: impl IntoIterator<Item = FileVersion>) {
        self.announced.insert(slot, files.into_iter().collect());
    }

    /// Notes a process's new table, and the files that it refers to.
    pub(super) fn write(
        &mut self,
        slot: ProcessSlot,
        table: u32,
        files: impl IntoIterator<Item = FileVersion>,
    ) {
        self.release(slot);
        let files: Rc<[_]> = files.into_iter().collect();
        self.touch(&files);
        self.tables.insert(table, files);
        self.current.insert(slot, table);
    }

    /// Notes that a process uses no table any more.
    pub(super) fn release(&mut self, slot: ProcessSlot) {
        self.announced.remove(&slot);
        let files = self.current.remove(&slot).and_then(|table| self.tables.get(&table).map(Rc::clone));
        if let Some(files) = files {
            self.touch(&files);
        }
    }

    /// Files that no process maps, the least recently mapped first.
    pub(super) fn unused(&self) -> Vec<FileVersion> {
        let in_tables = self.current.values().filter_map(|table| self.tables.get(table));
        let used: HashSet<_> =
            in_tables.chain(self.announced.values()).flat_map(|files| files.iter()).collect();
        let mut unused: Vec<_> = self.last.iter().filter(|(file, _)| !used.contains(file)).collect();
        unused.sort_unstable_by_key(|(_, last)| **last);
        unused.into_iter().map(|(file, _)| *file).collect()
    }

    /// Forgets outdated tables that refer to any of these files, and returns them.
    pub(super) fn take_outdated(&mut self, files: &HashSet<FileVersion>) -> Vec<u32> {
        let current: HashSet<_> = self.current.values().copied().collect();
        let outdated = self.tables.extract_if(|table, of_table| {
            !current.contains(table) && of_table.iter().any(|file| files.contains(file))
        });
        outdated.map(|(table, _)| table).collect()
    }

    fn touch(&mut self, files: &[FileVersion]) {
        self.now += 1;
        for file in files {
            self.last.insert(*file, self.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::FileId;

    const ONE: ProcessSlot = ProcessSlot(1);
    const TWO: ProcessSlot = ProcessSlot(2);

    fn file(inode: u64) -> FileVersion {
        FileVersion { file: FileId { device: (8, 1), inode }, changed: (0, 0) }
    }

    #[test]
    fn files_of_a_table_in_use_are_kept_and_the_least_recently_mapped_go_first() {
        let mut uses = Uses::default();
        (1..=5).for_each(|inode| uses.add(file(inode)));
        assert_eq!(uses.unused(), [1, 2, 3, 4, 5].map(file));
        uses.write(ONE, 3, [file(1), file(2)]);
        uses.write(TWO, 5, [file(2)]);
        assert_eq!(uses.unused(), [3, 4, 5].map(file));
        // The library 1 is unmapped later than 3 to 5 were loaded.
        uses.write(ONE, 4, [file(2)]);
        assert_eq!(uses.unused(), [3, 4, 5, 1].map(file));
        uses.release(ONE);
        assert_eq!(uses.unused(), [3, 4, 5, 1].map(file));
        uses.release(TWO);
        assert_eq!(uses.unused(), [3, 4, 5, 1, 2].map(file));
    }

    #[test]
    fn files_that_a_process_is_about_to_use_are_kept() {
        let mut uses = Uses::default();
        (1..=2).for_each(|inode| uses.add(file(inode)));
        uses.announce(ONE, [file(1)]);
        assert_eq!(uses.unused(), [file(2)]);
        uses.write(ONE, 3, [file(2)]);
        assert_eq!(uses.unused(), [file(1)]);
    }

    #[test]
    fn only_outdated_tables_with_a_file_are_taken() {
        let mut uses = Uses::default();
        let removed = HashSet::from([file(1)]);
        uses.write(ONE, 3, [file(1)]);
        uses.write(TWO, 5, [file(2)]);
        assert!(uses.take_outdated(&removed).is_empty());
        uses.write(ONE, 4, [file(2)]);
        uses.release(TWO);
        assert_eq!(uses.take_outdated(&removed), [3]);
        assert!(uses.take_outdated(&removed).is_empty());
        assert_eq!(uses.take_outdated(&HashSet::from([file(2)])), [5]);
    }
}
