//! Log of the files that the profiled processes have mapped for execution, also between scans and by processes that ended
//! before the first.

use std::collections::HashMap;
use std::future::pending;

use crate::attach::{FileRecord, FileRecords, Recorded, RecordedFile};

/// Time in nanoseconds for which records of processes that are not profiled are kept: one may be profiled from its next program on.
const KEPT_NS: u64 = 2_000_000_000;
/// Maximum number of records kept of a process. Large programs map some hundred files.
const MAX_RECORDS: usize = 4096;

/// The log.
pub(super) struct FileLog {
    /// `None` if the kernel gives no records.
    source: Option<FileRecords>,
    /// Records by process, in order of time.
    by_pid: HashMap<u32, Vec<FileRecord>>,
    /// Time up to which records may have been lost.
    lost_ns: u64,
}

impl FileLog {
    /// Begins to record. Requires a running tokio runtime.
    pub(super) fn begin() -> Self {
        let source = FileRecords::begin().inspect_err(|error| {
            tracing::info!(
                "the kernel does not record mapped files: jjleak may miss files of processes that end at once: {error}"
            );
        });
        Self { source: source.ok(), by_pid: HashMap::new(), lost_ns: 0 }
    }

    /// Waits until many records are pending. Cancel-safe.
    pub(super) async fn wait(&self) {
        match &self.source {
            Some(source) => source.wait().await,
            None => pending().await,
        }
    }

    /// Takes the pending records at the time `now_ns`.
    pub(super) fn receive(&mut self, now_ns: u64) {
        let Self { source: Some(source), by_pid, lost_ns } = self else { return };
        let lost = source.take(|record| {
            let records = by_pid.entry(record.pid).or_default();
            let place = records.partition_point(|known| known.at_ns <= record.at_ns);
            records.insert(place, record);
            if records.len() > MAX_RECORDS {
                let dropped = records.remove(0);
                *lost_ns = dropped.at_ns.max(*lost_ns);
            }
        });
        if lost > 0 {
            *lost_ns = now_ns;
        }
    }

    /// Forgets records of processes that are not profiled.
    pub(super) fn forget_others(&mut self, now_ns: u64, is_profiled: impl Fn(u32) -> bool) {
        let since = now_ns.saturating_sub(KEPT_NS);
        self.by_pid.retain(|pid, records| {
            is_profiled(*pid) || records.last().is_some_and(|last| last.at_ns >= since)
        });
    }

    /// Files that the program which a process ran at the time `at_ns` has mapped since its begin.
    pub(super) fn of(&self, pid: u32, at_ns: u64) -> impl Iterator<Item = &RecordedFile> {
        let records = self.by_pid.get(&pid).map(Vec::as_slice).unwrap_or_default();
        let is_begin = |record: &FileRecord| record.what == Recorded::Program;
        let before = records.partition_point(|record| record.at_ns <= at_ns);
        let begin = records[..before].iter().rposition(is_begin).map_or(0, |begin| begin + 1);
        let end = records[before..].iter().position(is_begin).map_or(records.len(), |end| before + end);
        records[begin..end].iter().filter_map(|record| match &record.what {
            Recorded::File(file) => Some(file),
            Recorded::Program => None,
        })
    }

    /// Returns true if all that was mapped since this time is recorded.
    pub(super) const fn is_complete(&self, since_ns: u64) -> bool {
        self.source.is_some() && !self.has_lost(since_ns)
    }

    /// Returns true if records since this time may have been lost.
    pub(super) const fn has_lost(&self, since_ns: u64) -> bool {
        self.lost_ns >= since_ns
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::processes::FileId;

    fn log(records: &[(u32, u64, Option<u64>)]) -> FileLog {
        let mut by_pid = HashMap::<_, Vec<_>>::new();
        for (pid, at_ns, inode) in records.iter().copied() {
            let file = |inode| RecordedFile {
                addresses: 0..4096,
                file_offset: 0,
                file: FileId { device: (8, 1), inode },
                path: PathBuf::from("/lib/a.so"),
            };
            let what = inode.map_or(Recorded::Program, |inode| Recorded::File(file(inode)));
            by_pid.entry(pid).or_default().push(FileRecord { pid, at_ns, what });
        }
        FileLog { source: None, by_pid, lost_ns: 0 }
    }

    #[test]
    fn a_program_has_mapped_what_came_since_its_begin_and_before_the_next_program() {
        let log = log(&[
            (7, 10, Some(1)),
            (7, 20, None),
            (7, 21, Some(2)),
            (7, 23, Some(3)),
            (7, 30, None),
            (7, 31, Some(4)),
        ]);
        let files = |pid, at_ns| log.of(pid, at_ns).map(|file| file.file.inode).collect::<Vec<_>>();
        assert_eq!(files(7, 5), [1]);
        // The kernel side learns of a program when its first files are mapped.
        assert_eq!([files(7, 20), files(7, 22), files(7, 29)], [[2, 3]; 3]);
        assert_eq!(files(7, 32), [4]);
        assert!(files(8, 22).is_empty());
    }

    #[test]
    fn records_of_other_processes_are_kept_for_a_moment() {
        let mut log = log(&[(7, 10, Some(1)), (8, 10, Some(1)), (9, 3_000_000_000, Some(1))]);
        log.forget_others(4_000_000_000, |pid| pid == 7);
        assert_eq!(log.of(7, 10).count() + log.of(9, 10).count(), 2);
        assert_eq!(log.of(8, 10).count(), 0);
    }
}
