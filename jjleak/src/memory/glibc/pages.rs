//! State of a process's pages: `/proc/PID/pagemap`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::processes::Pid;

/// Size of a page on x86-64.
pub(super) const PAGE: u64 = 4096;

/// Entries per read of `pagemap`: 64 KiB, which stays in a core's cache.
const PIECE: usize = 8192;
/// Bits of an entry (`Documentation/admin-guide/mm/pagemap.rst`).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// State of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// Never touched, or given back: reading it would fault it in.
    Absent,
    /// In memory.
    Resident,
    /// In swap: reading it would bring it back.
    Swapped,
}

/// Knows which pages can be read without a page fault.
pub trait Pages {
    /// Appends the states of the pages that a range of addresses touches.
    fn states(&self, range: Range<u64>, into: &mut Vec<PageState>) -> io::Result<()>;
}

/// Pages of a running process.
#[derive(Debug)]
pub struct ProcessPages(File);

impl ProcessPages {
    /// Opens the page map of a process.
    pub fn open(pid: Pid) -> io::Result<Self> {
        File::open(pid.proc_file("pagemap")).map(Self)
    }
}

impl Pages for ProcessPages {
    fn states(&self, range: Range<u64>, into: &mut Vec<PageState>) -> io::Result<()> {
        let mut at = range.start / PAGE;
        let last = range.end.div_ceil(PAGE);
        let most = usize::try_from(last.saturating_sub(at)).unwrap_or(PIECE).min(PIECE);
        let mut bytes = vec![0; most * 8];
        while at < last {
            let count = usize::try_from(last - at).unwrap_or(PIECE).min(PIECE);
            let entries = &mut bytes[..count * 8];
            self.0.read_exact_at(entries, at * 8)?;
            into.extend(entries.as_chunks().0.iter().map(|entry| state(u64::from_le_bytes(*entry))));
            at += count as u64;
        }
        Ok(())
    }
}

const fn state(entry: u64) -> PageState {
    if entry & PRESENT != 0 {
        PageState::Resident
    } else if entry & SWAPPED != 0 {
        PageState::Swapped
    } else {
        PageState::Absent
    }
}

/// States of the pages of one range.
#[derive(Debug)]
pub(super) struct Residency {
    /// Address of the first page.
    start: u64,
    states: Vec<PageState>,
}

/// Bytes of a range by the state of their pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ByState {
    pub(super) resident: u64,
    pub(super) absent: u64,
    pub(super) swapped: u64,
}

impl Residency {
    pub(super) fn of(pages: &impl Pages, range: Range<u64>) -> io::Result<Self> {
        let start = range.start & !(PAGE - 1);
        let mut states = Vec::new();
        pages.states(start..range.end, &mut states)?;
        Ok(Self { start, states })
    }

    /// State of the page of an address; absent outside of the range.
    pub(super) fn at(&self, address: u64) -> PageState {
        let index = address.checked_sub(self.start).and_then(|offset| usize::try_from(offset / PAGE).ok());
        index.and_then(|index| self.states.get(index)).copied().unwrap_or(PageState::Absent)
    }

    /// Number of bytes from an address on, at most `wanted`, that are resident without a gap.
    pub(super) fn readable(&self, address: u64, wanted: u64) -> u64 {
        let mut length = 0;
        while length < wanted && self.at(address + length) == PageState::Resident {
            length = ((address + length) & !(PAGE - 1)) + PAGE - address;
        }
        length.min(wanted)
    }

    /// Bytes of a range by the state of their pages.
    pub(super) fn count(&self, range: Range<u64>) -> ByState {
        let mut bytes = ByState::default();
        let mut at = range.start;
        while at < range.end {
            let next = ((at & !(PAGE - 1)) + PAGE).min(range.end);
            let sum = match self.at(at) {
                PageState::Resident => &mut bytes.resident,
                PageState::Absent => &mut bytes.absent,
                PageState::Swapped => &mut bytes.swapped,
            };
            *sum += next - at;
            at = next;
        }
        bytes
    }
}
