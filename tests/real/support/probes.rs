//! Detects probes in a process: a probe is a breakpoint instruction in the text of a function.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::bounded::{self, LONG};
use super::ledger::Ledger;

/// Some runs of jjleak probe every process of the host. Tests that check for probes must not run at the same time.
static EVERYWHERE: RwLock<()> = RwLock::new(());

/// While this is held, no test probes processes other than its own.
pub(crate) fn quiet() -> RwLockReadGuard<'static, ()> {
    EVERYWHERE.read().unwrap_or_else(PoisonError::into_inner)
}

/// While this is held, no test checks for probes.
pub(crate) fn everywhere() -> RwLockWriteGuard<'static, ()> {
    EVERYWHERE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Number of bytes to compare of each function: more than the largest has.
const LENGTH: usize = 1024;

/// The first bytes of each allocation function in a process's memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text(Vec<(String, [u8; LENGTH])>);

impl Text {
    pub(crate) fn of(ledger: &mut Ledger) -> Self {
        Self::in_process(ledger.pid(), ledger.allocation_functions())
    }

    /// Reads those of a process with these functions.
    pub(crate) fn in_process(pid: u32, functions: Vec<(String, u64)>) -> Self {
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        let read = |(name, address)| {
            let mut bytes = [0; LENGTH];
            memory.read_exact_at(&mut bytes, address).unwrap();
            (name, bytes)
        };
        Self(functions.into_iter().map(read).collect())
    }

    /// Fails unless the process's functions are unchanged.
    pub(crate) fn assert_unchanged(&self, ledger: &mut Ledger) {
        assert_eq!(self.changed(&Self::of(ledger)), [""; 0], "probes are left in the target");
    }

    /// Names of the functions that differ.
    pub(crate) fn changed<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let pairs = self.0.iter().zip(&other.0);
        pairs.filter(|(before, after)| before != after).map(|((name, _), _)| name.as_str()).collect()
    }
}

/// Places in a process's functions that probes change.
pub(crate) struct Places {
    memory: File,
    /// Addresses, and their bytes without probes.
    places: Vec<(u64, u8)>,
}

impl Places {
    /// Differences between a process's functions without probes and with them.
    pub(crate) fn of(ledger: &mut Ledger, without: &Text, with: &Text) -> Self {
        let functions = ledger.allocation_functions();
        let texts = functions.iter().zip(without.0.iter().zip(&with.0));
        let places = texts.flat_map(|((_, address), ((_, without), (_, with)))| {
            let bytes = (*address..).zip(without.iter().zip(with));
            bytes
                .filter(|(_, (without, with))| without != with)
                .map(|(address, (without, _))| (address, *without))
        });
        // The compared ranges of functions overlap.
        let places = places.collect::<BTreeSet<_>>().into_iter().collect();
        Self { memory: File::open(format!("/proc/{}/mem", ledger.pid())).unwrap(), places }
    }

    /// Number of places.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Number of places that have a probe now.
    pub(crate) fn probed(&self) -> usize {
        let is_probed = |(address, without): &&(u64, u8)| {
            let mut byte = [0];
            self.memory.read_exact_at(&mut byte, *address).unwrap();
            byte[0] != *without
        };
        self.places.iter().filter(is_probed).count()
    }
}

/// The code of a process's files: the executable mappings of each.
pub(crate) struct Code(Vec<(String, Vec<u8>)>);

impl Code {
    /// Reads the code from the files themselves, as it is in a process without probes.
    pub(crate) fn in_files(pid: u32) -> Self {
        let read = |file: &str, _, offset, bytes: &mut [u8]| {
            File::open(file).unwrap().read_exact_at(bytes, offset).unwrap();
        };
        Self::read(pid, |_| true, read)
    }

    /// Reads the code of the selected files from the memory of a running process.
    fn in_memory(pid: u32, is_wanted: impl Fn(&str) -> bool) -> Self {
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        Self::read(pid, is_wanted, |_, start, _, bytes| memory.read_exact_at(bytes, start).unwrap())
    }

    /// Reads with a function that takes the mapped file, the address and the file offset of the mapping.
    fn read(pid: u32, is_wanted: impl Fn(&str) -> bool, read: impl Fn(&str, u64, u64, &mut [u8])) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let number = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
        let mapping = |line: &str| {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            let [range, access, offset, _, _, file] = words[..] else { return None };
            if !access.contains('x') || !file.starts_with('/') || !is_wanted(file) {
                return None;
            }
            let (start, end) = range.split_once('-').unwrap();
            let [start, end, offset] = [start, end, offset].map(number);
            let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
            // The last page can extend beyond the end of the file, and is zero there.
            let in_file = std::fs::metadata(file).unwrap().len().saturating_sub(offset);
            let length = bytes.len().min(usize::try_from(in_file).unwrap());
            read(file, start, offset, &mut bytes[..length]);
            Some((file.to_owned(), bytes))
        };
        Self(maps.lines().filter_map(mapping).collect())
    }

    /// Returns true if there are probes in a process, regardless of who placed them.
    pub(crate) fn is_probed(&self, pid: u32) -> bool {
        !self.changes_in(pid).is_empty()
    }

    /// Waits until a process has no changes against its files, except those that are in all processes.
    pub(crate) fn await_again(&self, pid: u32) {
        let mut left = BTreeSet::new();
        let is_as_before = bounded::comes(LONG, || {
            left = self.left(pid);
            left.is_empty()
        });
        assert!(is_as_before, "left in the program after {LONG:?}: {left:?}");
    }

    /// Changes that are specific to a process: those that this test process also has are in every process.
    fn left(&self, pid: u32) -> BTreeSet<(&str, usize)> {
        let in_process = self.changes_in(pid);
        if in_process.is_empty() { in_process } else { &in_process - &self.changes_in(std::process::id()) }
    }

    /// Places where the memory of a process differs from its files.
    fn changes_in(&self, pid: u32) -> BTreeSet<(&str, usize)> {
        self.differences(&Self::in_memory(pid, |file| self.0.iter().any(|(own, _)| own == file)))
    }

    /// Places where the same files differ.
    fn differences(&self, other: &Self) -> BTreeSet<(&str, usize)> {
        let of_file = |(file, own): &'_ (String, Vec<u8>)| {
            let other = other.0.iter().find(|(other, _)| other == file);
            let places = other.into_iter().flat_map(|(_, other)| own.iter().zip(other).enumerate());
            let changed = places.filter(|(_, (own, other))| own != other).map(|(at, _)| at);
            changed.collect::<Vec<_>>()
        };
        self.0
            .iter()
            .flat_map(|mapping| of_file(mapping).into_iter().map(|at| (mapping.0.as_str(), at)))
            .collect()
    }
}
