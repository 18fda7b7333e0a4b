//! The program that the self-test profiles: jjleak itself, under another verb. Its allocator only counts: no memory is behind its
//! blocks, so that nothing else in the process is measured.
//!
//! The functions are exported (build script), so that they are found by name in a stripped binary.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use super::trial::Expected;

/// First argument that makes jjleak run as this program.
pub const VERB: &str = "self-test-program";

/// Blocks that are freed at once.
const CHURN: Blocks = Blocks { number: 1000, bytes: 77 };
/// Blocks that are kept.
const LEAK: Blocks = Blocks { number: 1000, bytes: 123 };

/// Figures of the program.
pub(super) const EXPECTED: Expected = Expected {
    live_bytes: LEAK.number * LEAK.bytes,
    live_objects: LEAK.number,
    allocated_bytes: LEAK.number * LEAK.bytes + CHURN.number * CHURN.bytes,
    allocated_objects: LEAK.number + CHURN.number,
};

/// The function that allocates what is kept.
pub(super) const LEAKER: &str = "jjleak_self_test_leak";

/// The allocator, as a table of the user would describe it.
pub(super) const TABLE: &str = r#"
[[allocator]]
name = "self-test"
[[allocator.function]]
name = "jjleak_self_test_malloc"
role = "allocate"
size = 1
[[allocator.function]]
name = "jjleak_self_test_free"
role = "free"
pointer = 1
"#;

struct Blocks {
    number: u64,
    bytes: u64,
}

/// Address of the next block.
static NEXT: AtomicU64 = AtomicU64::new(0x10_0000);

/// Allocates and frees, and ends.
pub fn run() {
    for _ in 0..CHURN.number {
        jjleak_self_test_free(jjleak_self_test_malloc(CHURN.bytes));
    }
    for _ in 0..LEAK.number {
        black_box(jjleak_self_test_leak(LEAK.bytes));
    }
}

/// Allocates what is kept.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn jjleak_self_test_leak(bytes: u64) -> u64 {
    // Not a tail call: the call path has to have this function.
    black_box(jjleak_self_test_malloc(bytes))
}

/// Returns the address of a new block.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn jjleak_self_test_malloc(bytes: u64) -> u64 {
    NEXT.fetch_add(black_box(bytes).next_multiple_of(16), Ordering::Relaxed)
}

/// Frees a block.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn jjleak_self_test_free(block: u64) {
    black_box(block);
}
