//! Code of the process as the tables have it when a walk begins.

use core::ptr::{addr_of, read_volatile};

use jjleak_common::{
    process::{FreedCode, ImageId, ProcessRow},
    unwind::{MappingTable, NO_MAPPINGS},
};

use super::{Walk, rows};
use crate::maps::MAPPINGS;

/// Code mappings of a process.
pub(super) struct Known {
    pub(super) mappings: *const MappingTable,
    pub(super) scope: u64,
    generation: u32,
}

impl Known {
    /// If an image's mappings are unknown or outdated, the empty table is used.
    #[inline(always)]
    pub(super) fn of(process: *const ProcessRow, image: ImageId) -> Option<Self> {
        // SAFETY: points into a map value.
        let (index, of_image, since_ns) = unsafe {
            (
                read_volatile(addr_of!((*process).mappings)),
                read_volatile(addr_of!((*process).mappings_image)),
                read_volatile(addr_of!((*process).since_ns)),
            )
        };
        let index = if of_image == image.0 as u64 { index as u32 } else { NO_MAPPINGS };
        let mut mappings = MAPPINGS.get_ptr(index)?;
        // SAFETY: both point into map values.
        let holds = unsafe { rows::changes(process).hold(&rows::seen(mappings)) };
        if !holds {
            mappings = MAPPINGS.get_ptr(NO_MAPPINGS)?;
        }
        // SAFETY: points into a map value.
        let generation = unsafe { read_volatile(addr_of!((*mappings).generation)) };
        Some(Self { mappings, scope: rows::scope(image, since_ns, generation), generation })
    }

    /// Returns true if the process's mappings, and thus the rows, have not changed since.
    #[inline(always)]
    pub(super) fn is_unchanged(&self) -> bool {
        // SAFETY: points into a map value.
        let generation = unsafe { read_volatile(addr_of!((*self.mappings).generation)) };
        generation & 1 == 0 && generation == self.generation
    }
}

/// Returns true if an address is in one of an image's known code mappings.
#[inline(never)]
pub(crate) fn is_known_code(image: ImageId, process: *const ProcessRow, address: u64) -> bool {
    let Some(known) = Known::of(process, image) else { return false };
    // SAFETY: points into a map value.
    unsafe { rows::holds(rows::mapping_at(known.mappings, address), address) }
}

/// Reads the counter of freed code into the walk. [`Known`] cannot have it: Linux 6.1 has no more room on the BPF stack.
#[inline(always)]
pub(super) fn read_freed_code(walk: &mut Walk, image: ImageId, process: *const ProcessRow) {
    // SAFETY: points into a map value.
    let freed = FreedCode(unsafe { read_volatile(addr_of!((*process).freed_code)) });
    walk.freed_code = freed.of(image).0;
}

/// Mark of all code, generated code included, for [`super::replay`].
#[inline(always)]
pub(super) fn scope_of_code(walk: &Walk, scope: u64) -> u64 {
    scope ^ walk.freed_code.wrapping_mul(0xd6e8_feb8_6659_fd93)
}
