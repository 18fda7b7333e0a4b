//! The processes that run.

use std::fs;

use super::{Pid, Process};

/// Every process that runs a program and can be looked at.
pub fn running() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Process::open(Pid::new(entry.file_name().to_str()?.parse().ok()?)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_runs() {
        assert!(running().any(|process| process.pid.number().get() == std::process::id()));
    }
}
