//! Use of the bytes of arenas.

use std::ops::{AddAssign, Range, SubAssign};

use super::pages::Residency;

/// Chunks and their bytes, headers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chunks {
    /// Number of chunks.
    pub count: u64,
    /// Sum of their sizes, in bytes.
    pub bytes: u64,
}

impl Chunks {
    pub(super) const fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

impl AddAssign for Chunks {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

impl SubAssign for Chunks {
    fn sub_assign(&mut self, other: Self) {
        self.count -= other.count;
        self.bytes -= other.bytes;
    }
}

/// Free bytes by what their pages are. They add up to the bytes of free chunks: bins, fastbins and the top.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Free {
    /// Resident pages that `malloc_trim(0)` gives back.
    pub trimmable: u64,
    /// Resident, on a page with a chunk in use or with links of the allocator.
    pub pinned: u64,
    /// Resident at the top of an arena, where `malloc_trim` keeps them.
    pub kept: u64,
    /// Not resident.
    pub absent: u64,
    /// In swap.
    pub swapped: u64,
}

impl Free {
    /// All free bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.resident() + self.absent + self.swapped
    }

    /// Free bytes in memory.
    #[must_use]
    pub const fn resident(&self) -> u64 {
        self.trimmable + self.pinned + self.kept
    }
}

/// Use of the bytes of an arena. `live`, `cached`, `overhead` and `free` add up to the arena's size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Chunks that the program has not freed.
    pub live: Chunks,
    /// Free chunks that threads keep for themselves (tcache).
    pub cached: Chunks,
    /// Free bytes by what their pages are.
    pub free: Free,
    /// Free chunks in bins, with their bytes; a part of `free`.
    pub binned: Chunks,
    /// Free chunks in fastbins; a part of `free`.
    pub fast: Chunks,
    /// Bytes of top chunks; a part of `free`.
    pub top: u64,
    /// Bytes of the allocator's own structures.
    pub overhead: u64,
    /// True if the chunks in use were not counted: their bytes are those that are not free. Chunks in thread caches are among them.
    pub is_by_lists: bool,
}

impl Usage {
    /// All bytes of the arena.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.live.bytes + self.cached.bytes + self.free.bytes() + self.overhead
    }
}

impl Free {
    /// Adds the bytes of free chunks, of which a trim gives back these pages.
    pub(super) fn add(&mut self, residency: &Residency, free: Range<u64>, pages: Range<u64>) {
        let all = residency.count(free);
        let trimmable = residency.count(pages).resident;
        self.trimmable += trimmable;
        self.pinned += all.resident - trimmable;
        self.absent += all.absent;
        self.swapped += all.swapped;
    }

    /// Adds the bytes at the top of an arena that a trim keeps.
    pub(super) fn add_kept(&mut self, residency: &Residency, free: Range<u64>) {
        let free = residency.count(free);
        self.kept += free.resident;
        self.absent += free.absent;
        self.swapped += free.swapped;
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.live += other.live;
        self.cached += other.cached;
        self.binned += other.binned;
        self.fast += other.fast;
        self.top += other.top;
        self.overhead += other.overhead;
        self.is_by_lists |= other.is_by_lists;
        let (sum, free) = (&mut self.free, other.free);
        sum.trimmable += free.trimmable;
        sum.pinned += free.pinned;
        sum.kept += free.kept;
        sum.absent += free.absent;
        sum.swapped += free.swapped;
    }
}
