//! State of the watched processes, saved for the next daemon, so that neither growth over days nor back-offs start afresh
//! when it is restarted, upgraded or killed. Findings are in the history.
//!
//! In: the state of processes, at intervals and at each profile. Out: at the next start, the state of those that still run.
//! The file consists of lines with checksums and is replaced as a whole, so its lines are of one instant.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::decide::SavedCase;
use super::history::Error;
use super::watch::{Watched, program};
use crate::processes::Pid;
use crate::store::Journal;

/// File name in the state directory.
const FILE: &str = "watched";
/// Maximum number of saved processes, of at most 10 KiB each.
const MAX_PROCESSES: usize = 4096;
/// The kernel's boot ID: PIDs, start times and times since boot are meaningless after a reboot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Saved state of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedProcess {
    pid: u32,
    start_time: u64,
    exe: String,
    past: SavedCase,
}

/// State saved by an earlier daemon, by PID and start time.
pub type SavedProcesses = BTreeMap<(Pid, u64), SavedProcess>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Boot(String),
    Process(Box<SavedProcess>),
}

/// The file with the saved state.
#[derive(Debug)]
pub struct Handover {
    directory: PathBuf,
    journal: Journal,
    boot: String,
    has_failed: bool,
}

impl SavedProcess {
    /// Snapshot of a watched process.
    #[must_use]
    pub fn of(watched: &Watched) -> Self {
        Self {
            pid: watched.process.pid.number().get(),
            start_time: watched.process.start_time,
            exe: program(&watched.process.exe).to_string_lossy().into_owned(),
            past: watched.case.saved(),
        }
    }

    /// The saved state, if it is of this program.
    #[must_use]
    pub fn of_program(self, exe: &Path) -> Option<SavedCase> {
        // The earlier daemon may have saved the path with the kernel's "(deleted)".
        let is_same = program(self.exe.as_ref()).to_string_lossy() == program(exe).to_string_lossy();
        is_same.then_some(self.past)
    }
}

impl Handover {
    /// Opens the file in the state directory; returns the state saved by an earlier daemon.
    pub fn open(directory: &Path) -> Result<(Self, SavedProcesses), Error> {
        // Without a boot ID, nothing is restored or saved: the next daemon could not tell reboots.
        let boot = fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned();
        Self::open_at(directory, boot)
    }

    fn open_at(directory: &Path, boot: String) -> Result<(Self, SavedProcesses), Error> {
        let path = directory.join(FILE);
        let opened = Journal::open(&path).or_else(|error| {
            tracing::warn!("cannot read the previous daemon's state, starting without it: {error}");
            // If this is not a file, opening it again reports that.
            let _ = fs::remove_file(&path);
            Journal::open(&path)
        });
        let (journal, found) =
            opened.map_err(|source| Error::State { what: "open", path: path.clone(), source })?;
        if found.damaged > 0 {
            tracing::warn!("the saved state of {} processes is damaged, and ignored", found.damaged);
        }
        let saved = of_this_boot(found.records, &boot);
        Ok((Self { directory: directory.to_owned(), journal, boot, has_failed: false }, saved))
    }

    /// Replaces the saved state.
    pub fn write(&mut self, left: Vec<SavedProcess>) {
        if self.boot.is_empty() {
            return;
        }
        let boot = Line::Boot(self.boot.clone());
        let lines: Vec<_> = std::iter::once(boot)
            .chain(left.into_iter().take(MAX_PROCESSES).map(|left| Line::Process(Box::new(left))))
            .collect();
        // The directory may have been removed while the daemon runs.
        let made = fs::create_dir_all(&self.directory).map_err(|error| error.to_string());
        let written = made.and_then(|()| {
            self.journal.rewrite(lines.iter()).map_err(|error| crate::error_chain::chain(&error))
        });
        if let (Err(error), false) = (&written, self.has_failed) {
            tracing::warn!("cannot save growth and back-offs for the next daemon: {error}");
        }
        self.has_failed = written.is_err();
    }
}

/// Selects the saved processes, if they are from this boot.
fn of_this_boot(lines: Vec<Line>, boot: &str) -> SavedProcesses {
    let is_this_boot = matches!(lines.first(), Some(Line::Boot(left)) if left == boot && !boot.is_empty());
    let left = lines.into_iter().filter_map(|line| match line {
        Line::Process(left) if is_this_boot => Some(((Pid::new(left.pid)?, left.start_time), *left)),
        Line::Process(_) | Line::Boot(_) => None,
    });
    left.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::daemon::decide::Case;

    fn left(pid: u32) -> SavedProcess {
        let past = Case::new(Duration::from_secs(90), Duration::ZERO).saved();
        SavedProcess { pid, start_time: 7, exe: "/usr/bin/java".to_owned(), past }
    }

    fn open(folder: &Path, boot: &str) -> (Handover, Vec<SavedProcess>) {
        let (handover, saved) = Handover::open_at(folder, boot.to_owned()).unwrap();
        (handover, saved.into_values().collect())
    }

    #[test]
    fn the_last_saved_state_is_restored_after_a_restart_but_not_after_a_reboot() {
        let folder = tempfile::tempdir().unwrap();
        let (mut first, nothing) = open(folder.path(), "boot");
        assert_eq!(nothing, []);
        first.write(vec![left(1), left(2)]);
        first.write(vec![left(2), left(3)]);
        assert_eq!(open(folder.path(), "boot").1, [left(2), left(3)]);
        assert_eq!(open(folder.path(), "another boot").1, []);
        assert!(left(2).of_program("/usr/bin/java".as_ref()).is_some());
        assert!(left(2).of_program("/usr/bin/java (deleted)".as_ref()).is_some());
        let upgraded = SavedProcess { exe: "/usr/bin/java (deleted)".to_owned(), ..left(2) };
        assert!(upgraded.of_program("/usr/bin/java".as_ref()).is_some());
        assert!(left(2).of_program("/usr/bin/perl".as_ref()).is_none());
    }

    #[test]
    fn damage_loses_only_the_processes_it_affects() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path(), "boot").0.write(vec![left(1), left(2)]);
        let path = folder.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let found = open(folder.path(), "boot").1;
            assert!(found.iter().all(|found| [left(1), left(2)].contains(found)), "{at}");
            fs::write(&path, &whole[..at]).unwrap();
            open(folder.path(), "boot");
        }
    }

    #[test]
    fn a_removed_directory_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("state");
        fs::create_dir(&directory).unwrap();
        let (mut handover, _) = open(&directory, "boot");
        fs::remove_dir_all(&directory).unwrap();
        handover.write(vec![left(1)]);
        assert_eq!(open(&directory, "boot").1, [left(1)]);
    }
}
