//! Scan of a process: reads `/proc`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

use super::glibc::ProcessPages;
use super::{Area, Claim, Kind, Row, parse_smaps, rows};
use crate::processes::{Error, Pid};

/// Maximum length of `smaps`: 65,530 mappings (the default of `vm.max_map_count`) with about 1 KiB each.
const MAX_SMAPS_BYTES: u64 = 128 << 20;
/// ESRCH: the process has released its memory.
const NO_SUCH_PROCESS: i32 = 3;

/// Resident memory of a process at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// Resident bytes: the sum of the rows.
    pub resident: u64,
    /// Resident bytes, each page divided by the number of processes that map it.
    pub proportional: u64,
    /// Bytes in swap.
    pub swapped: u64,
    /// Uses, the largest first.
    pub rows: Vec<Row>,
}

impl Scan {
    /// Scans a process. Makes none of its pages resident.
    ///
    /// # Errors
    ///
    /// The process has ended, has no memory of its own, or must not be read.
    pub fn of(pid: Pid, claims: &[Claim]) -> Result<Self, Error> {
        let areas = areas(pid)?;
        let failed = |source| failed(pid, "pagemap", source);
        let pages = ProcessPages::open(pid).map_err(failed)?;
        let rows = rows(&areas, claims, &pages).map_err(failed)?;
        let sum = |of: fn(&Area) -> u64| areas.iter().map(of).sum();
        Ok(Self {
            resident: sum(|area| area.resident),
            proportional: sum(|area| area.proportional),
            swapped: sum(|area| area.swapped),
            rows,
        })
    }

    /// Resident bytes by kind.
    #[must_use]
    pub fn by_kind(&self) -> BTreeMap<Kind, u64> {
        let mut sums = BTreeMap::new();
        for row in &self.rows {
            *sums.entry(row.kind).or_default() += row.resident;
        }
        sums
    }
}

/// All mappings of a process.
pub(super) fn areas(pid: Pid) -> Result<Vec<Area>, Error> {
    let failed = |source| failed(pid, "smaps", source);
    let mut text = Vec::new();
    let file = File::open(pid.proc_file("smaps")).map_err(failed)?;
    file.take(MAX_SMAPS_BYTES + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_SMAPS_BYTES {
        return Err(Error::TooLong { path: pid.proc_file("smaps"), most: MAX_SMAPS_BYTES });
    }
    if text.is_empty() {
        return Err(Error::NoProgram(pid));
    }
    let text = String::from_utf8_lossy(&text);
    parse_smaps(&text)
        .map_err(|line| Error::Malformed { path: pid.proc_file("smaps"), line: line.to_owned() })
}

fn failed(pid: Pid, file: &str, source: io::Error) -> Error {
    match (source.kind(), source.raw_os_error()) {
        (io::ErrorKind::NotFound, _) | (_, Some(NO_SUCH_PROCESS)) => Error::Gone(pid),
        _ => Error::Read { path: pid.proc_file(file), source },
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn rows_add_up_to_the_resident_memory_of_a_process() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let scan = Scan::of(Pid::new(child.id()).unwrap(), &[]);
        drop(child.stdin.take());
        child.wait().unwrap();
        let scan = scan.unwrap();
        assert!(scan.resident > 0);
        assert_eq!(scan.rows.iter().map(|row| row.resident).sum::<u64>(), scan.resident);
    }

    #[test]
    fn a_process_that_has_ended_is_an_error() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(matches!(Scan::of(Pid::new(child.id()).unwrap(), &[]), Err(Error::Gone(_))));
    }
}
