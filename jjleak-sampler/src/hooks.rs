//! Functions for allocators that are no [`GlobalAlloc`](std::alloc::GlobalAlloc), to be called at each allocation and free.
//!
//! After an allocation: [`allocated`] if [`are_consumed`]. Before a free: [`freed`] if [`are_any`]. A resize is both, because whoever gets
//! the old address must not announce it before its free is announced; if it fails, [`lives_on`].

use crate::{probes, sampled_blocks, sampling};

/// Returns true if somebody consumes samples.
#[inline]
#[must_use]
pub fn are_consumed() -> bool {
    probes::are_consumed()
}

/// Returns true if any sampled block is not freed yet.
#[inline]
#[must_use]
pub fn are_any() -> bool {
    sampled_blocks::are_any()
}

/// A block of this size was allocated. One in so many bytes is sampled, on average.
#[inline]
pub fn allocated(block: *mut u8, size: usize, distance: u64) {
    if let Some(weighted_bytes) = sampling::draw(size, distance) {
        announce(block, size, weighted_bytes);
    }
}

/// A block that may have been sampled is about to be freed. Returns true if it was sampled.
#[inline]
pub fn freed(block: *mut u8) -> bool {
    let was_sampled = sampled_blocks::remove(block.addr());
    if was_sampled {
        probes::announce_free(block);
    }
    was_sampled
}

/// A sampled block of this size that was announced as freed was not: its resize has failed.
#[cold]
pub fn lives_on(block: *mut u8, size: usize, distance: u64) {
    announce(block, size, sampling::weighted_bytes(size, distance));
}

/// Makes a call in which this thread samples nothing, such as one of a function of the allocator that calls others of them.
#[inline]
pub fn nested<T>(call: impl FnOnce() -> T) -> T {
    sampling::paused(call)
}

#[cold]
fn announce(block: *mut u8, size: usize, weighted_bytes: u64) {
    if sampled_blocks::insert(block.addr()) {
        probes::announce(block, size, weighted_bytes);
    }
}
