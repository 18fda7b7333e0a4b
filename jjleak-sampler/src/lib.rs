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
//! - `hooks`: functions for other allocators.
//! - `sampled_blocks`: addresses of sampled blocks that are not freed yet.
//! - `thread`: state of a thread.

pub mod hooks;
mod probes;
mod sampled_blocks;
mod sampling;
mod thread;

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
        if !block.is_null() {
            hooks::allocated(block, size, self.distance);
        }
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
            // Before the real free: from then on, the address can be another block's.
            hooks::freed(block);
        }
        // SAFETY: as promised by the caller.
        unsafe { self.inner.dealloc(block, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Before the real call, which may give the address away, and succeeds nearly always.
        let was_sampled = sampled_blocks::are_any() && hooks::freed(block);
        // SAFETY: as promised by the caller.
        let resized = unsafe { self.inner.realloc(block, layout, new_size) };
        if was_sampled && resized.is_null() {
            hooks::lives_on(block, layout.size(), self.distance);
        }
        if probes::are_consumed() {
            self.allocated(resized, new_size);
        }
        resized
    }
}

#[cfg(test)]
mod tests;
