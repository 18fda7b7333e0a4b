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
    by_pid: HashMap<u32, Records>,
    /// Time up to which the kernel may have lost records of any process.
    lost_ns: Option<u64>,
}

/// Records of a process.
#[derive(Default)]
struct Records {
    /// In order of time.
    kept: Vec<FileRecord>,
    /// Time of the last record that was dropped for lack of room.
    dropped_ns: Option<u64>,
}

impl Records {
    /// Adds a record. Memory that is made executable again and again, as by JIT compilers, is recorded once for a program.
    fn add(&mut self, record: FileRecord) {
        let place = self.kept.partition_point(|known| known.at_ns <= record.at_ns);
        let of_program = self.kept[..place].iter().rev().take_while(|known| known.what != Recorded::Program);
        if matches!(record.what, Recorded::Memory(_))
            && of_program.into_iter().any(|known| known.what == record.what)
        {
            return;
        }
        self.kept.insert(place, record);
        if self.kept.len() > MAX_RECORDS {
            let dropped = self.kept.remove(0);
            self.dropped_ns = self.dropped_ns.max(Some(dropped.at_ns));
        }
    }
}

impl FileLog {
    /// Begins to record. Requires a running tokio runtime.
    pub(super) fn begin() -> Self {
        let source = FileRecords::begin().inspect_err(|error| {
            tracing::info!(
                "the kernel does not record mapped files: jjleak may miss files of processes that end at once: {error}"
            );
        });
        Self { source: source.ok(), by_pid: HashMap::new(), lost_ns: None }
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
        let lost = source.take(|record| by_pid.entry(record.pid).or_default().add(record));
        if lost > 0 {
            *lost_ns = Some(now_ns);
        }
    }

    /// Forgets records of processes that are not profiled.
    pub(super) fn forget_others(&mut self, now_ns: u64, is_profiled: impl Fn(u32) -> bool) {
        let since = now_ns.saturating_sub(KEPT_NS);
        self.by_pid.retain(|pid, records| {
            is_profiled(*pid) || records.kept.last().is_some_and(|last| last.at_ns >= since)
        });
    }

    /// Files that the program which a process ran at the time `at_ns` has mapped since its begin.
    pub(super) fn of(&self, pid: u32, at_ns: u64) -> impl Iterator<Item = &RecordedFile> {
        self.code_of(pid, at_ns).filter_map(|code| match code {
            Recorded::File(file) => Some(file),
            Recorded::Program | Recorded::Memory(_) => None,
        })
    }

    /// All that this program has made executable since its begin.
    pub(super) fn code_of(&self, pid: u32, at_ns: u64) -> impl Iterator<Item = &Recorded> {
        let records = self.by_pid.get(&pid).map_or(&[][..], |records| &records.kept);
        let is_begin = |record: &FileRecord| record.what == Recorded::Program;
        let before = records.partition_point(|record| record.at_ns <= at_ns);
        let begin = records[..before].iter().rposition(is_begin).map_or(0, |begin| begin + 1);
        let end = records[before..].iter().position(is_begin).map_or(records.len(), |end| before + end);
        records[begin..end].iter().map(|record| &record.what)
    }

    /// Returns true if all that a process has mapped since this time is recorded.
    pub(super) fn is_complete(&self, pid: u32, since_ns: u64) -> bool {
        self.source.is_some() && !self.has_lost(pid, since_ns)
    }

    /// Returns true if records of a process since this time may have been lost.
    pub(super) fn has_lost(&self, pid: u32, since_ns: u64) -> bool {
        let dropped_ns = self.by_pid.get(&pid).and_then(|records| records.dropped_ns);
        self.lost_ns.max(dropped_ns) >= Some(since_ns)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::processes::FileId;

    fn log(records: &[(u32, u64, Option<u64>)]) -> FileLog {
        let mut by_pid = HashMap::<_, Records>::new();
        for (pid, at_ns, inode) in records.iter().copied() {
            let file = |inode| RecordedFile {
                addresses: 0..4096,
                file_offset: 0,
                file: FileId { device: (8, 1), inode },
                path: PathBuf::from("/lib/a.so"),
            };
            let what = inode.map_or(Recorded::Program, |inode| Recorded::File(file(inode)));
            by_pid.entry(pid).or_default().add(FileRecord { pid, at_ns, what });
        }
        FileLog { source: None, by_pid, lost_ns: None }
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

    #[test]
    fn a_process_with_too_many_records_takes_nothing_from_others() {
        let many = u64::try_from(MAX_RECORDS).unwrap();
        let mut records: Vec<_> = (0..=many).map(|at_ns| (7, 100 + at_ns, Some(at_ns))).collect();
        records.push((8, 5, Some(1)));
        let mut log = log(&records);
        assert!(log.has_lost(7, 100) && !log.has_lost(7, 101), "one was dropped");
        assert!(!log.has_lost(8, 0) && !log.has_lost(9, 0));
        log.lost_ns = Some(50);
        assert!(log.has_lost(8, 50) && !log.has_lost(8, 51), "the kernel does not say of which process");
    }

    #[test]
    fn memory_that_is_made_executable_again_is_recorded_once_for_a_program() {
        let mut records = Records::default();
        let memory = |begin| Recorded::Memory(begin..begin + 4096);
        let all = [memory(0), memory(4096), memory(0), Recorded::Program, memory(0), memory(0)];
        for (at_ns, what) in (0..).zip(all) {
            records.add(FileRecord { pid: 7, at_ns, what });
        }
        let kept: Vec<_> = records.kept.into_iter().map(|record| record.what).collect();
        assert_eq!(kept, [memory(0), memory(4096), Recorded::Program, memory(0)]);
    }
}
