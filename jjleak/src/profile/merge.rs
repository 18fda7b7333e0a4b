//! Puts profiles of several processes side by side.

use std::collections::BTreeMap;
use std::sync::Arc;

use jjleak_common::counter::Counter;

use super::{Coverage, Frame, Moment, ProcessInfo, ProcessKind, Profile, StackProfile, Totals};

impl Profile {
    /// One profile of several: each process is a frame below which its stacks stand. A single one stays as it is.
    pub fn merge<'a>(profiles: impl ExactSizeIterator<Item = &'a Self>) -> Self {
        let number = profiles.len();
        let mut profiles = profiles.peekable();
        let Some(first) = profiles.peek() else { return Self::empty() };
        if number == 1 {
            return (*first).clone();
        }
        let mut merged = Self {
            started_at: first.started_at,
            taken_at: first.taken_at,
            coverage: first.coverage,
            ..Self::empty()
        };
        merged.process.comm = format!("{number} processes");
        let mut history = BTreeMap::<_, Vec<Totals>>::new();
        for profile in profiles {
            for moment in &profile.history {
                // Profiles of one report share its instant.
                history.entry(moment.at).or_default().push(moment.live);
            }
            merged.started_at = merged.started_at.min(profile.started_at);
            merged.taken_at = merged.taken_at.max(profile.taken_at);
            merged.unknown_frees += profile.unknown_frees;
            for (counts, more) in [(&mut merged.lost, &profile.lost), (&mut merged.notes, &profile.notes)] {
                for (name, count) in more {
                    let sum = counts.entry(name.clone()).or_default();
                    // What belongs to no process stands in every process's profile.
                    *sum = if name == Counter::ProcessTableFull.name() { *count } else { *sum + count };
                }
            }
            merged.stacks.extend(profile.stacks.iter().map(|stack| below(&profile.process, stack)));
        }
        let sums = history.into_iter().map(|(at, live)| Moment { at, live: live.into_iter().sum() });
        merged.history = sums.collect();
        merged
    }

    fn empty() -> Self {
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
            memory: None,
            verdicts: Vec::new(),
            looks: 0,
            unjudged_sites: 0,
        }
    }
}

fn below(process: &ProcessInfo, stack: &StackProfile) -> StackProfile {
    let symbol = format!("{} (pid {})", process.comm, process.pid);
    let root = Frame { symbol, ..Frame::default() };
    let frames: Arc<[Frame]> = stack.frames.iter().cloned().chain([root]).collect();
    StackProfile { frames, ..stack.clone() }
}

#[cfg(test)]
mod tests {
    use crate::profile::{Profile, Totals};
    use crate::render::sample;

    #[test]
    fn one_profile_stays_as_it_is_and_several_stand_below_their_processes() {
        let one = sample::profile();
        assert_eq!(Profile::merge([&one].into_iter()), one);
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
    fn no_profile_at_all_is_an_empty_one() {
        assert!(Profile::merge([].into_iter()).stacks.is_empty());
    }
}
