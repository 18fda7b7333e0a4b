//! Addresses of sampled blocks that are not freed yet, exactly: set-associative, in memory of the program's own, without locks.
//!
//! A block is inserted after it was allocated and removed before it is freed, so that an address is never in the table twice. Frees are
//! looked up as long as any sampled block lives, whether somebody consumes samples or not: an address never outlives its block.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Addresses of a set: a cache line.
const WAYS: usize = 8;
const SETS_LOG2: u32 = 13;

#[repr(align(64))]
struct Set([AtomicUsize; WAYS]);

/// 0 stands for no address. The pages are resident once they are used.
static SETS: [Set; 1 << SETS_LOG2] = [const { Set([const { AtomicUsize::new(0) }; WAYS]) }; 1 << SETS_LOG2];

/// Number of addresses in each set. Few have any, and all fit the processor's first cache.
static IN_SET: [AtomicU8; 1 << SETS_LOG2] = [const { AtomicU8::new(0) }; 1 << SETS_LOG2];

/// Number of addresses in the table.
static LIVE: AtomicUsize = AtomicUsize::new(0);

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Number of samples that were dropped because their part of the table was full, which has room for 65,536 of them: they were not announced.
#[must_use]
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Returns true if any sampled block is not freed yet.
#[inline]
pub(crate) fn are_any() -> bool {
    LIVE.load(Ordering::Relaxed) != 0
}

/// Adds an address; false if its set is full. The address of a block whose free was not seen, because it went through a function that does
/// not tell, is there already.
#[cold]
pub(crate) fn insert(address: usize) -> bool {
    if contains(address) {
        return true;
    }
    let index = index(address);
    let is_taken =
        |way: &AtomicUsize| way.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let is_in = SETS[index].0.iter().any(is_taken);
    if is_in {
        // The block is handed out after this: whoever frees it finds it counted.
        IN_SET[index].fetch_add(1, Ordering::Relaxed);
        LIVE.fetch_add(1, Ordering::Relaxed);
    } else {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
    is_in
}

/// Returns true if an address is in the table. Its block belongs to the caller.
#[inline]
fn contains(address: usize) -> bool {
    SETS[index(address)].0.iter().any(|way| way.load(Ordering::Relaxed) == address)
}

/// Removes an address; false if it is not in the table. Its block belongs to the caller.
#[inline]
pub(crate) fn remove(address: usize) -> bool {
    let index = index(address);
    IN_SET[index].load(Ordering::Relaxed) != 0 && remove_from(index, address)
}

#[cold]
fn remove_from(index: usize, address: usize) -> bool {
    // `free(NULL)`: 0 stands for no address.
    if address == 0 {
        return false;
    }
    let Some(way) = SETS[index].0.iter().find(|way| way.load(Ordering::Relaxed) == address) else {
        return false;
    };
    way.store(0, Ordering::Relaxed);
    IN_SET[index].fetch_sub(1, Ordering::Relaxed);
    LIVE.fetch_sub(1, Ordering::Relaxed);
    true
}

/// Index of the set of an address. Blocks are aligned to 8 bytes at least, so that the lowest bits distinguish none.
#[inline]
fn index(address: usize) -> usize {
    let hash = ((address as u64) >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (u64::BITS - SETS_LOG2)) as usize
}

#[cfg(test)]
pub(crate) fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}
