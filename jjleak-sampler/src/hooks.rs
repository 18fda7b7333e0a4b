//! Functions for allocators that are no [`GlobalAlloc`](std::alloc::GlobalAlloc), to be called at each allocation and free.
//!
//! After an allocation: [`allocated`] if [`are_consumed`], or its two halves [`point_in`] and [`at_point`]. Before a free: [`freed`] if
//! [`are_any`]. A resize is both, because whoever gets the old address must not announce it before its free is announced; if it fails,
//! [`lives_on`].

use crate::thread::with_thread;
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
    if let Some(point) = point_in(size) {
        at_point(block, size, point, distance);
    }
}

/// A point at which a block may be sampled.
#[derive(Debug, Clone, Copy)]
pub struct Point(i64);

/// The first half of [`allocated`]: the point in a block of this size, which few have.
#[inline]
#[must_use]
pub fn point_in(size: usize) -> Option<Point> {
    sampling::advance(size).map(Point)
}

/// The second half of [`allocated`].
#[cold]
pub fn at_point(block: *mut u8, size: usize, point: Point, distance: u64) {
    if let Some(weighted_bytes) = sampling::draw_at_point(point.0, size, distance) {
        announce(block, size, weighted_bytes);
    }
}

/// Makes a call. Returns true if a block of this thread was allocated meanwhile. The call need not return: it may throw an exception.
#[inline]
pub fn allocates<T>(call: impl FnOnce() -> T) -> (T, bool) {
    with_thread(|thread| {
        thread.has_drawn.set(false);
        (call(), thread.has_drawn.get())
    })
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

/// Makes a call that allocates a block of this size, by a function of the allocator that may call others of them: those sample nothing. Returns
/// the block, and the point in it.
#[inline]
pub fn nested(size: usize, call: impl FnOnce() -> *mut u8) -> (*mut u8, Option<Point>) {
    let (block, left) = sampling::paused(size, call);
    (block, left.map(Point))
}

#[cold]
fn announce(block: *mut u8, size: usize, weighted_bytes: u64) {
    if sampled_blocks::insert(block.addr()) {
        probes::announce(block, size, weighted_bytes);
    }
}
