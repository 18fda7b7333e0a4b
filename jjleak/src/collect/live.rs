//! Reads the table of live blocks. The protocol with its writers stands in `jjleak_common::live`.

use std::borrow::{Borrow, BorrowMut};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::{addr_of, addr_of_mut, read_volatile};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use aya::maps::{HashMap, MapData, MapError};
use jjleak_common::live::{Key, LiveSet, Record, WAYS};
use jjleak_common::process::ImageId;

use crate::attach::{Error, Mapped};

/// Live blocks, summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveBlocks {
    /// Number of blocks.
    pub objects: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Allocation time of the oldest, in nanoseconds of `CLOCK_MONOTONIC`; 0 without blocks.
    pub oldest_ns: u64,
    /// Allocation time of the newest, likewise.
    pub newest_ns: u64,
}

impl LiveBlocks {
    /// Adds a block.
    pub fn add(&mut self, record: &Record) {
        let first = self.objects == 0;
        self.oldest_ns = if first { record.time_ns } else { self.oldest_ns.min(record.time_ns) };
        self.newest_ns = self.newest_ns.max(record.time_ns);
        self.objects += 1;
        self.bytes += record.size;
    }

    /// Adds blocks.
    pub fn merge(&mut self, other: &Self) {
        if self.objects == 0 || other.objects == 0 {
            *self = if self.objects == 0 { *other } else { *self };
            return;
        }
        self.oldest_ns = self.oldest_ns.min(other.oldest_ns);
        self.newest_ns = self.newest_ns.max(other.newest_ns);
        self.objects += other.objects;
        self.bytes += other.bytes;
    }
}

/// Every live block, once: blocks can move between table and spill while these are read.
pub(super) fn records<T: Borrow<MapData>>(
    table: &Mapped<LiveSet>,
    spill: &HashMap<T, u64, Record>,
    spill_capacity: usize,
) -> Result<Vec<(Key, Record)>, Error> {
    let mut records = Vec::new();
    for index in 0..table.len() {
        let Some(set) = table.get(index) else { break };
        records.extend((0..WAYS).filter_map(|way| read(set, way)));
    }
    let mut spilled = spilled(spill, spill_capacity)?;
    if !spilled.is_empty() {
        for (key, _) in &records {
            spilled.remove(key);
        }
        records.extend(spilled);
    }
    Ok(records)
}

/// Every block in the spill. The kernel walks the map by its keys and begins anew when the last key was freed in the
/// meantime, so that a key can come more than once; a busy spill could go on for ever.
fn spilled<T: Borrow<MapData>>(
    spill: &HashMap<T, u64, Record>,
    capacity: usize,
) -> Result<BTreeMap<Key, Record>, Error> {
    const MAX_STEPS_PER_ENTRY: usize = 4;
    let mut found = BTreeMap::new();
    for entry in spill.iter().take(capacity * MAX_STEPS_PER_ENTRY) {
        match entry {
            Ok((key, record)) => {
                found.insert(Key(key), record);
            }
            // Freed between its key and its value.
            Err(MapError::KeyNotFound) => {}
            Err(error) => return Err(Error::table(error)),
        }
    }
    Ok(found)
}

/// Takes out the blocks of images that run no more. Others come and go meanwhile.
pub(super) fn remove<T: BorrowMut<MapData>>(
    table: &Mapped<LiveSet>,
    mut spill: HashMap<T, u64, Record>,
    dead: &BTreeSet<ImageId>,
) -> Result<(), Error> {
    for index in 0..table.len() {
        let Some(set) = table.get(index) else { break };
        for way in 0..WAYS {
            // SAFETY: `set` is mapped for writing and `way` in bounds; the key is aligned, and both sides change it by
            // atomic operations alone, but for the writer that has locked it.
            let slot = unsafe { AtomicU64::from_ptr(addr_of_mut!((*set).keys[way])) };
            let key = slot.load(Ordering::Relaxed);
            if dead.contains(&Key(key).image()) {
                // When another key is there now, somebody else has taken it out.
                let _ = slot.compare_exchange(key, Key::EMPTY.0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
    let is_dead = |key: &u64| dead.contains(&Key(*key).image());
    let spilled: BTreeSet<u64> = spill.keys().filter_map(Result::ok).filter(is_dead).collect();
    for key in spilled {
        match spill.remove(&key) {
            Ok(()) => forget_spilled(table, Key(key)),
            Err(MapError::KeyNotFound) => {}
            Err(error) => return Err(Error::table(error)),
        }
    }
    Ok(())
}

/// Tells a block's set that it is no more in the spill.
fn forget_spilled(table: &Mapped<LiveSet>, key: Key) {
    let sets_log2 = table.len().checked_ilog2().unwrap_or_default();
    if let Some(set) = table.get(key.set(sets_log2) as usize) {
        // SAFETY: `set` is mapped for writing, and the number is aligned and only changed by atomic operations.
        unsafe { AtomicU32::from_ptr(addr_of_mut!((*set).spilled)) }.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One way of a set; `None` when it holds no block. Reads again when a writer got in between.
fn read(set: *const LiveSet, way: usize) -> Option<(Key, Record)> {
    // A writer is done in well under a microsecond; a way that changes all the time holds short-lived blocks.
    const ATTEMPTS: usize = 8;
    // SAFETY: `set` is valid for reads (`Mapped::get`) and `way` in bounds. The fences keep the order of the
    // reads; on x86-64 the processor keeps it by itself.
    unsafe {
        for _ in 0..ATTEMPTS {
            let key = Key(read_volatile(addr_of!((*set).keys[way])));
            if key == Key::EMPTY || key == Key::LOCKED {
                return None;
            }
            fence(Ordering::Acquire);
            let time_ns = read_volatile(addr_of!((*set).times_ns[way]));
            fence(Ordering::Acquire);
            let size = read_volatile(addr_of!((*set).sizes[way]));
            let stack = read_volatile(addr_of!((*set).stacks[way]));
            fence(Ordering::Acquire);
            let same_time = read_volatile(addr_of!((*set).times_ns[way])) == time_ns;
            if same_time && read_volatile(addr_of!((*set).keys[way])) == key.0 {
                return Some((key, Record { size, time_ns, stack, reserved: 0 }));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_sum_up_with_their_extreme_ages() {
        let mut blocks = LiveBlocks::default();
        for (size, time_ns) in [(10, 500), (20, 300), (30, 400)] {
            blocks.add(&Record { size, time_ns, stack: 1, reserved: 0 });
        }
        assert_eq!(blocks, LiveBlocks { objects: 3, bytes: 60, oldest_ns: 300, newest_ns: 500 });
    }

    #[test]
    fn only_occupied_ways_are_read() {
        let set = LiveSet {
            keys: [Key::EMPTY.0, Key::LOCKED.0, 0x0001_0000_5555_0000, 0],
            sizes: [1, 2, 3, 4],
            times_ns: [10, 20, 30, 40],
            stacks: [5, 6, 7, 8],
            spilled: 0,
            reserved: [0; 3],
        };
        let found: Vec<_> = (0..WAYS).filter_map(|way| read(&raw const set, way)).collect();
        let expected = Record { size: 3, time_ns: 30, stack: 7, reserved: 0 };
        assert_eq!(found, [(Key(0x0001_0000_5555_0000), expected)]);
    }
}
