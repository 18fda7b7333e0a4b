//! Reads the kernel side's counters.

use std::collections::BTreeMap;
use std::ptr::{read_volatile, write_volatile};

use jjleak_common::counter::{COMMON_COUNTERS, Counter, CounterRow};
use jjleak_common::process::{ImageId, ProcessSlot};

use crate::attach::Mapped;

/// All counters of an image's process, and those that belong to no process.
pub(super) fn read(rows: &Mapped<CounterRow>, image: ImageId) -> BTreeMap<Counter, u64> {
    let mut counters = of_slot(rows, image.slot());
    for (counter, value) in &mut counters {
        *value += value_of(rows, COMMON_COUNTERS as usize, *counter);
    }
    counters
}

/// All counters of a process.
pub(super) fn of_slot(rows: &Mapped<CounterRow>, slot: ProcessSlot) -> BTreeMap<Counter, u64> {
    let row = usize::from(slot.0);
    Counter::ALL.iter().map(|counter| (*counter, value_of(rows, row, *counter))).collect()
}

/// Resets a process's counters.
pub(super) fn reset(rows: &Mapped<CounterRow>, slot: ProcessSlot) {
    for counter in Counter::ALL {
        if let Some(row) = rows.get(usize::from(slot.0)) {
            // SAFETY: the row is mapped for writing, and has a place for each counter.
            unsafe { write_volatile(row.cast::<u64>().add(counter.index() as usize), 0) };
        }
    }
}

fn value_of(rows: &Mapped<CounterRow>, row: usize, counter: Counter) -> u64 {
    // SAFETY: the row is valid for reads (`Mapped::get`), and has a place for each counter.
    rows.get(row).map_or(0, |row| unsafe { read_volatile(row.cast::<u64>().add(counter.index() as usize)) })
}
