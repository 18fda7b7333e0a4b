//! Whether probes are in a process: a probe is a breakpoint instruction in the text of a function.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::ledger::Ledger;

/// Some runs of jjleak put probes into every process of the host. Tests that look for probes wait for them.
static EVERYWHERE: RwLock<()> = RwLock::new(());

/// While this is held, no test puts probes into processes that are not its own.
pub(crate) fn quiet() -> RwLockReadGuard<'static, ()> {
    EVERYWHERE.read().unwrap_or_else(PoisonError::into_inner)
}

/// While this is held, no test looks for probes.
pub(crate) fn everywhere() -> RwLockWriteGuard<'static, ()> {
    EVERYWHERE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that are compared of each function: more than the largest has.
const LENGTH: usize = 1024;

/// The first bytes of each allocation function, as they are in a process's memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text(Vec<(String, [u8; LENGTH])>);

impl Text {
    pub(crate) fn of(ledger: &mut Ledger) -> Self {
        Self::in_process(ledger.pid(), ledger.allocation_functions())
    }

    /// Those of a process whose functions are there.
    pub(crate) fn in_process(pid: u32, functions: Vec<(String, u64)>) -> Self {
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        let read = |(name, address)| {
            let mut bytes = [0; LENGTH];
            memory.read_exact_at(&mut bytes, address).unwrap();
            (name, bytes)
        };
        Self(functions.into_iter().map(read).collect())
    }

    /// Fails unless the process's functions are what they were.
    pub(crate) fn assert_unchanged(&self, ledger: &mut Ledger) {
        assert_eq!(self.changed(&Self::of(ledger)), [""; 0], "probes are left in the target");
    }

    /// Names of the functions that differ.
    pub(crate) fn changed<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let pairs = self.0.iter().zip(&other.0);
        pairs.filter(|(before, after)| before != after).map(|((name, _), _)| name.as_str()).collect()
    }
}

/// The code of a process's files, as it is in its memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Code(Vec<(String, Vec<u8>)>);

impl Code {
    /// That of all files which a running process has mapped to execute.
    pub(crate) fn of(pid: u32) -> Self {
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let read = |line: &str| {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            let [range, access, _, _, _, file] = words[..] else { return None };
            if !access.contains('x') || !file.starts_with('/') {
                return None;
            }
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
            let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
            memory.read_exact_at(&mut bytes, start).unwrap();
            Some((file.to_owned(), bytes))
        };
        Self(maps.lines().filter_map(read).collect())
    }
}
