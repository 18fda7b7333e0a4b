//! Memory that is read only where it is resident.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::jvm::{Memory, ProcessMemory};
use crate::processes::Pid;

const PAGE: u64 = 4096;
/// Bit of a present page (`Documentation/admin-guide/mm/pagemap.rst` in the kernel).
const PRESENT: u64 = 1 << 63;
/// Number of pages whose state is read at a time.
const STRETCH: u64 = 64;
/// Size of their entries, of eight bytes each.
const STRETCH_BYTES: usize = 512;
/// Maximum number of stretches kept.
const MAX_STRETCHES: usize = 4096;

/// A process's memory, of which only resident pages are read: reading another page would make it resident.
#[derive(Debug)]
pub struct PresentMemory {
    memory: ProcessMemory,
    pagemap: File,
    stretches: RefCell<HashMap<u64, u64>>,
}

impl PresentMemory {
    /// Opens the memory of a process.
    pub fn open(pid: Pid) -> io::Result<Self> {
        Ok(Self {
            memory: ProcessMemory::open(pid)?,
            pagemap: File::open(format!("/proc/{pid}/pagemap"))?,
            stretches: RefCell::default(),
        })
    }

    fn is_present(&self, page: u64) -> bool {
        let mut stretches = self.stretches.borrow_mut();
        if stretches.len() == MAX_STRETCHES {
            stretches.clear();
        }
        let present = stretches.entry(page / STRETCH).or_insert_with(|| {
            let mut entries = [0; STRETCH_BYTES];
            let at = (page / STRETCH).saturating_mul(8 * STRETCH);
            let read = self.pagemap.read_at(&mut entries, at).unwrap_or_default();
            let entries = entries[..read].as_chunks::<8>().0.iter().map(|entry| u64::from_le_bytes(*entry));
            entries.enumerate().fold(0, |bits, (at, entry)| bits | (u64::from(entry & PRESENT != 0) << at))
        });
        *present >> (page % STRETCH) & 1 == 1
    }
}

impl Memory for PresentMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let Some(last) = (into.len() as u64).checked_sub(1).and_then(|length| address.checked_add(length))
        else {
            return 0;
        };
        let absent = (address / PAGE..=last / PAGE).find(|page| !self.is_present(*page));
        let readable = absent.map_or(into.len() as u64, |page| (page * PAGE).saturating_sub(address));
        let length = usize::try_from(readable).unwrap_or(usize::MAX).min(into.len());
        self.memory.read(address, &mut into[..length])
    }
}
