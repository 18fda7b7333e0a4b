//! The kernel's buffers of records.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya::util::online_cpus;
use perf_event::data::{self, Mmap2, Record};
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};
use rustix::event::epoll;

use super::{FileRecord, Recorded, RecordedFile};
use crate::processes::FileId;

/// Size of a CPU's buffer. A record has some 150 bytes. Records of all processes arrive here, thousands a second on a host that
/// builds or tests software.
const BUFFER_BYTES: usize = 256 << 10;
/// Number of bytes from which the buffer is readable.
const WAKEUP_BYTES: usize = 32 << 10;

/// Flag of a record about a name that is a new program's (`PERF_RECORD_MISC_COMM_EXEC`).
const IS_EXEC: u16 = 1 << 13;

/// Buffers of the records of all processes, one for each CPU.
pub(super) struct Buffers {
    buffers: Vec<Sampler>,
    waiting: OwnedFd,
}

impl Buffers {
    /// Begins to record on all CPUs that are online. Fails without the privilege to observe all processes.
    pub(super) fn begin() -> io::Result<Self> {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let cpus = online_cpus().map_err(|(_, error)| error)?;
        let buffers = cpus.into_iter().map(|cpu| record(cpu as usize)).collect::<io::Result<Vec<_>>>()?;
        for buffer in &buffers {
            // SAFETY: the buffer keeps its descriptor open as long as it lives.
            let descriptor = unsafe { BorrowedFd::borrow_raw(buffer.as_raw_fd()) };
            epoll::add(&waiting, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Self { buffers, waiting })
    }

    /// A descriptor that becomes readable each time that many records have come.
    pub(super) fn waiting(&self) -> io::Result<OwnedFd> {
        self.waiting.try_clone()
    }

    /// Takes the pending records, those of a process in any order. Returns the number of records lost for lack of room.
    pub(super) fn take(&mut self, mut each: impl FnMut(FileRecord)) -> u64 {
        let mut lost = 0;
        for buffer in &mut self.buffers {
            while let Some(record) = buffer.next_record() {
                let is_exec = record.misc() & IS_EXEC != 0;
                match record.parse_record() {
                    Ok(Record::Lost(data::Lost { lost: number, .. })) => lost += number,
                    Ok(parsed) => {
                        if let Some((pid, what)) = read(&parsed, is_exec) {
                            each(FileRecord { pid, at_ns: time(&record.to_contiguous()), what });
                        }
                    }
                    Err(_) => lost += 1,
                }
            }
        }
        lost
    }
}

fn record(cpu: usize) -> io::Result<Sampler> {
    let mut builder = Builder::new(Software::DUMMY);
    builder.any_pid().one_cpu(cpu).mmap(true).mmap2(true).comm(true).comm_exec(true);
    builder.sample(SampleFlag::TIME).sample_id_all(true).clockid(Clock::MONOTONIC);
    builder.wakeup_watermark(WAKEUP_BYTES).enabled(true);
    builder.build()?.sampled(BUFFER_BYTES)
}

/// Process and content of a record; `None` for others than those described above, and for processes of other PID namespaces.
fn read(record: &Record<'_>, is_exec: bool) -> Option<(u32, Recorded)> {
    let (pid, what) = match record {
        Record::Comm(name) if is_exec => (name.pid, Recorded::Program),
        Record::Mmap2(mapping) => {
            (mapping.pid, file(mapping).map_or_else(|| Recorded::Memory(addresses(mapping)), Recorded::File))
        }
        _ => return None,
    };
    (pid != 0).then_some((pid, what))
}

fn addresses(mapping: &Mmap2<'_>) -> Range<u64> {
    mapping.addr..mapping.addr.saturating_add(mapping.len)
}

/// The mapped file; `None` for memory without a file, and for files without a path.
fn file(mapping: &Mmap2<'_>) -> Option<RecordedFile> {
    let length = mapping.filename.iter().position(|byte| *byte == 0).unwrap_or(mapping.filename.len());
    let path = Path::new(OsStr::from_bytes(&mapping.filename[..length]));
    // `//anon` is memory of no file. Files made by memfd_create(2) have no path; runtimes map code that they have generated so.
    let is_path = path.is_absolute()
        && ![&b"//"[..], b"/memfd:"].iter().any(|begin| mapping.filename.starts_with(begin));
    let file = FileId { device: (mapping.maj()?, mapping.min()?), inode: mapping.ino()? };
    (is_path && file.inode != 0).then(|| RecordedFile {
        addresses: addresses(mapping),
        file_offset: mapping.pgoff,
        file,
        path: path.to_path_buf(),
    })
}

/// Time of a record: its last field.
fn time(record: &[u8]) -> u64 {
    record.last_chunk().map_or(0, |time| u64::from_ne_bytes(*time))
}
