//! Running processes.

use std::fs;

use super::{Pid, Process};

/// PIDs of all processes, including those without a program.
pub fn pids() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::new(entry.file_name().to_str()?.parse().ok()?))
}

/// All processes that run a program and are accessible.
pub fn running() -> impl Iterator<Item = Process> {
    pids().filter_map(|pid| Process::open(pid).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_runs() {
        assert!(running().any(|process| process.pid.number().get() == std::process::id()));
    }
}
