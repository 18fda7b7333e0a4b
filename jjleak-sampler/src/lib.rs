//! A global allocator that samples allocations, and announces the samples at probes (SDT) with OpenTelemetry's contract `otel_memory`:
//! `alloc(pointer, size, weighted_bytes)` and `free(pointer)`. `jjleak --sampled` and OpenTelemetry's profiler consume them.
//!
//! ```
//! use std::alloc::System;
//!
//! use jjleak_sampler::Sampler;
//!
//! #[global_allocator]
//! static ALLOCATOR: Sampler<System> = Sampler::new(System);
//! # fn main() {}
//! ```
//!
//! Nothing is sampled until a consumer attaches: an allocation takes a load and a branch more, and so does a free. Samples take no lock and
//! no memory: the addresses of sampled blocks are in a table of fixed size.
//!
//! - `probes`: the probes, and the semaphore that counts consumers.
//! - `sampling`: the choice of blocks, and what they stand for.
//! - `sampled_blocks`: addresses of sampled blocks that are not freed yet.

mod probes;
mod sampled_blocks;
mod sampling;

use std::alloc::{GlobalAlloc, Layout};

pub use sampled_blocks::dropped;

/// Bytes between two samples, on average, unless a program chooses otherwise.
pub const DEFAULT_DISTANCE: u64 = 512 << 10;

/// An allocator whose allocations are sampled.
#[derive(Debug)]
pub struct Sampler<A> {
    inner: A,
    distance: u64,
}

impl<A> Sampler<A> {
    /// Samples the allocations of an allocator, one in [`DEFAULT_DISTANCE`] bytes.
    #[must_use]
    pub const fn new(inner: A) -> Self {
        Self::with_distance(inner, DEFAULT_DISTANCE)
    }

    /// Samples one allocation in this number of bytes, on average. All allocators of a program that are sampled need the same number.
    #[must_use]
    pub const fn with_distance(inner: A, bytes: u64) -> Self {
        Self { inner, distance: if bytes == 0 { 1 } else { bytes } }
    }

    /// A block was allocated while somebody consumes samples.
    #[inline]
    fn allocated(&self, block: *mut u8, size: usize) {
        if !block.is_null()
            && let Some(weighted_bytes) = sampling::draw(size, self.distance)
            && sampled_blocks::insert(block.addr())
        {
            probes::announce(block, size, weighted_bytes);
        }
    }
}

/// A block that may have been sampled is about to be freed.
#[inline]
fn freed(block: *mut u8) {
    // Before the real free: from then on, the address can be another block's.
    if sampled_blocks::remove(block.addr()) {
        probes::announce_free(block);
    }
}

// SAFETY: passes everything on to the inner allocator, and returns what that returns.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Sampler<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        let block = unsafe { self.inner.alloc(layout) };
        if probes::are_consumed() {
            self.allocated(block, layout.size());
        }
        block
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        let block = unsafe { self.inner.alloc_zeroed(layout) };
        if probes::are_consumed() {
            self.allocated(block, layout.size());
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if sampled_blocks::are_any() {
            freed(block);
        }
        // SAFETY: as promised by the caller.
        unsafe { self.inner.dealloc(block, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if sampled_blocks::are_any() && sampled_blocks::contains(block.addr()) {
            // SAFETY: as promised by the caller.
            return unsafe { self.move_sampled(block, layout, new_size) };
        }
        // SAFETY: as promised by the caller.
        let moved = unsafe { self.inner.realloc(block, layout, new_size) };
        if probes::are_consumed() {
            self.allocated(moved, new_size);
        }
        moved
    }
}

impl<A: GlobalAlloc> Sampler<A> {
    /// Resizes a sampled block by moving it. The inner `realloc` frees the old block before anybody could announce that, and only if it
    /// succeeds: another thread could have got its address by then.
    ///
    /// # Safety
    /// As for [`GlobalAlloc::realloc`].
    #[cold]
    unsafe fn move_sampled(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller of `realloc` promises that the size, rounded up to the alignment, does not overflow.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: the layout is not empty, as the caller promises.
        let moved = unsafe { self.alloc(new_layout) };
        if !moved.is_null() {
            // SAFETY: both blocks have that many bytes, and are not the same.
            unsafe { block.copy_to_nonoverlapping(moved, layout.size().min(new_size)) };
            // SAFETY: as promised by the caller.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests;
