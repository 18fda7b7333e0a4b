//! bpftrace with a plain script to find leaks: a map of live blocks with their sizes and stacks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::AtWork;
use crate::Result;
use crate::subjects::scratch;

/// `LIBRARY` stands for the file with `malloc`.
const SCRIPT: &str = include_str!("memleak.bt");
/// Maximum number of blocks: jjleak's default. That of bpftrace, 4,096, would be full at once.
const ROOM: (&str, &str) = ("BPFTRACE_MAP_KEYS_MAX", "1000000");
/// Start timeout: it compiles its script with LLVM first.
const LONGEST_START: Duration = Duration::from_secs(60);
/// Number of its uprobes. Each is a perf event; one more per CPU is for its output.
const PROBES: usize = 7;

pub(crate) struct Bpftrace(Child);

impl Bpftrace {
    /// Returns when its probes are attached.
    pub(crate) fn attach(pid: u32, allocator: &Path) -> Result<Self> {
        let script = scratch("memleak.bt");
        fs::write(&script, SCRIPT.replace("LIBRARY", &allocator.display().to_string()))?;
        let says = scratch("bpftrace.log");
        let log = fs::File::create(&says)?;
        let child = Command::new("bpftrace")
            .args(["-p", &pid.to_string()])
            .arg(&script)
            .env(ROOM.0, ROOM.1)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("cannot start bpftrace: {error}"))?;
        let mut bpftrace = Self(child);
        let begun = Instant::now();
        let processors = std::thread::available_parallelism()?.get();
        while bpftrace.perf_events() < PROBES + processors {
            if bpftrace.0.try_wait()?.is_some() || begun.elapsed() > LONGEST_START {
                return Err(last_words(&says).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(bpftrace)
    }

    /// Number of open perf events.
    fn perf_events(&self) -> usize {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.0.id()));
        let links =
            descriptors.into_iter().flatten().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| link.as_os_str() == "anon_inode:[perf_event]").count()
    }
}

fn last_words(log: &PathBuf) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = said.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
    format!("bpftrace exited or did not attach: {}", lines.into_iter().rev().collect::<Vec<_>>().join("; "))
}

impl AtWork for Bpftrace {}

impl Drop for Bpftrace {
    fn drop(&mut self) {
        // After SIGINT, it would print its maps.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
