//! Saved profiles by process: several of one process are successive reports.

use std::collections::BTreeMap;
use std::mem;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use jjleak_common::counter::Counter;

use crate::analyze::{History, Pace};
use crate::profile::{Moment, Profile};

/// Minimum age at which allocations in dumps are judged, as for a run of its own.
const SETTLE: Duration = Duration::from_secs(15);

/// A profile that was read from a file.
#[derive(Debug)]
pub(super) struct SavedProfile {
    pub(super) profile: Profile,
    pub(super) instance: Option<Instance>,
}

/// The execution of a program that a saved profile is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Instance {
    /// jjleak's own profiles have the PID and start time, and their verdicts.
    Process { pid: u32, start_time: u64 },
    /// Dumps of an allocator have an address that differs with each execution, and at times the PID. They are judged here.
    Dumped { pid: u32, exe: PathBuf, address: u64 },
}

impl Instance {
    const fn is_dumped(&self) -> bool {
        matches!(self, Self::Dumped { .. })
    }
}

/// Profiles of several processes.
#[derive(Debug, Default)]
pub(super) struct SavedSeries(Vec<Process>);

#[derive(Debug)]
struct Process {
    /// Place among the profiles that the user has named.
    place: usize,
    instance: Option<Instance>,
    last: Profile,
    /// Dumps so far, once there are two.
    history: History,
    /// True if [`SavedSeries::take_new`] has not returned the last profile yet.
    is_new: bool,
}

impl SavedSeries {
    /// Adds a profile: the next of its process, or the first of another. `place` is its own among those that the user has named.
    /// Returns false for a dump that is left out, because it is not newer than the last one.
    #[must_use]
    pub(super) fn add(&mut self, place: usize, SavedProfile { mut profile, instance }: SavedProfile) -> bool {
        let is_known = |process: &&mut Process| instance.is_some() && process.instance == instance;
        let Some(process) = self.0.iter_mut().find(is_known) else {
            self.0.push(Process {
                place,
                instance,
                last: profile,
                history: History::default(),
                is_new: true,
            });
            return true;
        };
        process.place = process.place.min(place);
        let history = together(&process.last, &profile);
        if instance.is_some_and(|instance| instance.is_dumped()) {
            if profile.taken_at <= process.last.taken_at {
                return false;
            }
            process.judge(&mut profile);
        } else if profile.taken_at < process.last.taken_at {
            process.last.history = history;
            return true;
        }
        process.last = Profile { history, ..profile };
        process.is_new = true;
        true
    }

    /// The last profile of each process, with the history of all.
    pub(super) fn profiles(&self) -> Vec<Profile> {
        self.0.iter().map(|process| process.last.clone()).collect()
    }

    /// Those that are new since the last call.
    pub(super) fn take_new(&mut self) -> Vec<Profile> {
        let new =
            self.0.iter_mut().filter_map(|process| mem::take(&mut process.is_new).then_some(&process.last));
        new.cloned().collect()
    }

    /// Drops all processes but those with the latest profiles.
    pub(super) fn keep_latest(&mut self, most: usize) {
        while self.0.len() > most {
            let oldest = self.0.iter().enumerate().min_by_key(|(_, process)| process.last.taken_at);
            let Some((index, _)) = oldest else { return };
            self.0.remove(index);
        }
    }

    /// The same at the end, in the order that the user has chosen.
    pub(super) fn into_profiles(mut self) -> Vec<Profile> {
        self.0.sort_by_key(|process| process.place);
        self.0.into_iter().map(|process| process.last).collect()
    }
}

impl Process {
    /// Judges the call sites by all dumps up to this one. Where small stacks are summed up, a stack that gets larger than they are seems to be
    /// new: such dumps are not judged.
    fn judge(&mut self, dump: &mut Profile) {
        dump.started_at = self.last.started_at;
        if has_small_stacks(&self.last) || has_small_stacks(dump) {
            self.history = History::default();
            return;
        }
        if self.last.snapshots == 0 {
            self.history.remember(&self.last);
        }
        dump.coverage.settle = SETTLE;
        self.history.judge(dump, Pace::Thorough);
    }
}

fn has_small_stacks(profile: &Profile) -> bool {
    profile.notes.get(Counter::SmallStack.name()).is_some_and(|count| *count > 0)
}

/// The combined history of both.
fn together(one: &Profile, other: &Profile) -> Vec<Moment> {
    let themselves =
        [one, other].map(|it| Moment { at: it.taken_at, live: it.live(), resident: it.resident });
    let all = one.history.iter().chain(&other.history).chain(&themselves);
    let sorted: BTreeMap<Timestamp, Moment> = all.map(|moment| (moment.at, *moment)).collect();
    sorted.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::profile::{Frame, ProcessInfo, SourceKind, StackProfile, Totals, VerdictKind};
    use crate::render::sample;

    const MIB: u64 = 1 << 20;

    fn stack(function: &str, bytes: u64, error: Option<u64>) -> StackProfile {
        let live = Totals { bytes, objects: 1 };
        StackProfile {
            live,
            allocated: live,
            live_error: error.map(|bytes| Totals { bytes, objects: 1 }).into(),
            frames: sample::shared([Frame { symbol: function.to_owned(), ..Frame::default() }]),
            ..sample::empty_stack()
        }
    }

    fn dump(second: u64, address: u64, stacks: &[StackProfile]) -> SavedProfile {
        let mut profile = sample::empty_profile();
        profile.process = ProcessInfo { pid: 7, ..profile.process };
        profile.coverage.source = SourceKind::File;
        profile.coverage.settle = Duration::ZERO;
        profile.started_at = Timestamp::from_second(second.cast_signed()).unwrap();
        profile.taken_at = profile.started_at;
        profile.stacks = stacks.to_vec();
        SavedProfile { profile, instance: Some(Instance::Dumped { pid: 7, exe: "/app".into(), address }) }
    }

    /// The profiles of dumps that are ten seconds apart.
    fn after_dumps(count: u64, stacks: impl Fn(u64) -> Vec<StackProfile>) -> Profile {
        let mut series = SavedSeries::default();
        assert!((0..count).all(|index| series.add(0, dump(index * 10, 1, &stacks(index)))));
        series.into_profiles().remove(0)
    }

    fn kind(profile: &Profile, function: &str) -> VerdictKind {
        let of = |verdict: &&crate::profile::Verdict| verdict.frames[0].symbol == function;
        profile.verdicts.iter().find(of).unwrap().kind
    }

    #[test]
    fn what_grows_from_dump_to_dump_leaks_and_what_stays_does_not() {
        let last = after_dumps(9, |index| {
            vec![stack("grows", (index + 1) * MIB, Some(100 << 10)), stack("stays", MIB, None)]
        });
        assert!(last.is_judged());
        assert_eq!((last.elapsed(), last.snapshots, last.history.len()), (Duration::from_secs(80), 9, 9));
        assert_eq!(
            (kind(&last, "grows"), kind(&last, "stays")),
            (VerdictKind::Leaking, VerdictKind::StartUp)
        );
        let rate = last.verdicts[0].rate.unwrap().per_second * 10. / 1_048_576.;
        assert!((0.99..1.01).contains(&rate), "{rate} MiB per dump");
    }

    #[test]
    fn growth_counts_however_much_there_was_before() {
        // 1 GiB, and a MiB more in each dump: less than a tenth in all.
        let last = after_dumps(9, |index| {
            vec![stack("grows", (1024 + index) * MIB, None), stack("stays", 1024 * MIB, None)]
        });
        assert_eq!(
            (kind(&last, "grows"), kind(&last, "stays")),
            (VerdictKind::Leaking, VerdictKind::StartUp)
        );
        let filled = after_dumps(9, |index| vec![stack("fills", (1024 + index.min(2)) * MIB, None)]);
        assert_eq!(kind(&filled, "fills"), VerdictKind::StartUp);
    }

    #[test]
    fn growth_within_the_error_of_the_samples_is_no_leak() {
        let with_error = |error| {
            let last = after_dumps(9, |index| vec![stack("grows", (index + 1) * MIB, Some(error))]);
            kind(&last, "grows")
        };
        assert_eq!((with_error(4 * MIB), with_error(2 * MIB)), (VerdictKind::Growing, VerdictKind::Leaking));
    }

    #[test]
    fn dumps_whose_small_stacks_are_summed_up_are_not_judged() {
        let mut series = SavedSeries::default();
        let mut add = |index: u64, small| {
            let mut dump = dump(index * 10, 1, &[stack("grows", (index + 1) * MIB, None)]);
            dump.profile.notes.insert(Counter::SmallStack.name().to_owned(), small);
            assert!(series.add(0, dump));
            series.profiles().remove(0)
        };
        let with_small = (0..9).map(|index| add(index, 5)).last().unwrap();
        assert!(with_small.verdicts.is_empty());
        let without = (9..18).map(|index| add(index, 0)).last().unwrap();
        assert_eq!((kind(&without, "grows"), without.snapshots), (VerdictKind::Leaking, 9));
    }

    #[test]
    fn new_profiles_are_taken_once_and_the_oldest_processes_are_dropped() {
        let mut series = SavedSeries::default();
        for (address, second) in [(1, 10), (2, 20), (3, 30)] {
            assert!(series.add(0, dump(second, address, &[])));
        }
        let seconds = |profiles: Vec<Profile>| -> Vec<_> {
            profiles.iter().map(|profile| profile.taken_at.as_second()).collect()
        };
        assert_eq!(seconds(series.take_new()), [10, 20, 30]);
        assert!(series.take_new().is_empty());
        assert!(series.add(0, dump(40, 1, &[])));
        assert_eq!(seconds(series.take_new()), [40]);
        series.keep_latest(2);
        assert_eq!(seconds(series.profiles()), [40, 30]);
    }

    #[test]
    fn few_dumps_are_not_judged_and_one_has_no_verdicts() {
        let grows = |index| vec![stack("grows", (index + 1) * MIB, None)];
        assert!(after_dumps(1, grows).verdicts.is_empty());
        let last = after_dumps(5, grows);
        assert!(!last.is_judged());
        assert_eq!(kind(&last, "grows"), VerdictKind::Growing);
    }

    #[test]
    fn a_site_that_shrinks_for_a_while_keeps_its_history() {
        let last = after_dumps(9, |index| vec![stack("cache", (10 - index % 2) * MIB, None)]);
        assert_eq!(last.verdicts[0].series.len(), 9);
        assert!(last.verdicts[0].series.iter().all(|point| point.bytes >= 9 * MIB));
    }

    #[test]
    fn executions_of_one_program_are_apart_in_the_order_of_the_user() {
        let mut series = SavedSeries::default();
        for (place, second, address) in [(2, 10, 1), (0, 20, 2), (1, 30, 1), (3, 5, 1)] {
            let dump = dump(second, address, slice::from_ref(&stack("site", second * MIB, None)));
            assert_eq!(series.add(place, dump), second > 5, "an older one is left out");
        }
        let profiles = series.into_profiles();
        let seconds: Vec<_> = profiles.iter().map(|profile| profile.taken_at.as_second()).collect();
        assert_eq!(seconds, [20, 30]);
    }
}
