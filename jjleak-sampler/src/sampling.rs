//! The choice of blocks: points are scattered over all bytes that a thread allocates, at exponentially distributed distances, and a block
//! with a point is sampled. It stands for its size divided by the chance of that.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::thread::{Thread, with_thread};

/// Bytes up to the next point while a thread samples nothing.
const PAUSED: i64 = i64::MAX;
/// Larger blocks count as of this size. None exists.
const MOST_BYTES: usize = 1 << 62;

/// The generator of a thread.
#[derive(Debug, Clone, Copy)]
struct Generator {
    /// Its state (xorshift64*); 0 before the first draw.
    random: u64,
    /// The process that it was drawn in last.
    process: u32,
}

// No destructor: it exists as long as the thread, and its first use allocates nothing.
thread_local! {
    static GENERATOR: Cell<Generator> = const { Cell::new(Generator { random: 0, process: 0 }) };
}

fn set_left(left: i64) {
    with_thread(|thread| thread.left.set(left));
}

/// Makes a call that allocates a block of this size, in which this thread samples nothing. Returns the block, and the result of [`advance`] for
/// it.
#[inline]
pub(crate) fn paused(size: usize, call: impl FnOnce() -> *mut u8) -> (*mut u8, Option<i64>) {
    with_thread(|thread| {
        let left = thread.left.replace(PAUSED);
        let block = call();
        thread.left.set(left);
        let point = if block.is_null() { None } else { thread.advance(size) };
        (block, point)
    })
}

/// Takes a block of this size off the bytes up to the next point. Returns how many are left if none are: less than one, then.
#[inline]
pub(crate) fn advance(size: usize) -> Option<i64> {
    with_thread(|thread| thread.advance(size))
}

impl Thread {
    #[inline]
    fn advance(&self, size: usize) -> Option<i64> {
        #[expect(clippy::cast_possible_wrap, reason = "at most 2^62")]
        let left = self.left.get() - size.min(MOST_BYTES) as i64;
        self.left.set(left);
        self.has_drawn.set(true);
        (left <= 0).then_some(left)
    }
}

/// Bytes that a block of this size stands for if it is sampled; `None` if it is not.
#[cfg(test)]
fn draw(size: usize, distance: u64) -> Option<u64> {
    draw_at_point(advance(size)?, size, distance)
}

/// Bytes that a block with a point stands for, or the first one of a thread, which may have none.
#[cold]
pub(crate) fn draw_at_point(left: i64, size: usize, distance: u64) -> Option<u64> {
    let mut generator = GENERATOR.get();
    if generator.random == 0 {
        generator.begin();
        let left = generator.gap(distance).saturating_add(left);
        set_left(left);
        GENERATOR.set(generator);
        if left > 0 {
            return None;
        }
    }
    // Points have no memory: behind the block, the distance to the next one is as if none had been before.
    generator.reseed_in_child();
    set_left(generator.gap(distance));
    GENERATOR.set(generator);
    Some(weighted_bytes(size, distance))
}

/// The size divided by 1 - exp(-size / distance), rounded.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, far from overflowing"
)]
pub(crate) fn weighted_bytes(size: usize, distance: u64) -> u64 {
    // A block of no bytes takes some.
    let size = size.max(1) as f64;
    libm::round(size / -libm::expm1(-size / distance as f64)) as u64
}

impl Generator {
    #[cold]
    fn begin(&mut self) {
        static SEED: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
        // Differs between threads by the counter, and between processes by the address of the stack.
        let counter = SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (counter ^ (std::ptr::from_ref(self).addr() as u64)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.random = (mixed ^ mixed >> 29) | 1;
    }

    /// Draws other numbers than the parent in a child of fork(2), which has a copy of its generator.
    fn reseed_in_child(&mut self) {
        let process = std::process::id();
        if self.process != process {
            self.process = process;
            self.random = (self.random ^ u64::from(process).wrapping_mul(0xbf58_476d_1ce4_e5b9)) | 1;
        }
    }

    /// Distance to the next point, in whole bytes: at least 1.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "a random number, at most 37 times the distance"
    )]
    fn gap(&mut self, distance: u64) -> i64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        // In the middle of one of 2^53 parts of the interval from 0 to 1, never an end.
        let drawn = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        let uniform = (drawn as f64 + 0.5) / (1u64 << 53) as f64;
        libm::ceil(-libm::log(uniform) * distance as f64).max(1.) as i64
    }
}

#[cfg(test)]
#[expect(clippy::cast_precision_loss, reason = "statistics")]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn weighted_bytes_are_the_allocated_bytes_on_average_at_any_size() {
        const DISTANCE: u64 = 10_000;
        for size in [1, 16, 1000, 9999, 40_000, 1 << 20] {
            let blocks = 40_000_000 / size.clamp(400, 40_000);
            let chance = -(-(size as f64) / DISTANCE as f64).exp_m1();
            let drawn = (0..blocks).filter_map(|_| draw(size, DISTANCE));
            let (samples, sum) = drawn.fold((0u64, 0u64), |(samples, sum), bytes| (samples + 1, sum + bytes));
            let expected = blocks as f64 * chance;
            let deviation = (expected * (1. - chance)).sqrt().max(1.);
            let off = (samples as f64 - expected) / deviation;
            assert!(off.abs() < 5., "{size}: {samples} samples, not {expected}");
            let ratio = sum as f64 / (blocks * size) as f64;
            assert!((ratio - 1.).abs() < 5. * deviation / expected + 0.001, "{size}: {ratio} of the bytes");
        }
    }

    #[test]
    fn a_block_larger_than_any_gap_stands_for_itself() {
        assert_eq!(draw(1 << 40, 512 << 10), Some(1 << 40));
        assert_eq!(draw(usize::MAX, 512 << 10).map(|bytes| bytes > 1 << 62), Some(true));
        assert_eq!(weighted_bytes(0, 1000), weighted_bytes(1, 1000));
    }

    #[test]
    fn a_child_of_fork_draws_other_numbers_than_its_parent() {
        let parent = Generator { random: 12_345, process: std::process::id() };
        let (mut same, mut child) = (parent, Generator { process: 1, ..parent });
        same.reseed_in_child();
        child.reseed_in_child();
        assert_eq!((same.random, child.process), (parent.random, parent.process));
        assert_ne!((child.random, child.gap(1 << 20)), (parent.random, same.gap(1 << 20)));
    }

    #[test]
    fn nothing_is_drawn_while_paused_and_as_before_afterwards() {
        while draw(1, 1000).is_none() {}
        let left = with_thread(|thread| thread.left.get());
        let block = [0u8; 1].as_mut_ptr();
        let allocate = || {
            assert_eq!(draw(1 << 40, 1000), None);
            block
        };
        assert_eq!(paused(0, || paused(1 << 40, allocate).0), (block, None));
        assert_eq!(with_thread(|thread| thread.left.get()), left);
        assert_eq!(paused(1 << 40, ptr::null_mut), (ptr::null_mut(), None));
        assert_eq!(with_thread(|thread| thread.left.get()), left);
        assert!(draw(usize::try_from(left).unwrap(), 1000).is_some());
    }

    #[test]
    fn threads_draw_differently() {
        let gaps =
            || std::thread::spawn(|| (0..2000).map(|_| draw(100, 10_000).is_some()).collect::<Vec<_>>());
        let [one, other] = [gaps(), gaps()].map(|thread| thread.join().unwrap());
        assert_ne!(one, other);
    }
}
