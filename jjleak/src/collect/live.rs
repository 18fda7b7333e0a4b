//! Reads the table of live blocks. The protocol with its writers is described in `jjleak_common::live`.

use std::borrow::BorrowMut;
use std::collections::{BTreeMap, BTreeSet};
use std::hint::spin_loop;
use std::ptr::{addr_of, addr_of_mut, read_volatile};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use aya::maps::{HashMap, MapData};
use jjleak_common::live::{Key, LiveSet, RESIZING, Record, WAYS};

use crate::attach::{Error, Images, Mapped, is_missing_key};

/// Number of blocks read before they are passed on. Which sets hold blocks is unpredictable; while the
/// processor recovers from a mispredicted branch, it does not work ahead on what follows.
const AT_ONCE: usize = 256;

/// The blocks of one instant, collected from the table, the spill and the log of freed blocks. A block never
/// moves between them, but it can be freed, and then be logged, after it has been read.
pub(super) struct Blocks<'a, F> {
    table: &'a Mapped<LiveSet>,
    instant_ns: u64,
    each: F,
    /// Keys of the blocks that were read, set by set.
    read: Vec<Key>,
}

impl<'a, F: FnMut(&[(Key, Record)])> Blocks<'a, F> {
    /// Reads the table, after the instant. `each` receives the blocks of the instant, many at a time.
    pub(super) fn of_table(table: &'a Mapped<LiveSet>, instant_ns: u64, each: F) -> Self {
        let mut blocks = Self { table, instant_ns, each, read: Vec::new() };
        let mut found = Vec::with_capacity(AT_ONCE + WAYS);
        for index in 0..table.len() {
            let Some(set) = table.get(index) else { break };
            if is_empty(set) {
                continue;
            }
            let ways = (0..WAYS).filter_map(|way| read_way(set, way));
            found.extend(ways.filter(|(_, record)| record.time_ns <= instant_ns));
            if found.len() >= AT_ONCE {
                blocks.take(&mut found);
            }
        }
        blocks.take(&mut found);
        blocks
    }

    fn take(&mut self, found: &mut Vec<(Key, Record)>) {
        self.read.extend(found.iter().map(|(key, _)| *key));
        (self.each)(found);
        found.clear();
    }

    /// Adds the blocks of the spill, and those freed since the instant, unless already read.
    pub(super) fn add(mut self, spilled: &[(Key, Record)], freed: &[(Key, Record)]) {
        let of_instant = spilled.iter().filter(|(_, record)| record.time_ns <= self.instant_ns);
        let mut found: Vec<_> = of_instant.map(|(key, record)| (*key, unmarked(*record))).collect();
        let freed: BTreeMap<_, _> = freed.iter().copied().collect();
        // At each address there is one block from before the instant.
        let in_spill: BTreeSet<_> =
            spilled.iter().filter(|(key, _)| freed.contains_key(key)).map(|(key, _)| *key).collect();
        let sets_log2 = self.table.len().ilog2();
        for (key, record) in freed {
            let set = key.set(sets_log2);
            let first = self.read.partition_point(|read| read.set(sets_log2) < set);
            let mut of_set = self.read[first..].iter().take_while(|read| read.set(sets_log2) == set);
            if !of_set.any(|read| *read == key) && !in_spill.contains(&key) {
                found.push((key, unmarked(record)));
            }
        }
        (self.each)(&found);
    }
}

/// The record without the mark of a running `realloc`: until that returns, the block is unchanged.
pub(super) fn unmarked(record: Record) -> Record {
    Record { stack: record.stack & !RESIZING, ..record }
}

/// Removes the blocks of images that have ended; `spilled` is the content of the spill. Other blocks come and
/// go meanwhile.
pub(super) fn remove<T: BorrowMut<MapData>>(
    table: &Mapped<LiveSet>,
    mut spill: HashMap<T, u64, Record>,
    spilled: &[(Key, Record)],
    images: &Images,
) -> Result<(), Error> {
    for index in 0..table.len() {
        let Some(set) = table.get(index) else { break };
        for way in 0..WAYS {
            // SAFETY: `set` is mapped for writing and `way` in bounds; the key is aligned, and both sides change it by
            // atomic operations alone, but for the writer that has locked it.
            let slot = unsafe { AtomicU64::from_ptr(addr_of_mut!((*set).keys[way])) };
            let key = slot.load(Ordering::Acquire);
            if is_dead(Key(key), images) {
                // If the key has changed, somebody else has removed the block.
                let _ = slot.compare_exchange(key, Key::EMPTY.0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
    for key in spilled.iter().filter(|(key, _)| is_dead(*key, images)).map(|(key, _)| key.0) {
        match spill.remove(&key) {
            Ok(()) => forget_spilled(table, Key(key)),
            Err(error) if is_missing_key(&error) => {}
            Err(error) => return Err(Error::table(error)),
        }
    }
    Ok(())
}

/// Calls `each` with the row of the stack of every block in the table. A block that is there all the time is found.
pub(super) fn stacks(table: &Mapped<LiveSet>, mut each: impl FnMut(u32)) {
    for set in (0..table.len()).filter_map(|index| table.get(index)).filter(|set| !is_empty(*set)) {
        (0..WAYS).filter_map(|way| read_way(set, way)).for_each(|(_, record)| each(record.stack));
    }
}

/// Returns whether a key is a block's whose image has ended.
fn is_dead(key: Key, images: &Images) -> bool {
    let image = key.image();
    image.generation() != 0 && !images.is_current(image)
}

/// Decrements the spill count of a block's set.
fn forget_spilled(table: &Mapped<LiveSet>, key: Key) {
    let sets_log2 = table.len().checked_ilog2().unwrap_or_default();
    if let Some(set) = table.get(key.set(sets_log2) as usize) {
        // SAFETY: `set` is mapped for writing, and the number is aligned and only changed by atomic operations.
        unsafe { AtomicU32::from_ptr(addr_of_mut!((*set).spilled)) }.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether a set is empty.
fn is_empty(set: *const LiveSet) -> bool {
    // SAFETY: `set` is valid for reads (`Mapped::get`).
    let keys = (0..WAYS).map(|way| unsafe { read_volatile(addr_of!((*set).keys[way])) });
    keys.fold(0, |all, key| all | key) == Key::EMPTY.0
}

/// Reads a way of a set; `None` if it is empty. Retries if a writer interfered.
fn read_way(set: *const LiveSet, way: usize) -> Option<(Key, Record)> {
    // A write takes well under a microsecond; a way that changes all the time holds short-lived blocks.
    const ATTEMPTS: usize = 100;
    // SAFETY: `set` is valid for reads (`Mapped::get`) and `way` in bounds. The fences keep the order of the
    // reads; on x86-64 the processor keeps it by itself.
    unsafe {
        for _ in 0..ATTEMPTS {
            let key = Key(read_volatile(addr_of!((*set).keys[way])));
            if key == Key::EMPTY {
                return None;
            }
            if key == Key::LOCKED {
                spin_loop();
                continue;
            }
            fence(Ordering::Acquire);
            let time_ns = read_volatile(addr_of!((*set).times_ns[way]));
            fence(Ordering::Acquire);
            let size = read_volatile(addr_of!((*set).sizes[way]));
            let stack = read_volatile(addr_of!((*set).stacks[way]));
            fence(Ordering::Acquire);
            let same_time = read_volatile(addr_of!((*set).times_ns[way])) == time_ns;
            if same_time && read_volatile(addr_of!((*set).keys[way])) == key.0 {
                return Some((key, unmarked(Record { size, time_ns, stack, reserved: 0 })));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_occupied_ways_are_read() {
        let set = LiveSet {
            keys: [Key::EMPTY.0, Key::LOCKED.0, 0x0001_0000_5555_0000, 0],
            sizes: [1, 2, 3, 4],
            times_ns: [10, 20, 30, 40],
            stacks: [5, 6, 7 | RESIZING, 8],
            spilled: 0,
            reserved: [0; 3],
        };
        let found: Vec<_> = (0..WAYS).filter_map(|way| read_way(&raw const set, way)).collect();
        let expected = Record { size: 3, time_ns: 30, stack: 7, reserved: 0 };
        assert_eq!(found, [(Key(0x0001_0000_5555_0000), expected)]);
    }
}
