//! Snapshot of one instant: the profiles, and a row for each process and call site.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::Cost;
use super::assessment::Assessment;
use crate::fast_map::FastMap;
use crate::profile::{ProcessInfo, Profile, SourceKind, StackProfile, Totals, Verdict};
use crate::render::words::{Words, words};

/// Identity of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ProcessKey {
    pub(super) pid: u32,
    start_time: u64,
}

/// Identity of a call site in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SiteKey {
    pub(super) process: ProcessKey,
    pub(super) site: u64,
}

/// Change of live bytes and objects since the previous snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Delta {
    pub(super) bytes: i64,
    pub(super) objects: i64,
}

/// A row of a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Index of its profile.
    pub(super) profile: usize,
    /// Index of the verdict of a call site; `None` for a process.
    pub(super) verdict: Option<usize>,
    /// Key of the call site; a process has site 0.
    pub(super) key: SiteKey,
    pub(super) assessment: Assessment,
    pub(super) live: Totals,
    pub(super) delta: Delta,
    /// Growth in bytes per second.
    pub(super) rate: f64,
    /// Age of the oldest live block.
    pub(super) oldest: Option<Duration>,
}

/// Profiles and rows of one instant.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    pub(super) profiles: Vec<Arc<Profile>>,
    /// A row for each process.
    pub(super) processes: Vec<Row>,
    /// A row for each call site.
    pub(super) sites: Vec<Row>,
    pub(super) cost: Cost,
    /// Allocations per second, of all processes.
    pub(super) allocations: f64,
}

/// Figures of the previous snapshot.
#[derive(Debug, Default)]
pub(super) struct Previous {
    /// Ages by stack, reused between snapshots: there are thousands of stacks.
    ages: FastMap<u64, Duration>,
    processes: HashMap<ProcessKey, Process>,
    allocated: u64,
    elapsed: Duration,
}

/// Previous figures of a process.
#[derive(Debug, Default)]
struct Process {
    live: Totals,
    /// Live totals by call site.
    sites: FastMap<u64, Totals>,
}

impl Snapshot {
    /// Builds the rows of profiles, and replaces `before`, the previous figures, with the current ones.
    pub(super) fn new(profiles: Vec<Arc<Profile>>, cost: Cost, before: &mut Previous) -> Self {
        let mut snapshot = Self { cost, ..Self::default() };
        let mut now = Previous { ages: mem::take(&mut before.ages), ..Previous::default() };
        for (index, profile) in profiles.iter().enumerate() {
            let process = ProcessKey::of(&profile.process);
            let ages = &mut now.ages;
            ages.clear();
            ages.reserve(profile.stacks.len());
            ages.extend(
                profile.stacks.iter().filter_map(|stack| Some((stack.id, stack.details.ages?.oldest))),
            );
            let mut known: Process = before.processes.remove(&process).unwrap_or_default();
            let mut worst = None;
            snapshot.sites.reserve(profile.verdicts.len());
            for (number, verdict) in profile.verdicts.iter().enumerate() {
                let key = SiteKey { process, site: verdict.site };
                let assessment = Assessment::of(verdict);
                worst = Some(worst.map_or(assessment, |worst: Assessment| worst.min(assessment)));
                snapshot.sites.push(Row {
                    profile: index,
                    verdict: Some(number),
                    key,
                    assessment,
                    live: verdict.live,
                    delta: Delta::between(known.sites.insert(verdict.site, verdict.live), verdict.live),
                    rate: verdict.rate.map_or(0., |rate| rate.per_second),
                    oldest: verdict.stacks.iter().filter_map(|id| ages.get(id)).max().copied(),
                });
            }
            if known.sites.len() > profile.verdicts.len() {
                // Some call sites have disappeared.
                known.sites = profile.verdicts.iter().map(|verdict| (verdict.site, verdict.live)).collect();
            }
            let live = profile.live();
            let delta = Delta::between(Some(mem::replace(&mut known.live, live)), live);
            now.processes.insert(process, known);
            now.allocated += profile.allocated().objects;
            now.elapsed = now.elapsed.max(profile.elapsed());
            snapshot.processes.push(Row {
                profile: index,
                verdict: None,
                key: SiteKey { process, site: 0 },
                assessment: worst.unwrap_or(Assessment::Unjudged),
                live,
                delta,
                // Only growing call sites have a rate.
                rate: profile
                    .verdicts
                    .iter()
                    .filter_map(|verdict| verdict.rate)
                    .map(|rate| rate.per_second)
                    .sum(),
                oldest: ages.values().max().copied(),
            });
        }
        let seconds = now.elapsed.saturating_sub(before.elapsed).as_secs_f64();
        if seconds > 0. {
            snapshot.allocations = as_float(now.allocated.saturating_sub(before.allocated)) / seconds;
        }
        *before = now;
        snapshot.profiles = profiles;
        snapshot
    }

    /// Words for the figures, which are of one source.
    pub(super) fn words(&self) -> &'static Words {
        words(self.profiles.first().map_or(SourceKind::Malloc, |profile| profile.coverage.source))
    }

    pub(super) fn profile(&self, row: &Row) -> &Profile {
        &self.profiles[row.profile]
    }

    pub(super) fn verdict(&self, row: &Row) -> Option<&Verdict> {
        row.verdict.map(|index| &self.profile(row).verdicts[index])
    }

    /// The profile of a process.
    pub(super) fn find_process(&self, key: ProcessKey) -> Option<&Arc<Profile>> {
        self.profiles.iter().find(|profile| ProcessKey::of(&profile.process) == key)
    }

    /// The row of a call site.
    pub(super) fn find_site(&self, key: SiteKey) -> Option<&Row> {
        self.sites.iter().find(|row| row.key == key)
    }

    /// The stacks of a call site, those that hold the most first.
    pub(super) fn stacks(&self, row: &Row) -> Vec<&StackProfile> {
        let Some(verdict) = self.verdict(row) else { return Vec::new() };
        let is_of_site = |stack: &&StackProfile| verdict.stacks.contains(&stack.id);
        let mut stacks: Vec<_> = self.profile(row).stacks.iter().filter(is_of_site).collect();
        stacks.sort_by_key(|stack| (std::cmp::Reverse(stack.live.bytes), stack.id));
        stacks
    }
}

impl ProcessKey {
    pub(super) const fn of(process: &ProcessInfo) -> Self {
        Self { pid: process.pid, start_time: process.start_time }
    }
}

impl Delta {
    fn between(before: Option<Totals>, now: Totals) -> Self {
        let before = before.unwrap_or_default();
        Self {
            bytes: now.bytes.wrapping_sub(before.bytes).cast_signed(),
            objects: now.objects.wrapping_sub(before.objects).cast_signed(),
        }
    }
}

/// Number of call sites by assessment, in the order of [`Assessment::ALL`].
pub(super) fn assessments<'a>(sites: impl Iterator<Item = &'a Row>) -> [usize; Assessment::ALL.len()] {
    let mut counts = [0; Assessment::ALL.len()];
    for site in sites {
        counts[site.assessment as usize] += 1;
    }
    counts
}

#[expect(clippy::cast_precision_loss, reason = "a rate does not need 53 bits")]
pub(super) const fn as_float(number: u64) -> f64 {
    number as f64
}
