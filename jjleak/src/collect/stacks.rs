//! Reads the stack table and the frame storage.

use std::collections::BTreeMap;
use std::ptr::{addr_of, read_volatile};
use std::sync::atomic::{Ordering, fence};

use jjleak_common::process::ImageId;
use jjleak_common::stack::{FRAME_WORDS, FrameStorage, LOST_ROW, MAX_FRAMES, StackRow, StackStatus};

use super::{RawStack, StackUse};
use crate::attach::Mapped;

/// Every row of an image that is in use. The row of lost stacks is everybody's.
pub(super) fn read(table: &Mapped<StackRow>, image: ImageId) -> BTreeMap<u32, StackUse> {
    let rows = (0u32..).zip(0..table.len());
    rows.filter_map(|(row, index)| Some((row, used(table.get(index)?, row, image)?))).collect()
}

fn used(row: *const StackRow, index: u32, image: ImageId) -> Option<StackUse> {
    // SAFETY: `row` is valid for reads (`Mapped::get`).
    let (hash, allocated_objects, allocated_bytes) = unsafe {
        (
            read_volatile(addr_of!((*row).hash)),
            read_volatile(addr_of!((*row).allocated_objects)),
            read_volatile(addr_of!((*row).allocated_bytes)),
        )
    };
    // SAFETY: as above.
    let of_image = index == LOST_ROW || unsafe { read_volatile(addr_of!((*row).image)) } == image.0;
    (of_image && allocated_objects != 0).then(|| StackUse {
        hash,
        allocated_objects,
        allocated_bytes,
        ..StackUse::default()
    })
}

/// The addresses of the stack in a row; `None` when they were not kept or are just being written.
pub(super) fn addresses(
    table: &Mapped<StackRow>,
    storage: &Mapped<FrameStorage>,
    row: u32,
) -> Option<RawStack> {
    if row == LOST_ROW {
        return None;
    }
    let (row, storage) = (table.get(row as usize)?, storage.get(0)?);
    // SAFETY: both are valid for reads (`Mapped::get`); the frames' range is checked against the storage.
    unsafe {
        if read_volatile(addr_of!((*row).ready)) == 0 {
            return None;
        }
        fence(Ordering::Acquire);
        let start = read_volatile(addr_of!((*row).frames_at)) as usize;
        let count = usize::from(read_volatile(addr_of!((*row).frame_count)));
        let status = StackStatus::from_number(read_volatile(addr_of!((*row).status)))?;
        if count > MAX_FRAMES || start > FRAME_WORDS - count {
            return None;
        }
        let words = addr_of!((*storage).words).cast::<u64>();
        let addresses = (start..start + count).map(|index| read_volatile(words.add(index))).collect();
        Some(RawStack { status, addresses })
    }
}
