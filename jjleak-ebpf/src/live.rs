//! The table of live blocks. `jjleak_common::live` describes the protocol between writers and readers, and `jjleak_common::freed`
//! the record of blocks that are removed during a snapshot.

use core::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use jjleak_common::{
    counter::Counter,
    freed::{MAX_NOTES, Note},
    live::{Key, LiveSet, RESIZING, Record, WAYS},
};

use crate::{
    maps::{FREED, LIVE, SPILL, count, live_sets_log2},
    memory::{add_u32, fetch_add, swap_if},
    stack,
};

/// Placeholder for the time of a free, read only if needed, which is rare.
pub(crate) const NOW: u64 = u64::MAX;

/// Outcome of an insertion.
pub(crate) enum Inserted {
    /// The block was added.
    New,
    /// The table had a block with the same address: its free was missed.
    Replaced,
    /// Neither the set nor the spill map has space.
    Full,
}

/// Adds a block.
#[inline(always)]
pub(crate) fn insert(key: Key, record: &Record) -> Inserted {
    let Some(set) = LIVE.get_ptr_mut(key.set(live_sets_log2())) else { return Inserted::Full };
    if let Some((way, old)) = find(set, key) {
        note(key, &old, record.time_ns);
        // SAFETY: `way` is in bounds of the set, which is a map value.
        if unsafe { swap_if(addr_of_mut!((*set).keys[way]), key.0, Key::LOCKED.0) } {
            stack::discount_live(old.stack, old.size);
            fill(set, way, key, record);
            return outcome(&old);
        }
    }
    let outcome = remove_spilled(key, set, record.time_ns).map_or(Inserted::New, |old| outcome(&old));
    let mut way = 0;
    while way < WAYS {
        // SAFETY: `way` is in bounds of the set, which is a map value.
        unsafe {
            let slot = addr_of_mut!((*set).keys[way]);
            if read_volatile(slot) == Key::EMPTY.0 && swap_if(slot, Key::EMPTY.0, Key::LOCKED.0) {
                fill(set, way, key, record);
                return outcome;
            }
        }
        way += 1;
    }
    // Set first: a reader that does not see the flag can ignore blocks added from now on.
    if let Some(log) = FREED.get_ptr_mut(0) {
        // SAFETY: points into a map value.
        unsafe { write_volatile(addr_of_mut!((*log).has_spilled), 1) };
    }
    if SPILL.insert(key.0, record, 0).is_err() {
        return Inserted::Full;
    }
    // SAFETY: points into a map value.
    unsafe { add_u32(addr_of_mut!((*set).spilled), 1) };
    stack::count_live(record.stack, record.size);
    outcome
}

/// Writes a locked way.
#[inline(always)]
fn fill(set: *mut LiveSet, way: usize, key: Key, record: &Record) {
    // SAFETY: `way` is in bounds of the set, which is a map value.
    unsafe {
        write_volatile(addr_of_mut!((*set).times_ns[way]), record.time_ns);
        write_volatile(addr_of_mut!((*set).sizes[way]), record.size);
        write_volatile(addr_of_mut!((*set).stacks[way]), record.stack);
        write_volatile(addr_of_mut!((*set).keys[way]), key.0);
    }
    stack::count_live(record.stack, record.size);
}

/// Outcome if `old` had the address of the new block: either the call that resizes `old` has released the address, or its free
/// was missed.
#[inline(always)]
fn outcome(old: &Record) -> Inserted {
    if old.stack & RESIZING != 0 { Inserted::New } else { Inserted::Replaced }
}

/// Removes a block; `None` if it is not in the table.
#[inline(always)]
pub(crate) fn remove(key: Key) -> Option<Record> {
    let set = LIVE.get_ptr_mut(key.set(live_sets_log2()))?;
    if let Some((way, record)) = find(set, key) {
        if remove_way(set, way, key, &record, NOW) {
            return Some(record);
        }
    }
    remove_spilled(key, set, NOW)
}

/// Marks a block that a call begins to resize: it stays in the table until [`conclude`] or [`resume`].
#[inline(always)]
pub(crate) fn suspend(key: Key) -> Option<Record> {
    let set = LIVE.get_ptr_mut(key.set(live_sets_log2()))?;
    if let Some((way, record)) = find(set, key) {
        // SAFETY: `way` is in bounds of the set, which is a map value.
        unsafe { write_volatile(addr_of_mut!((*set).stacks[way]), record.stack | RESIZING) };
        return Some(record);
    }
    let spilled = spilled(key, set)?;
    // SAFETY: points into a map value.
    unsafe {
        let record = *spilled;
        write_volatile(addr_of_mut!((*spilled).stack), record.stack | RESIZING);
        Some(record)
    }
}

/// Unmarks a block after its resizing call has failed. Does nothing if the block has been removed meanwhile.
#[inline(always)]
pub(crate) fn resume(key: Key, old: &Record) {
    let Some(set) = LIVE.get_ptr_mut(key.set(live_sets_log2())) else { return };
    if let Some((way, record)) = find(set, key) {
        if record.time_ns == old.time_ns {
            // SAFETY: `way` is in bounds of the set, which is a map value.
            unsafe { write_volatile(addr_of_mut!((*set).stacks[way]), old.stack) };
        }
    } else if let Some(spilled) = spilled(key, set) {
        // SAFETY: points into a map value.
        unsafe {
            if (*spilled).time_ns == old.time_ns {
                write_volatile(addr_of_mut!((*spilled).stack), old.stack);
            }
        }
    }
}

/// Removes a block whose resizing call has freed it, at `end_ns`. Does nothing if the block has been removed meanwhile, even if
/// another block has its address now.
#[inline(always)]
pub(crate) fn conclude(key: Key, old: &Record, end_ns: u64) {
    let Some(set) = LIVE.get_ptr_mut(key.set(live_sets_log2())) else { return };
    if let Some((way, record)) = find(set, key) {
        if record.time_ns == old.time_ns {
            remove_same(set, way, key, &record, end_ns);
        }
    } else if let Some(spilled) = spilled(key, set) {
        // SAFETY: points into a map value.
        if unsafe { (*spilled).time_ns } == old.time_ns {
            remove_spilled(key, set, end_ns);
        }
    }
}

/// Returns true if a block is in the table, unchanged.
#[inline(always)]
pub(crate) fn holds(key: Key, old: &Record) -> bool {
    let Some(set) = LIVE.get_ptr_mut(key.set(live_sets_log2())) else { return false };
    let time_ns = match find(set, key) {
        Some((_, record)) => record.time_ns,
        None => match spilled(key, set) {
            // SAFETY: points into a map value.
            Some(spilled) => unsafe { (*spilled).time_ns },
            None => return false,
        },
    };
    time_ns == old.time_ns
}

/// Way of a block in its set, and its record.
#[inline(always)]
fn find(set: *const LiveSet, key: Key) -> Option<(usize, Record)> {
    let mut way = 0;
    while way < WAYS {
        // SAFETY: `way` is in bounds of the set, which is a map value.
        unsafe {
            if read_volatile(addr_of!((*set).keys[way])) == key.0 {
                let record = Record {
                    size: read_volatile(addr_of!((*set).sizes[way])),
                    time_ns: read_volatile(addr_of!((*set).times_ns[way])),
                    stack: read_volatile(addr_of!((*set).stacks[way])),
                    reserved: 0,
                };
                return Some((way, record));
            }
        }
        way += 1;
    }
    None
}

/// Removes a block. Returns true if it was still there.
#[inline(always)]
fn remove_way(set: *mut LiveSet, way: usize, key: Key, record: &Record, end_ns: u64) -> bool {
    note(key, record, end_ns);
    // SAFETY: `way` is in bounds of the set, which is a map value.
    let removed = unsafe { swap_if(addr_of_mut!((*set).keys[way]), key.0, Key::EMPTY.0) };
    if removed {
        stack::discount_live(record.stack, record.size);
    }
    removed
}

/// Removes a block, unless it has been removed since it was found, even if another one with its address has taken its way.
#[inline(always)]
fn remove_same(set: *mut LiveSet, way: usize, key: Key, record: &Record, end_ns: u64) {
    note(key, record, end_ns);
    // SAFETY: `way` is in bounds of the set, which is a map value.
    unsafe {
        let slot = addr_of_mut!((*set).keys[way]);
        if !swap_if(slot, key.0, Key::LOCKED.0) {
            return;
        }
        // Nobody writes a locked way.
        let is_same = read_volatile(addr_of!((*set).times_ns[way])) == record.time_ns;
        write_volatile(slot, if is_same { Key::EMPTY.0 } else { key.0 });
        if is_same {
            stack::discount_live(record.stack, record.size);
        }
    }
}

/// A block in the spill map.
#[inline(always)]
fn spilled(key: Key, set: *const LiveSet) -> Option<*mut Record> {
    // SAFETY: points into a map value.
    if unsafe { read_volatile(addr_of!((*set).spilled)) } == 0 { None } else { SPILL.get_ptr_mut(&key.0) }
}

#[inline(always)]
fn remove_spilled(key: Key, set: *mut LiveSet, end_ns: u64) -> Option<Record> {
    // SAFETY: the record is copied at once; after a concurrent removal of the same block, the removal below fails.
    let record = unsafe { *spilled(key, set)? };
    note(key, &record, end_ns);
    SPILL.remove(key.0).ok()?;
    // SAFETY: points into a map value.
    unsafe { add_u32(addr_of_mut!((*set).spilled), u32::MAX) };
    stack::discount_live(record.stack, record.size);
    Some(record)
}

/// Keeps a block that is about to be removed for the snapshot in progress, if the block was live at its instant.
#[inline(always)]
fn note(key: Key, record: &Record, end_ns: u64) {
    let Some(log) = FREED.get_ptr_mut(0) else { return };
    // SAFETY: points into a map value, and the index is in bounds.
    unsafe {
        let instant_ns = read_volatile(addr_of!((*log).instant_ns));
        if instant_ns == 0 || record.time_ns > instant_ns {
            return;
        }
        let end_ns = if end_ns == NOW { bpf_ktime_get_ns() } else { end_ns };
        if end_ns <= instant_ns {
            return;
        }
        let index = fetch_add(addr_of_mut!((*log).begun), 1);
        if index >= MAX_NOTES as u64 {
            count(key.image().slot(), Counter::SnapshotTorn);
            return;
        }
        let note = addr_of_mut!((*log).notes[index as usize]);
        write_volatile(addr_of_mut!((*note).key), key.0);
        write_volatile(addr_of_mut!((*note).record.size), record.size);
        write_volatile(addr_of_mut!((*note).record.time_ns), record.time_ns);
        write_volatile(addr_of_mut!((*note).record.stack), record.stack);
        write_volatile(addr_of_mut!((*note).record.reserved), 0);
        write_volatile(addr_of_mut!((*note).seal), Note::seal_of(key.0, record, instant_ns));
    }
}
