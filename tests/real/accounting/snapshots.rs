//! Consistency of a snapshot, and its duration.

use std::time::Instant;

use jjleak::attach::now_ns;
use jjleak::attach::{Programs, Settings};
use jjleak::snapshot::{Block, BlockFilter, Snapshot};
use jjleak_common::counter::Counter;

use crate::support::attached::Attached;
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;

/// Number of threads of each kind in the fixture's `steady` scenario, and of their blocks.
const SWAPPERS: usize = 2;
const RESIZERS: usize = 2;
const HELD: usize = 50;
const SWAPPED_SIZE: u64 = 48;
const RESIZED_SIZES: std::ops::Range<u64> = 1_000..1_000_000;

/// Number of snapshots of the busy threads.
const SNAPSHOTS: usize = 200;

/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;

const EVERY_BLOCK: BlockFilter = BlockFilter { older_ns: 0, blocks_per_stack: usize::MAX / 2 };

fn settings() -> Settings {
    Settings::new(Programs::Accounting)
}

fn blocks(snapshot: &Snapshot) -> impl Iterator<Item = &Block> {
    snapshot.stacks.iter().flat_map(|(_, used)| &used.blocks)
}

#[test]
fn a_snapshot_of_busy_threads_is_of_one_instant() {
    require_bpf!();
    let mut ledger = Ledger::start();
    ledger.set_up("steady");
    let mut attached = Attached::to(ledger.pid(), settings());
    ledger.run("steady");

    let mut exact = 0;
    for _ in 0..SNAPSHOTS {
        let snapshot = attached.snapshot(EVERY_BLOCK);
        let swapped = blocks(&snapshot).filter(|block| block.size == SWAPPED_SIZE).count();
        let resized = blocks(&snapshot).filter(|block| RESIZED_SIZES.contains(&block.size)).count();

        // A swapper has its blocks, or one more.
        let between = SWAPPERS * HELD..=SWAPPERS * (HELD + 1);
        assert!(between.contains(&swapped), "{swapped} blocks, not {between:?}");
        // A resizer has its blocks, except at the moment at which the outcome of a call is accounted.
        assert!(resized.abs_diff(RESIZERS * HELD) <= RESIZERS, "{resized} resized blocks");
        exact += usize::from(resized == RESIZERS * HELD);
        assert_eq!(snapshot.counters[&Counter::SnapshotTorn], 0);
    }

    println!("{exact} of {SNAPSHOTS} snapshots have exactly the blocks that are being resized all the time");
    assert!(exact * 10 >= SNAPSHOTS * 9, "only {exact} of {SNAPSHOTS}");
    ledger.run("steady_stop");
}

#[test]
fn probes_that_go_one_by_one_count_each_block_once_after_they_are_bound_anew() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let mut attached = Attached::to(ledger.pid(), Settings { one_by_one: true, ..settings() });

    ledger.run("sizes");
    attached.rebind(ledger.pid());
    ledger.run("sizes");

    let snapshot = attached.snapshot(EVERY_BLOCK);
    assert_eq!(blocks(&snapshot).count(), 200);
    assert_eq!(snapshot.counters[&Counter::StalePending], 0);
}

#[test]
fn only_blocks_of_the_age_asked_for_are_in_a_snapshot() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let mut attached = Attached::to(ledger.pid(), settings());

    ledger.run("sizes");
    let between = now_ns();
    // Ages depend on time: the second batch comes a second later, whatever the load of the machine.
    while now_ns() < between + SECOND {
        std::thread::yield_now();
    }
    ledger.run("sizes");
    let older_ns = now_ns() - between - SECOND / 2;

    let all = attached.snapshot(EVERY_BLOCK);
    let old = attached.snapshot(BlockFilter { older_ns, ..EVERY_BLOCK });
    // Half a second is for the first snapshot; a machine that takes longer makes the second batch old, too.
    let born_before = old.taken_ns - older_ns;
    let expected = blocks(&all).filter(|block| block.time_ns <= born_before).count();
    assert_eq!(blocks(&all).count(), 200);
    assert!(expected >= 100);
    assert_eq!(blocks(&old).count(), expected);
    assert!(blocks(&old).all(|block| block.time_ns <= born_before));
}

#[test]
fn only_instants_that_are_kept_divide_the_blocks_of_later_snapshots() {
    require_bpf!();
    let ledger = Ledger::start();
    let mut attached = Attached::to(ledger.pid(), settings());
    // Like those for processes that end: however many there are, they must not evict snapshots that others are judged by.
    for _ in 0..3 {
        let snapshot = attached.snapshot(BlockFilter::default());
        assert_eq!(*snapshot.instants_ns, [snapshot.taken_ns]);
    }
    let kept = attached.snapshot(BlockFilter::default()).taken_ns;
    attached.collector.divide_at(&[attached.image], kept);
    for _ in 0..3 {
        let snapshot = attached.snapshot(BlockFilter::default());
        assert_eq!(*snapshot.instants_ns, [kept, snapshot.taken_ns]);
    }
}

#[test]
fn a_million_blocks_of_ten_thousand_stacks_are_read() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let mut attached = Attached::to(ledger.pid(), settings());
    ledger.run("million");

    // The first snapshot receives the frames of the stacks.
    attached.snapshot(BlockFilter::default());
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        let snapshot = attached.snapshot(BlockFilter::default());
        times.push(start.elapsed());
        let objects: u64 = snapshot.stacks.iter().map(|(_, used)| used.live.objects).sum();
        assert_eq!((objects, snapshot.stacks.len()), (1_000_000, 10_000));
        assert_eq!(snapshot.counters[&Counter::LiveTableFull], 0);
    }
    times.sort();
    println!("a snapshot of 1,000,000 blocks of 10,000 stacks takes {:?} (median of 5)", times[2]);
}
