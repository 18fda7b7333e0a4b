//! Reads the stack table.

use std::collections::BTreeSet;
use std::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};
use std::sync::atomic::{Ordering, fence};

use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::sampling::Sampling;
use jjleak_common::stack::{FIRST_ROW, StackHash, StackRow, StackTotals, StackUsage, lost_row};
use jjleak_common::unwind::layer;

use super::stack_table::StackTable;
use super::usage;
use crate::attach::{Images, Mapped};
use crate::fast_map::FastMap;
use crate::snapshot::sums::rounded;
use crate::snapshot::{Allocated, LiveBlocks, RawStack, StackUse};

/// All used rows of each of these images, in order; `expected` in each. Ten thousand take megabytes, and vectors that grow again and again
/// cost milliseconds.
pub(super) fn read(
    table: &StackTable,
    images: &[ImageId],
    sampling: Sampling,
    expected: usize,
) -> Vec<Vec<(u32, StackUse)>> {
    let lost = |image: &ImageId| {
        let lost = lost_row(image.slot());
        table.get(lost).and_then(|row| Some((lost, used(row, sampling)?)))
    };
    let places: FastMap<_, _> =
        images.iter().zip(0..).map(|(image, place): (_, usize)| (image, place)).collect();
    let of_image = |image| {
        let mut stacks = Vec::with_capacity(expected);
        stacks.extend(lost(image));
        stacks
    };
    let mut stacks: Vec<_> = images.iter().map(of_image).collect();
    for (index, row) in rows(table) {
        // SAFETY: `row` is valid for reads (`StackTable::get`).
        let image = ImageId(unsafe { read_volatile(addr_of!((*row).image)) });
        if image.generation() != 0
            && let Some(place) = places.get(&image)
            && let Some(used) = used(row, sampling)
        {
            stacks[*place].push((index, used));
        }
    }
    stacks
}

/// Clears the rows of images that have ended, and returns them.
pub(super) fn remove(table: &StackTable, usage: &Mapped<StackUsage>, images: &Images) -> BTreeSet<u32> {
    let mut removed = BTreeSet::new();
    for (index, row) in rows(table) {
        // SAFETY: `row` is valid for reads (`StackTable::get`).
        let image = ImageId(unsafe { read_volatile(addr_of!((*row).image)) });
        // A row without an image is free, or being claimed.
        if image.generation() != 0 && !images.is_current(image) {
            empty(row);
            usage::add_emptied(usage, image.slot());
            removed.insert(index);
        }
    }
    removed
}

/// A used row, as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UsedRow {
    pub(super) row: u32,
    pub(super) hash: u64,
    pub(super) image: ImageId,
    /// In the kernel side's unit.
    pub(super) allocated: Allocated,
}

/// All used rows, apart from those that are being claimed.
pub(super) fn used_rows(table: &StackTable) -> impl Iterator<Item = UsedRow> {
    rows(table).filter_map(|(index, row)| {
        // SAFETY: `row` is valid for reads (`StackTable::get`).
        let image = ImageId(unsafe { read_volatile(addr_of!((*row).image)) });
        (image.generation() != 0).then(|| UsedRow {
            row: index,
            hash: hash(table, index),
            image,
            allocated: allocated_of(row),
        })
    })
}

/// What was allocated from the stack in a row, in the kernel side's unit.
pub(super) fn allocated_in(table: &StackTable, row: u32) -> Allocated {
    table.get(row).map_or(Allocated::default(), |row| allocated_of(row))
}

fn allocated_of(row: *const StackRow) -> Allocated {
    // SAFETY: `row` is valid for reads (`StackTable::get`).
    unsafe {
        Allocated {
            objects: read_volatile(addr_of!((*row).allocated_objects)),
            bytes: read_volatile(addr_of!((*row).allocated_bytes)),
        }
    }
}

/// Sets the hash of a used row: [`EVICTED`](jjleak_common::stack::EVICTED), or the one that it had before.
pub(super) fn set_hash(table: &StackTable, row: u32, hash: u64) {
    if let Some(row) = table.get(row) {
        // SAFETY: mapped for writing. The kernel side changes only the hashes of free rows.
        unsafe { write_volatile(addr_of_mut!((*row).hash), hash) };
    }
}

/// Frees the row of an evicted stack.
pub(super) fn free(table: &StackTable, row: u32) {
    if let Some(row) = table.get(row) {
        empty(row);
    }
}

/// Clears the row of allocations without a stack.
pub(super) fn reset_lost(table: &StackTable, slot: ProcessSlot) {
    if let Some(row) = table.get(lost_row(slot)) {
        empty(row);
    }
}

/// Identity of the stack in a row; 0 if there is none.
pub(super) fn hash(table: &StackTable, row: u32) -> u64 {
    let row = table.get(row);
    // SAFETY: `row` is valid for reads (`StackTable::get`).
    row.map_or(0, |row| unsafe { read_volatile(addr_of!((*row).hash)) })
}

/// Identity of a stack with these frames, as the kernel side computes it.
pub(super) fn identity(image: ImageId, stack: &RawStack, with_threads: bool) -> u64 {
    let mut hash = StackHash::new(image.0.into());
    if with_threads {
        hash = hash.push(stack.thread);
    }
    // The mappings that frames refer to are a part of the identity.
    if stack.frames.iter().any(|frame| (layer::FOUND..layer::NO_FILE).contains(&frame.layer())) {
        hash = stack.found.iter().fold(hash, |hash, found| hash.push(*found));
    }
    stack.frames.iter().fold(hash, |hash, frame| hash.push(frame.0)).finish(stack.status as u8)
}

/// The rows available to stacks.
fn rows(table: &StackTable) -> impl Iterator<Item = (u32, *mut StackRow)> {
    (FIRST_ROW..table.len()).filter_map(|row| Some((row, table.get(row)?)))
}

fn used(row: *const StackRow, sampling: Sampling) -> Option<StackUse> {
    // SAFETY: `row` is valid for reads (`StackTable::get`).
    let (hash, allocated_objects, allocated_bytes) = unsafe {
        (
            read_volatile(addr_of!((*row).hash)),
            read_volatile(addr_of!((*row).allocated_objects)),
            read_volatile(addr_of!((*row).allocated_bytes)),
        )
    };
    let used = StackUse {
        hash,
        allocated_objects: objects(allocated_objects, sampling),
        allocated_bytes,
        ..StackUse::default()
    };
    (allocated_objects != 0).then_some(used)
}

/// Objects and bytes allocated so far, by row.
pub(super) fn allocated(table: &StackTable, sampling: Sampling) -> Vec<(u64, u64)> {
    let mut all = Vec::with_capacity(table.len() as usize);
    let rows = (0..table.len()).map_while(|index| table.get(index));
    all.extend(rows.map(|row| {
        // SAFETY: `row` is valid for reads (`StackTable::get`).
        let count = unsafe { read_volatile(addr_of!((*row).allocated_objects)) };
        if count == 0 {
            return (0, 0);
        }
        // SAFETY: as above.
        (objects(count, sampling), unsafe { read_volatile(addr_of!((*row).allocated_bytes)) })
    }));
    all
}

/// Live blocks of a row, as summed by the kernel side.
pub(super) fn totals(totals: &Mapped<StackTotals>, row: u32, sampling: Sampling) -> LiveBlocks {
    let Some(totals) = totals.get(row as usize) else { return LiveBlocks::default() };
    // SAFETY: `totals` is valid for reads (`Mapped::get`).
    let StackTotals { objects: count, bytes } = unsafe { read_volatile(totals) };
    LiveBlocks { objects: objects(count, sampling), bytes, ..LiveBlocks::default() }
}

/// Returns true if the stack in a row has live blocks, as counted by the kernel side.
pub(super) fn has_live(totals: &Mapped<StackTotals>, row: u32) -> bool {
    // SAFETY: `totals` is valid for reads (`Mapped::get`).
    totals.get(row as usize).is_none_or(|totals| unsafe { read_volatile(addr_of!((*totals).objects)) } != 0)
}

/// Resets the sums of rows whose stacks are gone.
pub(super) fn reset_totals(totals: &Mapped<StackTotals>, rows: impl IntoIterator<Item = u32>) {
    for totals in rows.into_iter().filter_map(|row| totals.get(row as usize)) {
        // SAFETY: the totals are mapped for writing. No task runs that could count for them.
        unsafe { write_volatile(totals, StackTotals { objects: 0, bytes: 0 }) };
    }
}

/// Converts a count of objects from the kernel side's unit.
pub(super) fn objects(count: u64, sampling: Sampling) -> u64 {
    if sampling.is_estimate() { rounded(count) } else { count }
}

/// Frees a row for another stack. The hash goes last: by it, the kernel side recognizes a free row.
fn empty(row: *mut StackRow) {
    // SAFETY: the row is mapped for writing. Nothing runs that could count for it.
    unsafe {
        write_volatile(addr_of_mut!((*row).image), 0);
        write_volatile(addr_of_mut!((*row).allocated_objects), 0);
        write_volatile(addr_of_mut!((*row).allocated_bytes), 0);
        fence(Ordering::Release);
        write_volatile(addr_of_mut!((*row).hash), 0);
    }
}
