//! Unwind rows of files on unfinished stacks, those used last.

use std::collections::HashMap;

use crate::processes::FileVersion;

/// Maximum number of rows: 64 MiB. That is a large browser, or some hundred libraries. A file with more is kept alone.
const MAX_ROWS: usize = 8 << 20;

/// The rows, of type `T`, by file.
pub(super) struct RecentRows<T> {
    files: HashMap<FileVersion, Kept<T>>,
    /// Number of uses so far.
    uses: u64,
}

struct Kept<T> {
    rows: T,
    /// Number of rows.
    count: usize,
    last_use: u64,
}

impl<T> Default for RecentRows<T> {
    fn default() -> Self {
        Self { files: HashMap::new(), uses: 0 }
    }
}

impl<T> RecentRows<T> {
    /// The rows of a file; `read` reads them, and returns their number, if they are not kept.
    pub(super) fn get(&mut self, file: FileVersion, read: impl FnOnce() -> (T, usize)) -> &T {
        self.uses += 1;
        let known = self.files.remove(&file);
        let (rows, count) = known.map_or_else(read, |known| (known.rows, known.count));
        self.make_room(count);
        let kept = Kept { rows, count, last_use: self.uses };
        &self.files.entry(file).insert_entry(kept).into_mut().rows
    }

    /// Drops all rows.
    pub(super) fn clear(&mut self) {
        self.files = HashMap::new();
    }

    /// Drops the least recently used rows until there is room for so many more, or nothing is left.
    fn make_room(&mut self, count: usize) {
        while self.files.values().map(|kept| kept.count).sum::<usize>() + count > MAX_ROWS
            && let Some(oldest) = self.files.iter().min_by_key(|(_, kept)| kept.last_use)
        {
            let oldest = *oldest.0;
            self.files.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::FileId;

    fn file(inode: u64) -> FileVersion {
        FileVersion { file: FileId { device: (8, 1), inode }, changed: (0, 0) }
    }

    #[test]
    fn rows_are_read_once_and_the_least_recently_used_make_room() {
        let mut rows = RecentRows::default();
        let mut read = Vec::new();
        let mut get = |inode: u64, count| {
            let is = *rows.get(file(inode), || {
                read.push(inode);
                (inode, count)
            });
            assert_eq!(is, inode);
        };
        for inode in [1, 2, 1, 2, 1] {
            get(inode, MAX_ROWS / 2);
        }
        get(3, MAX_ROWS / 2);
        get(1, MAX_ROWS / 2);
        get(2, MAX_ROWS / 2);
        get(4, 2 * MAX_ROWS);
        get(4, 2 * MAX_ROWS);
        get(1, 10);
        assert_eq!(read, [1, 2, 3, 2, 4, 1]);
    }
}
