//! Scans of the process whose memory the view shows, in a thread of their own: reading a process can block.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use std::{io, mem};

use jiff::Timestamp;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::error_chain::chain;
use crate::memory::ProcessScan;
use crate::processes::{Error, Pid, Process};
use crate::reports::memory::{MemoryReport, text};

/// Maximum time for reading the arenas of malloc: the view is drawn every second.
const ARENA_TIME: Duration = Duration::from_millis(200);

/// A report on the memory of a process.
pub(super) struct Scanned {
    pub(super) pid: u32,
    pub(super) lines: Vec<String>,
}

/// The thread that scans.
pub(super) struct MemoryScans {
    requests: SyncSender<u32>,
    reports: UnboundedReceiver<Scanned>,
}

impl MemoryScans {
    pub(super) fn start() -> io::Result<Self> {
        let (requests, requested) = sync_channel(1);
        let (done, reports) = unbounded_channel();
        thread::Builder::new().name("memory scans".to_owned()).spawn(move || run(&requested, &done))?;
        Ok(Self { requests, reports })
    }

    /// Requests a scan, unless one is under way and another waits.
    pub(super) fn request(&self, pid: u32) {
        let _ = self.requests.try_send(pid);
    }

    /// The next report.
    pub(super) async fn next(&mut self) -> Option<Scanned> {
        self.reports.recv().await
    }
}

/// A process with its first scan.
struct First {
    process: Process,
    scan: ProcessScan,
    began: Instant,
}

fn run(requests: &Receiver<u32>, done: &UnboundedSender<Scanned>) {
    let mut first = None;
    // Both ends are gone when the view has ended.
    while let Ok(pid) = requests.recv() {
        let scanned = Pid::new(pid).map(|pid| report(pid, &mut first));
        let lines = match scanned {
            Some(Ok(report)) => report.lines().map(str::to_owned).collect(),
            Some(Err(error)) => vec![format!("not scanned: {}", chain(&error))],
            None => continue,
        };
        if done.send(Scanned { pid, lines }).is_err() {
            break;
        }
    }
}

fn report(pid: Pid, first: &mut Option<First>) -> Result<String, Error> {
    let process = Process::open(pid)?;
    let scan = ProcessScan::of(pid, ARENA_TIME)?;
    let earlier = mem::take(first).filter(|first| first.process == process);
    let began = earlier.as_ref().map(|first| (&first.scan, first.began.elapsed()));
    let text =
        text(&MemoryReport { process: &process, taken_at: Timestamp::now(), scan: &scan, first: began });
    *first = earlier
        .or_else(|| Some(First { process: process.clone(), scan: scan.clone(), began: Instant::now() }));
    Ok(text)
}
