//! Builds profiles from snapshots and symbolized stacks.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use jjleak_common::counter::{Counter, Kind};
use smallvec::SmallVec;

use super::{
    Ages, Block, BlockDetails, Cohort, Coverage, ProcessInfo, Profile, SourceKind, StackProfile, Totals,
};
use crate::snapshot::{self, Cohorts, LiveBlocks, NamedStack, Snapshot, StackUse};

impl Profile {
    /// Builds the profile of a snapshot. `name` returns the stack in a row of the kernel's table, with this hash.
    pub fn build(
        snapshot: Snapshot,
        process: ProcessInfo,
        span: (Timestamp, Timestamp),
        coverage: Coverage,
        mut name: impl FnMut(u32, u64) -> NamedStack,
    ) -> Self {
        let mut coverage = coverage;
        if let (Some(windows), Some((objects, bytes))) = (&mut coverage.windows, snapshot.live_variance) {
            windows.live_error = Totals { bytes: standard_error(bytes), objects: standard_error(objects) };
        }
        let taken_ns = snapshot.taken_ns;
        // Collecting would put them into the memory of what they are built from, and move them then: they are smaller.
        let mut stacks = Vec::with_capacity(snapshot.stacks.len());
        for (row, used) in snapshot.stacks {
            let named = name(row, used.hash);
            stacks.push(stack(taken_ns, used, coverage, named));
        }
        Self {
            started_at: span.0,
            taken_at: span.1,
            process,
            ended: None,
            coverage,
            lost: named(&snapshot.counters, |counter| counter.kind() == Kind::Loss),
            notes: named(&snapshot.counters, |counter| {
                counter.kind() == Kind::Note && counter != Counter::UnknownFree
            }),
            unknown_frees: snapshot.counters.get(&Counter::UnknownFree).copied().unwrap_or_default(),
            stacks,
            history: Vec::new(),
            instants_ns: snapshot.instants_ns,
            resident: None,
            memory: None,
            verdicts: Vec::new(),
            snapshots: 0,
            unjudged_sites: 0,
            cost: None,
            growth: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Sets a counter of losses that were not known before the stacks had names.
    pub fn set_lost(&mut self, counter: Counter, count: u64) {
        self.lost.insert(counter.name().to_owned(), count);
    }

    /// Makes room for so many more stacks, and no more than that.
    pub fn reserve(&mut self, stacks: usize) {
        self.stacks.reserve_exact(stacks);
    }

    /// Adds a stack without live blocks.
    pub fn add(&mut self, used: StackUse, named: NamedStack) {
        self.stacks.push(stack(0, used, self.coverage, named));
    }
}

fn stack(taken_ns: u64, used: StackUse, coverage: Coverage, named: NamedStack) -> StackProfile {
    let used = if coverage.knows_live() { used } else { never_freed(&used) };
    let has_error =
        coverage.is_estimate() && (coverage.knows_live() || coverage.source == SourceKind::JavaHeap);
    let age = |time_ns: u64| Duration::from_nanos(taken_ns.saturating_sub(time_ns));
    let details = BlockDetails {
        cohorts: cohorts(used.cohorts),
        ages: (used.live.objects > 0 && !coverage.combined && coverage.knows_live())
            .then(|| Ages { oldest: age(used.live.oldest_ns), newest: age(used.live.newest_ns) }),
        blocks: used
            .blocks
            .iter()
            .map(|block| Block { address: block.address, size: block.size, age: age(block.time_ns) })
            .collect(),
        growth: 0,
    };
    StackProfile {
        id: used.hash,
        live: Totals { bytes: used.live.bytes, objects: used.live.objects },
        allocated: Totals { bytes: used.allocated_bytes, objects: used.allocated_objects },
        live_error: has_error
            .then(|| Totals {
                bytes: standard_error(used.live.bytes_variance),
                objects: standard_error(used.live.objects_variance),
            })
            .into(),
        details: details.into(),
        status: named.status,
        frames: named.frames,
    }
}

/// Upper bound of live memory where frees are missed: all that was allocated.
fn never_freed(used: &StackUse) -> StackUse {
    let StackUse { hash, allocated_objects: objects, allocated_bytes: bytes, .. } = *used;
    let LiveBlocks { objects_variance, bytes_variance, .. } = used.live;
    let live = LiveBlocks { objects, bytes, objects_variance, bytes_variance, ..LiveBlocks::default() };
    StackUse {
        hash,
        live,
        allocated_objects: objects,
        allocated_bytes: bytes,
        cohorts: Cohorts::default(),
        blocks: Vec::new(),
    }
}

/// The cohorts with live blocks.
fn cohorts(cohorts: Cohorts) -> SmallVec<[Cohort; 1]> {
    let live = |cohort: &snapshot::Cohort| cohort.objects > 0 || cohort.bytes > 0;
    let cohort =
        |snapshot::Cohort { interval, objects, bytes }| Cohort { interval, live: Totals { bytes, objects } };
    cohorts.into_iter().filter(live).map(cohort).collect()
}

/// Standard error with this variance.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a variance is not negative, and its root has no use for a fraction"
)]
pub(crate) fn standard_error(variance: f64) -> u64 {
    variance.sqrt().round() as u64
}

/// Counters by name, including zeros.
fn named(counters: &BTreeMap<Counter, u64>, belongs: impl Fn(Counter) -> bool) -> BTreeMap<String, u64> {
    Counter::ALL
        .iter()
        .filter(|counter| belongs(**counter))
        .map(|counter| (counter.name().to_owned(), counters.get(counter).copied().unwrap_or_default()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::profile::Sampling;
    use crate::snapshot::{Frames, LiveBlocks};
    use jjleak_common::process::ImageId;
    use jjleak_common::stack::StackStatus;

    #[test]
    fn ages_count_from_the_snapshot_and_losses_are_listed_even_when_zero() {
        let used = StackUse {
            hash: 7,
            live: LiveBlocks {
                objects: 2,
                bytes: 48,
                oldest_ns: 1_000_000,
                newest_ns: 3_000_000,
                objects_variance: 0.,
                bytes_variance: 9.,
            },
            cohorts: [snapshot::Cohort { interval: 1, objects: 2, bytes: 48 }].into_iter().collect(),
            blocks: vec![snapshot::Block { address: 0x5000, size: 32, time_ns: 3_000_000 }],
            allocated_objects: 5,
            allocated_bytes: 120,
        };
        let snapshot = Snapshot {
            live_variance: None,
            taken_ns: 11_000_000,
            instants_ns: Arc::from([500_000, 11_000_000]),
            youngest_ns: 11_000_000,
            blocks_per_stack: 1,
            image: ImageId(1),
            stacks: vec![(3, used)],
            counters: BTreeMap::from([(Counter::UnknownFree, 4), (Counter::MissedFree, 1)]),
        };
        let process = ProcessInfo {
            pid: 1,
            start_time: 2,
            comm: "x".into(),
            exe: "/x".into(),
            kind: super::super::ProcessKind::Native,
            forked_from: None,
            container_pid: None,
        };
        let named = NamedStack { status: StackStatus::FramePointers, frames: Frames::default() };
        let span = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        let profile = Profile::build(snapshot.clone(), process.clone(), span, Coverage::default(), |_, _| {
            named.clone()
        });
        let stack = &profile.stacks[0];
        assert_eq!(
            stack.details.ages,
            Some(Ages { oldest: Duration::from_millis(10), newest: Duration::from_millis(8) })
        );
        let cohort = Cohort { interval: 1, live: Totals { bytes: 48, objects: 2 } };
        assert_eq!(stack.details.cohorts[..], [cohort]);
        assert_eq!(
            stack.details.blocks,
            [Block { address: 0x5000, size: 32, age: Duration::from_millis(8) }]
        );
        assert_eq!((stack.live_error.totals(), profile.live_error()), (None, None));
        let sampled = Coverage { sampling: Sampling::Rate(4), ..Coverage::default() };
        let estimate = Profile::build(snapshot, process, span, sampled, |_, _| named.clone());
        assert_eq!(estimate.live_error(), Some(Totals { bytes: 3, objects: 0 }));
        assert_eq!((profile.unknown_frees, profile.lost["missed_free"]), (4, 1));
        assert_eq!(profile.lost["live_table_full"], 0);
        assert!(!profile.lost.contains_key("unknown_free") && !profile.notes.contains_key("unknown_free"));
        assert_eq!(profile.notes["filtered"], 0);
    }
}
