//! The kernel's records of programs begun and files mapped for execution, made for profilers (`perf_event_open(2)`).
//!
//! They contain paths, which BPF programs cannot read, and so lead to files of processes that are over. A thread takes them from the
//! kernel's buffers: on a host that builds software, these fill within a fraction of a second.

mod buffers;

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::ring_thread::RingThread;
use crate::processes::FileId;
use buffers::Buffers;

/// Maximum number of records that wait to be taken. Each has some 200 bytes.
const MAX_WAITING: usize = 1 << 16;

/// Records of all processes.
pub struct FileRecords {
    shared: Arc<Shared>,
    _thread: RingThread,
}

/// What the thread and its owner share.
struct Shared {
    queue: Mutex<Queue>,
    /// Many records have come.
    news: Notify,
}

struct Queue {
    buffers: Buffers,
    waiting: Vec<FileRecord>,
    lost: u64,
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRecord {
    /// PID of the process.
    pub pid: u32,
    /// Time in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Action of the process.
    pub what: Recorded,
}

/// Action of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// It began a program. Files mapped before are not mapped any more.
    Program,
    /// It mapped a file for execution.
    File(RecordedFile),
    /// It made other memory executable, at these addresses: generated code, or a file without a path.
    Memory(Range<u64>),
}

/// A file mapped for execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedFile {
    /// Address range.
    pub addresses: Range<u64>,
    /// File offset of the first address.
    pub file_offset: u64,
    /// The file.
    pub file: FileId,
    /// Path of the file in the root of the process.
    pub path: PathBuf,
}

impl FileRecords {
    /// Begins to record on all CPUs that are online. Fails without the privilege to observe all processes.
    pub fn begin() -> io::Result<Self> {
        let buffers = Buffers::begin()?;
        let readable = buffers.waiting()?;
        let queue = Mutex::new(Queue { buffers, waiting: Vec::new(), lost: 0 });
        let shared = Arc::new(Shared { queue, news: Notify::new() });
        let receive = {
            let shared = Arc::clone(&shared);
            move || {
                shared.queue().receive();
                shared.news.notify_one();
                false
            }
        };
        let thread = RingThread::start("mapped files", readable, receive).map_err(io::Error::other)?;
        if !thread.is_running() {
            return Err(io::Error::other("no thread could be started"));
        }
        Ok(Self { shared, _thread: thread })
    }

    /// Waits until many records have come. Cancel-safe.
    pub async fn wait(&self) {
        self.shared.news.notified().await;
    }

    /// Takes the pending records, those of a process in any order. Returns the number of records lost for lack of room.
    pub fn take(&mut self, each: impl FnMut(FileRecord)) -> u64 {
        let (records, lost) = self.shared.queue().take();
        records.into_iter().for_each(each);
        lost
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn receive(&mut self) {
        let Self { buffers, waiting, lost } = self;
        let mut refused = 0;
        *lost += buffers.take(|record| {
            if waiting.len() < MAX_WAITING {
                waiting.push(record);
            } else {
                refused += 1;
            }
        });
        *lost += refused;
    }

    fn take(&mut self) -> (Vec<FileRecord>, u64) {
        self.receive();
        (std::mem::take(&mut self.waiting), std::mem::take(&mut self.lost))
    }
}
