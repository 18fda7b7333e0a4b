//! Profiles for tests of renderers: a fixed one, and arbitrary ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::{TimeZone, offset};
use jjleak_common::stack::StackStatus;
use proptest::prelude::*;

use super::{Contents, GraphLimits, Options, Value};
use crate::analyze::{Rules, Selection, SortBy};
use crate::profile::{
    Ages, Basis, BlockDetails, Details, Frame, FrameKind, Frames, JUDGED_SNAPSHOTS, Memory, MemoryKind,
    Point, ProcessInfo, ProcessKind, Profile, Rate, StackProfile, StandardErrors, Survival, Totals, Verdict,
    VerdictKind,
};

const APP: &str = "/opt/leaky/bin/leaky";
const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";
const LIBSTDCPP: &str = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30";

/// One hour east of Greenwich.
pub(crate) fn time_zone() -> TimeZone {
    TimeZone::fixed(offset(1))
}

pub(crate) fn options() -> Options {
    Options {
        contents: Contents::default(),
        selection: Selection { sort: SortBy::Size, top: 10 },
        value: Value::Bytes,
        time_zone: time_zone(),
        full: false,
        rules: Rules::default(),
        inverted: false,
        graph: GraphLimits::default(),
        view: String::new(),
    }
}

/// A profile without stacks and losses.
pub(crate) fn empty_profile() -> Profile {
    Profile {
        started_at: "2026-01-15T09:00:00Z".parse().unwrap(),
        taken_at: "2026-01-15T09:04:12.5Z".parse().unwrap(),
        process: ProcessInfo {
            pid: 4242,
            start_time: 123_456,
            comm: "leaky".into(),
            exe: APP.into(),
            kind: ProcessKind::Native,
            forked_from: None,
            container_pid: None,
        },
        ..Profile::empty()
    }
}

/// A stack without frames that allocated nothing.
pub(crate) fn empty_stack() -> StackProfile {
    StackProfile {
        id: 0,
        live: Totals::default(),
        allocated: Totals::default(),
        live_error: StandardErrors::default(),
        details: Details::default(),
        status: StackStatus::Complete,
        frames: Frames::default(),
    }
}

/// Counters by name.
pub(crate) fn counters<const N: usize>(counters: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counters.map(|(name, count)| (name.to_owned(), count)).into()
}

/// A profile with native, inlined, templated and unknown frames, a stack without live memory, a lost stack, and losses.
pub(crate) fn profile() -> Profile {
    let mut profile = empty_profile();
    profile.lost = counters([("live_table_full", 0), ("stale_pending", 3)]);
    profile.notes = counters([("filtered", 7), ("return_without_entry", 0)]);
    profile.unknown_frees = 5;
    profile.stacks = vec![
        stack(0x5c, StackStatus::FramePointers, (640, 2), (640, 2), [malloc(), new(), vector(), main(31)]),
        stack(0x1ea4, StackStatus::FramePointers, (1_536_000, 12), (1_536_000, 12), list_growth()),
        stack(0xdead, StackStatus::FramePointers, (0, 0), (4_096_000, 1000), [malloc(), main(40)]),
        stack(0xb0, StackStatus::BrokenChain, (300, 3), (500, 5), closed_source()),
        stack(0x05e, StackStatus::Complete, (64, 8), (64, 8), [malloc(), rust_array(), main(50)]),
        stack(0x105, StackStatus::Lost, (48, 1), (48, 1), []),
    ];
    profile
}

/// The profile with a verdict of each kind.
pub(crate) fn judged() -> Profile {
    let mut profile = profile();
    profile.coverage.settle = Duration::from_secs(15);
    profile.memory = Some(Memory { kind: MemoryKind::Cgroup, limit: 1 << 30, available: 400 << 20 });
    profile.snapshots = JUDGED_SNAPSHOTS;
    profile.verdicts = VerdictKind::ALL.into_iter().zip(&profile.stacks).map(verdict).collect();
    profile
}

fn verdict((kind, stack): (VerdictKind, &StackProfile)) -> Verdict {
    let grows = kind <= VerdictKind::Growing;
    let seconds = Duration::from_secs;
    let point = |at: u64| Point { at: seconds(10 * at), bytes: stack.live.bytes * at / 25 };
    let allocated = Totals { bytes: 4_000_000, objects: 0 };
    let survival = Survival { older_than: seconds(31), allocated, live: stack.live };
    Verdict {
        kind,
        basis: Basis::LongHistory,
        confidence: 0.97,
        site: stack.id + 1,
        stacks: [stack.id].into_iter().collect(),
        frames: stack.frames.clone(),
        caller: stack.frames.len().saturating_sub(1).min(3),
        live: stack.live,
        allocated: stack.allocated,
        watched: seconds(252),
        first_seen: seconds(if grows { 0 } else { 60 }),
        rate: grows.then_some(Rate { per_second: 71_652., low: 68_157., high: 75_147. }),
        survival: Some(survival),
        allocation_rate: 80_000.,
        free_rate: if grows { 0. } else { 79_000. },
        freed_when_old: (kind == VerdictKind::Leaking).then_some(0.),
        freed_from_before: None,
        not_resident: false,
        hidden_stacks: 0,
        flat_for: (kind == VerdictKind::CacheLike).then(|| seconds(130)),
        series: (1..=25).map(point).collect(),
    }
}

fn stack(
    id: u64,
    status: StackStatus,
    live: (u64, u64),
    allocated: (u64, u64),
    frames: impl IntoIterator<Item = Frame>,
) -> StackProfile {
    let totals = |(bytes, objects)| Totals { bytes, objects };
    let ages = Ages { oldest: Duration::from_secs(251), newest: Duration::from_millis(3_200) };
    StackProfile {
        id,
        live: totals(live),
        allocated: totals(allocated),
        live_error: StandardErrors::default(),
        details: BlockDetails { ages: (live.1 > 0).then_some(ages), ..BlockDetails::default() }.into(),
        status,
        frames: shared(frames),
    }
}

/// Frames of a stack.
pub(crate) fn shared(frames: impl IntoIterator<Item = Frame>) -> Frames {
    frames.into_iter().map(Arc::new).collect()
}

fn list_growth() -> [Frame; 5] {
    let inlined = |symbol: &str, line| Frame {
        inlined: true,
        ..native(0x5580_0000_11a3, symbol, APP, "src/list.c", line)
    };
    [
        malloc(),
        inlined("new_node", 12),
        inlined("list_push", 20),
        native(0x5580_0000_11a3, "grow_list", APP, "src/list.c", 41),
        main(30),
    ]
}

fn closed_source() -> [Frame; 3] {
    let unknown = |address, module: &str| Frame { address, module: module.into(), ..Frame::default() };
    [malloc(), unknown(0x7f00_5555_0123, "/opt/vendor/libclosed.so"), unknown(0x7f00_6666_0456, "")]
}

fn malloc() -> Frame {
    native(0x7f00_1111_2260, "malloc", LIBC, "", 0)
}

fn new() -> Frame {
    native(0x7f00_2222_3b1c, "operator new(unsigned long)", LIBSTDCPP, "", 0)
}

fn vector() -> Frame {
    let symbol = "void std::vector<std::pair<int, char const*>, std::allocator<std::pair<int, char const*> > >\
                  ::_M_realloc_insert<std::pair<int, char const*> >(std::pair<int, char const*>&&)";
    native(0x5580_0000_2f00, symbol, APP, "/usr/include/c++/12/bits/vector.tcc", 440)
}

fn rust_array() -> Frame {
    native(0x5580_0000_3000, "<[u8; 8] as leaky::Copies & \"more\">::copies", APP, "src/copies.rs", 7)
}

fn main(line: u32) -> Frame {
    native(0x5580_0000_1000 + u64::from(line), "main", APP, "src/main.c", line)
}

fn native(address: u64, symbol: &str, module: &str, file: &str, line: u32) -> Frame {
    Frame {
        address,
        symbol: symbol.into(),
        module: module.into(),
        build_id: if module == LIBC { "c0ffee".into() } else { String::new() },
        file: file.into(),
        line,
        kind: FrameKind::Native,
        inlined: false,
        by_frame_pointer: false,
        tail_call: false,
    }
}

/// Profiles of few stacks whose symbols try to break out of text formats.
pub(crate) fn arbitrary_profile() -> impl Strategy<Value = Profile> {
    prop::collection::vec(arbitrary_stack(), 0..8).prop_map(|mut stacks| {
        for (id, stack) in (1..).zip(&mut stacks) {
            stack.id = id;
        }
        Profile { stacks, ..empty_profile() }
    })
}

fn arbitrary_stack() -> impl Strategy<Value = StackProfile> {
    let frames = prop::collection::vec(arbitrary_frame(), 0..6);
    let amounts = (0..1_u64 << 40, 0..1_u64 << 20, 0..1_u64 << 40, 0..1_u64 << 20);
    (amounts, frames).prop_map(|((live_bytes, live, freed_bytes, freed), frames)| {
        let live_bytes = if live == 0 { 0 } else { live_bytes };
        stack(0, StackStatus::Complete, (live_bytes, live), (live_bytes + freed_bytes, live + freed), frames)
    })
}

fn arbitrary_frame() -> impl Strategy<Value = Frame> {
    let symbol =
        prop::sample::select(vec!["", "main", "a;b", "# x", "a 7", " ", "<&\"'>", "a\nb", "\u{e000}1"]);
    let module = prop::sample::select(vec!["", APP, LIBC]);
    (symbol, module, 0..4_u64, any::<bool>()).prop_map(|(symbol, module, address, inlined)| Frame {
        inlined,
        ..native(address, symbol, module, "", 0)
    })
}
