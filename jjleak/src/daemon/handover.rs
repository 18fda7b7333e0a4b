//! What a daemon leaves to the next one: the past of the processes that it watches, so that neither growth over days nor
//! back-offs begin anew when it is restarted, upgraded or killed. What was found is in the history.
//!
//! In: what is known of processes, now and then and around every profile. Out: at the next start, what is known of those that
//! still run. A file of lines with checksums, replaced as a whole: one that is there is of one instant.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::decide::Past;
use super::history::Error;
use super::watch::{Watched, program};
use crate::processes::Pid;
use crate::store::Journal;

/// In the state directory.
const FILE: &str = "watched";
/// Processes whose past is kept; 10 KiB each at most.
const MAX_PROCESSES: usize = 4096;
/// The kernel's name of the time since the host was started: PIDs, start times and instants mean nothing to another.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A process and its past.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Left {
    pid: u32,
    start_time: u64,
    exe: String,
    past: Past,
}

/// What another daemon has left, by process.
pub type Inheritance = BTreeMap<(Pid, u64), Left>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Boot(String),
    Process(Box<Left>),
}

/// The file.
#[derive(Debug)]
pub struct Handover {
    directory: PathBuf,
    journal: Journal,
    boot: String,
    has_failed: bool,
}

impl Left {
    /// What is known of a process.
    #[must_use]
    pub fn of(watched: &Watched) -> Self {
        Self {
            pid: watched.process.pid.number().get(),
            start_time: watched.process.start_time,
            exe: program(&watched.process.exe).to_string_lossy().into_owned(),
            past: watched.case.past(),
        }
    }

    /// Its past, if it is the one of this program.
    #[must_use]
    pub fn of_program(self, exe: &Path) -> Option<Past> {
        // Another daemon may have noted what the kernel said.
        let is_same = program(self.exe.as_ref()).to_string_lossy() == program(exe).to_string_lossy();
        is_same.then_some(self.past)
    }
}

impl Handover {
    /// Opens what another daemon has left in the state directory.
    pub fn open(directory: &Path) -> Result<(Self, Inheritance), Error> {
        // Without it, nothing is inherited, and nothing left: the next daemon cannot tell of which start of the host that is.
        let boot = fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned();
        Self::open_at(directory, boot)
    }

    fn open_at(directory: &Path, boot: String) -> Result<(Self, Inheritance), Error> {
        let path = directory.join(FILE);
        let opened = Journal::open(&path).or_else(|error| {
            tracing::warn!("what another daemon has left cannot be read, and processes begin anew: {error}");
            // What is no file stays, and is told of.
            let _ = fs::remove_file(&path);
            Journal::open(&path)
        });
        let (journal, found) =
            opened.map_err(|source| Error::State { what: "opening", path: path.clone(), source })?;
        if found.damaged > 0 {
            tracing::warn!(
                "of what another daemon has left, {} processes are damaged, and begin anew",
                found.damaged
            );
        }
        let inheritance = inherited(found.records, &boot);
        Ok((Self { directory: directory.to_owned(), journal, boot, has_failed: false }, inheritance))
    }

    /// Leaves this to the next daemon, instead of what was left before.
    pub fn write(&mut self, left: Vec<Left>) {
        if self.boot.is_empty() {
            return;
        }
        let boot = Line::Boot(self.boot.clone());
        let lines: Vec<_> = std::iter::once(boot)
            .chain(left.into_iter().take(MAX_PROCESSES).map(|left| Line::Process(Box::new(left))))
            .collect();
        // Whoever removed the directory has not asked.
        let made = fs::create_dir_all(&self.directory).map_err(|error| error.to_string());
        let written =
            made.and_then(|()| self.journal.rewrite(lines.iter()).map_err(|error| crate::cli::chain(&error)));
        if let (Err(error), false) = (&written, self.has_failed) {
            tracing::warn!("growth and back-offs cannot be kept for the next daemon: {error}");
        }
        self.has_failed = written.is_err();
    }
}

/// Of what was left, that of the same start of the host.
fn inherited(lines: Vec<Line>, boot: &str) -> Inheritance {
    let is_of_now = matches!(lines.first(), Some(Line::Boot(left)) if left == boot && !boot.is_empty());
    let left = lines.into_iter().filter_map(|line| match line {
        Line::Process(left) if is_of_now => Some(((Pid::new(left.pid)?, left.start_time), *left)),
        Line::Process(_) | Line::Boot(_) => None,
    });
    left.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::daemon::decide::Case;

    fn left(pid: u32) -> Left {
        let past = Case::new(Duration::from_secs(90), Duration::ZERO).past();
        Left { pid, start_time: 7, exe: "/usr/bin/java".to_owned(), past }
    }

    fn open(folder: &Path, boot: &str) -> (Handover, Vec<Left>) {
        let (handover, inheritance) = Handover::open_at(folder, boot.to_owned()).unwrap();
        (handover, inheritance.into_values().collect())
    }

    #[test]
    fn what_is_left_last_is_inherited_by_daemons_of_the_same_start_of_the_host() {
        let folder = tempfile::tempdir().unwrap();
        let (mut first, nothing) = open(folder.path(), "boot");
        assert_eq!(nothing, []);
        first.write(vec![left(1), left(2)]);
        first.write(vec![left(2), left(3)]);
        assert_eq!(open(folder.path(), "boot").1, [left(2), left(3)]);
        assert_eq!(open(folder.path(), "another boot").1, []);
        assert!(left(2).of_program("/usr/bin/java".as_ref()).is_some());
        assert!(left(2).of_program("/usr/bin/java (deleted)".as_ref()).is_some());
        let upgraded = Left { exe: "/usr/bin/java (deleted)".to_owned(), ..left(2) };
        assert!(upgraded.of_program("/usr/bin/java".as_ref()).is_some());
        assert!(left(2).of_program("/usr/bin/perl".as_ref()).is_none());
    }

    #[test]
    fn what_is_damaged_anywhere_costs_the_past_of_what_is_there_and_no_more() {
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
    fn a_directory_that_was_removed_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("state");
        fs::create_dir(&directory).unwrap();
        let (mut handover, _) = open(&directory, "boot");
        fs::remove_dir_all(&directory).unwrap();
        handover.write(vec![left(1)]);
        assert_eq!(open(&directory, "boot").1, [left(1)]);
    }
}
