//! Profiles with any content.

use std::sync::Arc;
use std::time::Duration;

use jjleak_common::stack::StackStatus;
use proptest::prelude::*;

use crate::profile::{
    Ages, Basis, Block, BlockDetails, Cost, Coverage, Frame, FrameKind, InWindows, Memory, MemoryKind,
    Moment, Point, ProcessInfo, ProcessKind, Profile, Rate, Sampling, SourceKind, StackProfile, Survival,
    Thread, Totals, Verdict, VerdictKind,
};
use crate::render::sample;

/// Profiles with any content.
pub(super) fn anything() -> impl Strategy<Value = Profile> {
    (prop::collection::vec(any_stack(), 0..6), any_process(), any_coverage(), any_counters(), any_counters())
        .prop_flat_map(|(stacks, process, coverage, lost, notes)| {
            let ended = prop::option::of("\\PC{0,8}");
            let nanos = 0..i64::MAX / 4;
            (nanos.clone(), nanos, ended, any::<u64>()).prop_map(
                move |(taken, elapsed, ended, unknown_frees)| {
                    let time = |nanos: i64| jiff::Timestamp::from_nanosecond(nanos.into()).unwrap();
                    let coverage =
                        Coverage { threads: stacks.iter().any(|stack| stack.thread().is_some()), ..coverage };
                    Profile {
                        growth: vec!["RSS +1.0 MiB in 5.0 s".to_owned(), "cause: a = b".to_owned()],
                        kept: Vec::new(),
                        snapshots: (unknown_frees >> 40) as u32,
                        unjudged_sites: unknown_frees >> 50,
                        cost: (unknown_frees % 2 == 0).then(|| Cost {
                            over: Duration::from_nanos(unknown_frees),
                            calls: unknown_frees,
                            spent: (unknown_frees % 4 == 0).then(|| Duration::from_nanos(7)),
                            cpu: Some(Duration::from_nanos(unknown_frees / 2)),
                        }),
                        started_at: time(taken - elapsed),
                        taken_at: time(taken),
                        process: process.clone(),
                        ended,
                        coverage,
                        lost: lost.clone(),
                        notes: notes.clone(),
                        unknown_frees,
                        stacks: stacks.clone(),
                        history: stacks
                            .iter()
                            .map(|stack| Moment {
                                at: time(taken / 2),
                                live: stack.live,
                                resident: Some(stack.id),
                            })
                            .collect(),
                        instants_ns: Arc::default(),
                        resident: stacks.last().map(|stack| stack.id),
                        memory: stacks.first().map(|stack| Memory {
                            kind: MemoryKind::Cgroup,
                            limit: stack.live.bytes,
                            available: stack.id,
                        }),
                        verdicts: stacks.iter().map(verdict).collect(),
                    }
                },
            )
        })
}

fn any_counters() -> impl Strategy<Value = std::collections::BTreeMap<String, u64>> {
    prop::collection::btree_map("[a-z_]{1,6}", any::<u64>(), 0..4)
}

fn any_coverage() -> impl Strategy<Value = Coverage> {
    let sampling = prop_oneof![
        Just(Sampling::Off),
        any::<u32>().prop_map(Sampling::Rate),
        any::<u64>().prop_map(Sampling::Bytes)
    ];
    (any::<u64>(), sampling, any::<bool>(), 0..1000_usize).prop_map(
        |(older, sampling, combined, blocks_per_stack)| Coverage {
            older: Duration::from_nanos(older),
            settle: Duration::from_nanos(older / 2),
            source: if combined { SourceKind::Growth } else { SourceKind::Malloc },
            some_sizes: combined,
            sampling,
            threads: false,
            windows: (older % 3 == 0).then_some(InWindows {
                weight: 3,
                follows_frees: older % 2 == 0,
                needed_percent: (older % 2 == 1).then_some(15),
                windows: (older >> 40) as u32,
                live_error: Totals { bytes: older, objects: older / 7 },
                allocated_error: Totals { bytes: older / 3, objects: older / 5 },
            }),
            combined,
            blocks_per_stack,
        },
    )
}

fn any_process() -> impl Strategy<Value = ProcessInfo> {
    let pid = || prop::option::of(any::<u32>());
    let kind = prop::sample::select(vec![ProcessKind::Native, ProcessKind::Jvm]);
    (any::<u32>(), any::<u64>(), "\\PC{0,8}", "[/a=\n]{0,8}", kind, pid(), pid()).prop_map(
        |(pid, start_time, comm, exe, kind, forked_from, container_pid)| ProcessInfo {
            pid,
            start_time,
            comm,
            exe,
            kind,
            forked_from,
            container_pid,
        },
    )
}

fn any_stack() -> impl Strategy<Value = StackProfile> {
    let amount = || 0..=i64::MAX.unsigned_abs();
    let totals = move || (amount(), amount()).prop_map(|(bytes, objects)| Totals { bytes, objects });
    let ages = (any::<u64>(), any::<u64>()).prop_map(|(oldest, newest)| Ages {
        oldest: Duration::from_nanos(oldest),
        newest: Duration::from_nanos(newest),
    });
    let block = (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(address, size, age)| Block {
        address,
        size,
        age: Duration::from_nanos(age),
    });
    let thread = (any::<u32>(), "\\PC{0,6}", 1..3_u32);
    let thread = thread.prop_map(|(number, name, nth)| Frame::of_thread(&Thread { number, name, nth }));
    let frames = (prop::collection::vec(any_frame(), 0..6), prop::option::of((thread, 0..3_usize)));
    let frames = frames.prop_map(|(mut frames, thread)| {
        if let Some((thread, below)) = thread {
            frames.insert(frames.len() - below.min(frames.len()), thread);
        }
        sample::shared(frames)
    });
    let status = prop::sample::select(StackStatus::ALL);
    let more = (
        prop::option::of(totals()),
        any::<i64>(),
        prop::option::of(ages),
        prop::collection::vec(block, 0..3),
    );
    (any::<u64>(), totals(), totals(), more, status, frames).prop_map(
        |(id, live, allocated, (live_error, growth, ages, blocks), status, frames)| StackProfile {
            id,
            live,
            allocated,
            live_error: live_error.into(),
            details: BlockDetails { ages, blocks, growth, ..BlockDetails::default() }.into(),
            status,
            frames,
        },
    )
}

/// A verdict with all figures of a stack.
fn verdict(stack: &StackProfile) -> Verdict {
    let half = Duration::from_nanos(stack.live.objects);
    let odd = stack.id % 2 == 1;
    Verdict {
        kind: VerdictKind::ALL[usize::try_from(stack.id % 5).unwrap()],
        basis: if odd { Basis::ShortHistory } else { Basis::LongHistory },
        confidence: 0.75,
        site: stack.id,
        stacks: [stack.id, 7].into(),
        frames: stack.frames.clone(),
        caller: stack.frames.len().saturating_sub(1),
        live: stack.live,
        allocated: stack.allocated,
        watched: half,
        first_seen: Duration::from_nanos(stack.id),
        rate: odd.then_some(Rate { per_second: 1.5, low: -0.5, high: 3.25 }),
        survival: odd.then_some(Survival { older_than: half, allocated: stack.allocated, live: stack.live }),
        allocation_rate: 0.1,
        free_rate: 1e9,
        freed_when_old: odd.then_some(0.0),
        freed_from_before: odd.then_some(0.75),
        not_resident: odd,
        hidden_stacks: u64::from(odd),
        flat_for: odd.then_some(half),
        series: [Point { at: half, bytes: stack.live.bytes }].into(),
    }
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let name = |names: &[&'static str]| prop::sample::select(names.to_vec()).prop_map(str::to_owned);
    (
        (0..3_u64, name(&["", "main", "a;b", "<script>", "[no stack]"]), name(&["", "/bin/a", "/lib/b"])),
        (name(&["", "c0ffee"]), name(&["", "a.c"]), 0..3_u32),
        (prop::sample::select(FrameKind::ALL[..8].to_vec()), any::<bool>(), any::<bool>(), any::<bool>()),
    )
        .prop_map(
            |(
                (address, symbol, module),
                (build_id, file, line),
                (kind, inlined, by_frame_pointer, tail_call),
            )| Frame {
                address,
                symbol,
                module,
                build_id,
                file,
                line,
                kind,
                inlined,
                by_frame_pointer,
                tail_call,
            },
        )
}
