//! Merges profiles of several processes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jjleak_common::counter::Counter;

use super::{
    Coverage, Frame, Frames, Moment, ProcessInfo, ProcessKind, Profile, SharedFrame, StackProfile, Totals,
    Verdict, VerdictKind,
};

/// Counters that belong to no process and are repeated in every profile.
const OF_NO_PROCESS: [Counter; 3] =
    [Counter::ProcessTableFull, Counter::MissedRun, Counter::UnwindRowsRemoved];

/// Adds a process's counter. Counters of no process are equal in all profiles.
pub(crate) fn add_count(sum: &mut u64, name: &str, count: u64) {
    let is_common = OF_NO_PROCESS.iter().any(|counter| counter.name() == name);
    *sum = if is_common { count.max(*sum) } else { *sum + count };
}

impl Profile {
    /// Merges profiles: each process becomes the root frame of its stacks and verdicts. A single profile is
    /// unchanged. "Nothing leaks" requires that all processes have been judged; a leak in one of them is
    /// always shown.
    pub fn merge<'a>(profiles: impl ExactSizeIterator<Item = &'a Self>) -> Cow<'a, Self> {
        let number = profiles.len();
        let mut profiles = profiles.peekable();
        let Some(first) = profiles.peek() else { return Cow::Owned(Self::empty()) };
        if number == 1 {
            return Cow::Borrowed(first);
        }
        let mut merged = Self {
            started_at: first.started_at,
            taken_at: first.taken_at,
            coverage: first.coverage,
            ..Self::empty()
        };
        merged.process.comm = format!("{number} processes");
        let mut history = BTreeMap::<_, Vec<Totals>>::new();
        let (mut judged, mut settle) = (0, None::<Duration>);
        for profile in profiles {
            for moment in &profile.history {
                // Profiles of one report share its instant.
                history.entry(moment.at).or_default().push(moment.live);
            }
            merged.started_at = merged.started_at.min(profile.started_at);
            merged.taken_at = merged.taken_at.max(profile.taken_at);
            merged.unknown_frees += profile.unknown_frees;
            merged.unjudged_sites += profile.unjudged_sites;
            merged.cost = match (merged.cost, profile.cost) {
                (Some(one), Some(other)) => Some(one.and(other)),
                (one, other) => one.or(other),
            };
            for (counts, more) in [(&mut merged.lost, &profile.lost), (&mut merged.notes, &profile.notes)] {
                for (name, count) in more {
                    add_count(counts.entry(name.clone()).or_default(), name, *count);
                }
            }
            if profile.is_judged() {
                judged += 1;
                merged.snapshots =
                    if judged == 1 { profile.snapshots } else { merged.snapshots.min(profile.snapshots) };
                settle = Some(settle.unwrap_or(Duration::MAX).min(profile.coverage.settle));
            }
            let root = root(&profile.process);
            merged.stacks.extend(
                profile
                    .stacks
                    .iter()
                    .map(|stack| StackProfile { frames: below(&root, &stack.frames), ..stack.clone() }),
            );
            merged.verdicts.extend(
                profile
                    .verdicts
                    .iter()
                    .map(|verdict| Verdict { frames: below(&root, &verdict.frames), ..verdict.clone() }),
            );
        }
        merged.verdicts.sort_by(Verdict::worst_first);
        let leaks = merged.verdicts.first().is_some_and(|worst| worst.kind == VerdictKind::Leaking);
        match settle {
            Some(settle) if judged == number || leaks => merged.coverage.settle = settle,
            _ => merged.unjudge(),
        }
        let sums =
            history.into_iter().map(|(at, live)| Moment { at, live: live.into_iter().sum(), resident: None });
        merged.history = sums.collect();
        Cow::Owned(merged)
    }

    /// An empty profile of no process.
    pub(crate) fn empty() -> Self {
        Self {
            started_at: jiff::Timestamp::UNIX_EPOCH,
            taken_at: jiff::Timestamp::UNIX_EPOCH,
            process: ProcessInfo {
                pid: 0,
                start_time: 0,
                comm: "no process".to_owned(),
                exe: String::new(),
                kind: ProcessKind::Native,
                forked_from: None,
                container_pid: None,
            },
            ended: None,
            coverage: Coverage::default(),
            lost: BTreeMap::new(),
            notes: BTreeMap::new(),
            unknown_frees: 0,
            stacks: Vec::new(),
            history: Vec::new(),
            instants_ns: Arc::default(),
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
}

/// The frame that represents a process.
fn root(process: &ProcessInfo) -> SharedFrame {
    let symbol = format!("{} (pid {})", process.comm, process.pid);
    Frame { symbol, ..Frame::default() }.into()
}

fn below(root: &SharedFrame, frames: &Frames) -> Frames {
    frames.iter().chain([root]).cloned().collect()
}

#[cfg(test)]
mod tests {
    use crate::profile::{Profile, Totals, VerdictKind};
    use crate::render::sample;

    #[test]
    fn one_profile_stays_as_it_is_and_several_stand_below_their_processes() {
        let one = sample::profile();
        assert_eq!(*Profile::merge([&one].into_iter()), one);
        let mut other = one.clone();
        other.process.pid = one.process.pid + 1;
        let merged = Profile::merge([&one, &other].into_iter());
        let sum = |totals: Totals| totals.bytes * 2;
        assert_eq!(merged.live().bytes, sum(one.live()));
        assert_eq!(merged.allocated().bytes, sum(one.allocated()));
        let roots: std::collections::BTreeSet<_> =
            merged.stacks.iter().map(|stack| stack.frames.last().unwrap().symbol.clone()).collect();
        assert_eq!(roots.len(), 2);
        assert_eq!(merged.unknown_frees, 2 * one.unknown_frees);
    }

    #[test]
    fn verdicts_stand_below_their_processes_worst_first() {
        let one = sample::judged();
        let mut other = one.clone();
        other.process.pid = one.process.pid + 1;
        let merged = Profile::merge([&one, &other].into_iter());
        assert!(merged.is_judged());
        let kinds: Vec<_> = merged.verdicts.iter().map(|verdict| verdict.kind).collect();
        assert_eq!(kinds, VerdictKind::ALL.map(|kind| [kind; 2]).concat());
        let roots = merged.verdicts[..2].iter().map(|verdict| verdict.frames.last().unwrap().symbol.as_str());
        assert_eq!(roots.collect::<Vec<_>>(), ["leaky (pid 4242)", "leaky (pid 4243)"]);
    }

    #[test]
    fn nothing_leaks_only_if_all_processes_have_been_judged() {
        let nothing = Profile { verdicts: Vec::new(), ..sample::judged() };
        assert!(Profile::merge([&nothing, &nothing].into_iter()).is_judged());
        let unjudged = sample::profile();
        assert!(!Profile::merge([&nothing, &unjudged].into_iter()).is_judged());
        let judged = sample::judged();
        let leaks = Profile::merge([&unjudged, &judged].into_iter());
        assert!(leaks.is_judged() && leaks.verdicts[0].kind == VerdictKind::Leaking);
    }

    #[test]
    fn no_profile_at_all_is_an_empty_one() {
        assert!(Profile::merge([].into_iter()).stacks.is_empty());
    }
}
