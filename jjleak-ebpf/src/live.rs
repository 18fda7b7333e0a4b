//! The table of live blocks. The protocol between writers and readers stands in `jjleak_common::live`.

use core::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};

use jjleak_common::live::{Key, LiveSet, Record, WAYS};

use crate::{
    maps::{LIVE, SPILL, live_sets_log2},
    memory::{add_u32, swap_if},
};

/// What came of an insert.
pub(crate) enum Inserted {
    /// The block is in the table.
    New,
    /// A block with the same address was in the table: its free was missed.
    Replaced,
    /// No room, neither in its set nor in the spill.
    Full,
}

/// Enters a block.
#[inline(always)]
pub(crate) fn insert(key: Key, record: &Record) -> Inserted {
    let replaced = remove(key).is_some();
    let Some(set) = LIVE.get_ptr_mut(key.set(live_sets_log2())) else { return Inserted::Full };
    let mut way = 0;
    while way < WAYS {
        // SAFETY: `way` is in bounds of the set, which is a map value.
        unsafe {
            let slot = addr_of_mut!((*set).keys[way]);
            if read_volatile(slot) == Key::EMPTY.0 && swap_if(slot, Key::EMPTY.0, Key::LOCKED.0) {
                write_volatile(addr_of_mut!((*set).times_ns[way]), record.time_ns);
                write_volatile(addr_of_mut!((*set).sizes[way]), record.size);
                write_volatile(addr_of_mut!((*set).stacks[way]), record.stack);
                write_volatile(slot, key.0);
                return outcome(replaced);
            }
        }
        way += 1;
    }
    if SPILL.insert(key.0, record, 0).is_err() {
        return Inserted::Full;
    }
    // SAFETY: points into a map value.
    unsafe { add_u32(addr_of_mut!((*set).spilled), 1) };
    outcome(replaced)
}

#[inline(always)]
fn outcome(replaced: bool) -> Inserted {
    if replaced { Inserted::Replaced } else { Inserted::New }
}

/// Takes a block out; `None` when it is not in the table.
#[inline(always)]
pub(crate) fn remove(key: Key) -> Option<Record> {
    let set = LIVE.get_ptr_mut(key.set(live_sets_log2()))?;
    let mut way = 0;
    while way < WAYS {
        // SAFETY: `way` is in bounds of the set, which is a map value.
        unsafe {
            let slot = addr_of_mut!((*set).keys[way]);
            if read_volatile(slot) == key.0 {
                let record = record(set, way);
                if swap_if(slot, key.0, Key::EMPTY.0) {
                    return Some(record);
                }
            }
        }
        way += 1;
    }
    // SAFETY: points into a map value.
    if unsafe { read_volatile(addr_of!((*set).spilled)) } == 0 { None } else { remove_spilled(key, set) }
}

/// # Safety
/// `set` is a map value and `way` in bounds.
#[inline(always)]
unsafe fn record(set: *const LiveSet, way: usize) -> Record {
    // SAFETY: as promised by the caller.
    unsafe {
        Record {
            size: read_volatile(addr_of!((*set).sizes[way])),
            time_ns: read_volatile(addr_of!((*set).times_ns[way])),
            stack: read_volatile(addr_of!((*set).stacks[way])),
            reserved: 0,
        }
    }
}

#[inline(always)]
fn remove_spilled(key: Key, set: *mut LiveSet) -> Option<Record> {
    // SAFETY: the record is copied at once; a concurrent removal of the same block makes ours fail below.
    let record = unsafe { *SPILL.get_ptr(&key.0)? };
    SPILL.remove(key.0).ok()?;
    // SAFETY: points into a map value.
    unsafe { add_u32(addr_of_mut!((*set).spilled), u32::MAX) };
    Some(record)
}
