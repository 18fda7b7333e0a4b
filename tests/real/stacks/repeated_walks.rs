//! Stacks that are recognized without a walk.

use std::collections::BTreeMap;

use crate::support::accounts::assert_nothing_lost;
use crate::support::compile;
use crate::support::jjleak::Ended;
use crate::support::privilege::require_bpf;

/// Ways through the fixture of each kind, each with a block size of its own.
const WAYS: u64 = 32;
const KINDS: u64 = 4;
const SMALLEST: u64 = 64;
/// Block sizes of two stacks with the same words, but another frame pointer; and allocations from each: 40 turns.
const LEFTOVER: [u64; 2] = [32, 33];
const LEFTOVER_TIMES: u64 = 4000;
/// Allocations from each: 40 turns with four sizes of the outermost frame.
const TIMES: u64 = 160;

#[test]
fn stacks_in_turns_keep_their_own_blocks_whatever_registers_hold() {
    require_bpf!();
    let program = compile::ways().as_os_str();

    let ended = Ended::of(["--format".as_ref(), "json".as_ref(), "--".as_ref(), program]).assert_done();

    let report = ended.report();
    assert_nothing_lost(&report);
    for root in ["main", "start_thread"] {
        let of_thread = report.stacks.iter().filter(|stack| {
            let has = |name| stack.frames.iter().any(|frame| frame.symbol == name);
            has("leaf") && has(root)
        });
        let mut times = BTreeMap::new();
        for stack in of_thread {
            assert_eq!(stack.status, "complete");
            let (size, rest) = (
                stack.allocated.bytes / stack.allocated.objects,
                stack.allocated.bytes % stack.allocated.objects,
            );
            assert_eq!(rest, 0, "blocks of several ways: {stack:#?}");
            *times.entry(size).or_insert(0) += stack.allocated.objects;
        }
        let ways = (SMALLEST..SMALLEST + WAYS * KINDS).map(|size| (size, TIMES));
        let expected = LEFTOVER.map(|size| (size, LEFTOVER_TIMES)).into_iter().chain(ways);
        assert_eq!(times, expected.collect(), "{root}");
    }
}
