//! History of a process's call sites across profiles.
//!
//! - `known`: maps stacks to call sites.
//! - `snapshot`: a profile grouped by call site.
//! - `series`: the history of one call site.
//! - `assessment`: a judgement combined with a snapshot's figures.

mod assessment;
mod known;
mod series;
mod snapshot;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::judge::{Before, OLD};
use crate::fast_map::{FastMap, FastSet};
use crate::profile::{Basis, Coverage, ProcessInfo, Profile, SourceKind, Totals, Verdict};
use crate::snapshot::Timeline;
use assessment::{Assessment, Judged, worst_first};
use known::KnownStacks;
use series::Series;
use snapshot::{SiteSnapshot, Snapshot};

/// Maximum number of remembered call sites per process, at less than 2 KiB each; programs have fewer. Beyond
/// it, those least likely to be leaks are evicted: see [`History::bound`]. Evicted ones are counted as not
/// judged.
const MAX_SITES: usize = 10_000;

/// Call sites judged per snapshot with [`Pace::InTurn`], per process: a few milliseconds of work.
const JUDGED_PER_SNAPSHOT: usize = 500;

/// Factor by which the watched time grows between two marks. Of the last two marks, one is always between
/// half and seven tenths of that time ago.
const MARK_SPACING: f64 = std::f64::consts::SQRT_2;

/// Which call sites a snapshot judges anew. Figures always come from the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// All call sites.
    Thorough,
    /// New call sites and a share of the rest, so that consecutive snapshots cover all. A history of minutes
    /// hardly changes within seconds.
    InTurn,
}

/// Bounded history of a process's call sites, and the judgements on them.
#[derive(Debug, Default)]
pub struct History {
    /// Remembered instants, in nanoseconds.
    instants_ns: Vec<u64>,
    /// Start of accounting, in nanoseconds.
    began_ns: u64,
    sites: FastMap<u64, Series>,
    /// Frees of blocks from before accounting began.
    before: Before,
    /// Totals that evicted call sites had allocated at the last snapshot. Only later allocations count if one
    /// is remembered again.
    forgotten: FastMap<u64, Totals>,
    /// Call sites that hold memory and have no history.
    unjudged: u64,
    known: KnownStacks,
    /// Number of recorded snapshots.
    recorded: u64,
    /// Number of snapshots that asked for verdicts.
    snapshots: u64,
    /// Number of refreshes since call sites were last judged.
    refreshes: usize,
    /// Times of the last two survivor marks, in seconds since accounting began, latest last.
    marks: [f64; 2],
    /// Instants for profiles that carry none.
    timeline: Timeline,
}

impl History {
    /// Records the next profile of the process. Returns a verdict for each call site that holds or has held
    /// memory, worst first.
    pub fn observe(&mut self, profile: &Profile, pace: Pace) -> Vec<Verdict> {
        let snapshot = self.record(profile);
        self.verdicts(profile, &snapshot, pace)
    }

    /// Records the next profile of the process and stores its verdicts in it.
    pub fn judge(&mut self, profile: &mut Profile, pace: Pace) {
        profile.verdicts = self.observe(profile, pace);
        self.describe(profile);
    }

    fn describe(&self, profile: &mut Profile) {
        profile.snapshots = u32::try_from(self.instants_ns.len()).unwrap_or(u32::MAX);
        profile.unjudged_sites = self.unjudged;
    }

    /// Returns the last judgement on each call site with this profile's figures. It records nothing else: for
    /// snapshots that add nothing to the history. New call sites are not judged yet.
    pub fn refresh(&mut self, profile: &Profile) -> Vec<Verdict> {
        self.refreshes += 1;
        self.snapshots += 1;
        let snapshot = Snapshot::at(profile, &[], &self.instants_ns, &mut self.known);
        let new = Judged::nothing(Basis::ShortHistory);
        let assessments = snapshot.sites.iter().filter_map(|now| {
            let judged = match self.sites.get(&now.site) {
                Some(Series { judged: Some(judged), .. }) => judged,
                // It has never held anything, or was evicted.
                Some(_) if now.live.is_nothing() => return None,
                None if now.live.is_nothing() || self.forgotten.contains_key(&now.site) => return None,
                Some(_) | None => &new,
            };
            Some(Assessment { judged, now })
        });
        worst_first(&assessments.collect::<Vec<_>>(), &self.before, &self.ends())
    }

    /// Records the next profile of the process, for later verdicts.
    pub fn remember(&mut self, profile: &Profile) {
        self.record(profile);
    }

    fn record<'a>(&mut self, profile: &'a Profile) -> Snapshot<'a> {
        let instants_ns = self.advance(profile);
        let snapshot = Snapshot::at(profile, &instants_ns, &self.instants_ns, &mut self.known);
        self.enter(&snapshot, profile.coverage);
        snapshot
    }

    /// Adds the profile's instant and drops instants that the profile no longer has. Returns the profile's
    /// instants.
    fn advance(&mut self, profile: &Profile) -> Arc<[u64]> {
        let elapsed_ns = u64::try_from(profile.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let instants_ns = if profile.instants_ns.is_empty() {
            self.timeline.cut(elapsed_ns);
            self.timeline.instants_ns().into()
        } else {
            Arc::clone(&profile.instants_ns)
        };
        let now_ns = instants_ns.last().copied().unwrap_or_default();
        self.began_ns = now_ns.saturating_sub(elapsed_ns);
        let known = |instant: &u64| instants_ns.binary_search(instant).is_ok();
        let kept: Vec<_> = self.instants_ns.iter().copied().filter(known).filter(|at| *at < now_ns).collect();
        // Usually only the last instant moves on.
        let moves_on = self.instants_ns.split_last().is_some_and(|(_, before)| before == kept);
        if !moves_on && kept.len() < self.instants_ns.len() {
            // Merge a dropped instant into the next one.
            let next = |instant: &u64| kept.partition_point(|kept| kept < instant);
            let map: Vec<_> = self.instants_ns.iter().map(next).collect();
            self.before.thin(&map, kept.len() + 1);
            self.sites.values_mut().for_each(|series| series.thin(&map, kept.len() + 1));
        }
        self.instants_ns = kept;
        self.instants_ns.push(now_ns);
        self.before.enter(profile, self.instants_ns.len());
        instants_ns
    }

    fn enter(&mut self, snapshot: &Snapshot<'_>, coverage: Coverage) {
        let sites = &snapshot.sites;
        let intervals = self.instants_ns.len();
        let elapsed = self.seconds(self.instants_ns[intervals - 1]);
        let mark = elapsed > 0. && elapsed >= self.marks[1] * MARK_SPACING;
        if mark {
            self.marks = [self.marks[1], elapsed];
        }
        let (age, settle) = (OLD * elapsed, coverage.settle.as_secs_f64());
        let old =
            self.instants_ns.partition_point(|instant| self.seconds(*instant) <= elapsed - age.max(settle));
        self.recorded += 1;
        for now in sites {
            if let Some(before) = self.forgotten.get_mut(&now.site) {
                // A site that allocates nothing or holds nothing does not leak.
                if now.allocated.bytes == before.bytes || now.live.bytes == 0 {
                    *before = now.allocated;
                    continue;
                }
            }
            let forgotten = &mut self.forgotten;
            let series =
                self.sites.entry(now.site).or_insert_with(|| Series::since(forgotten.remove(&now.site)));
            series.extend(intervals);
            series.enter(now, snapshot.live_of_first(now, old), coverage.source == SourceKind::File);
            series.last_seen = self.recorded;
            if mark {
                series.mark(snapshot, Some(now));
            }
        }
        for series in self.sites.values_mut().filter(|series| series.last_seen != self.recorded) {
            series.extend(intervals);
            series.holds = 0;
            if mark {
                series.mark(snapshot, None);
            }
        }
        if !self.forgotten.is_empty() {
            let known: FastSet<_> = sites.iter().map(|now| now.site).collect();
            self.forgotten.retain(|id, _| known.contains(id));
        }
        self.bound(MAX_SITES);
        // All others are remembered.
        let is_unjudged = |now: &&SiteSnapshot<'_>| now.live.bytes > 0 && !self.sites.contains_key(&now.site);
        self.unjudged =
            if self.forgotten.is_empty() { 0 } else { sites.iter().filter(is_unjudged).count() as u64 };
    }

    /// Evicts call sites beyond `most`: first those that hold nothing, then those that have not grown since
    /// they were added, then new ones. A leak may hold little for long, but it grows: sites with a history of
    /// growth go last, the shortest history first.
    fn bound(&mut self, most: usize) {
        let too_many = self.sites.len().saturating_sub(most);
        if too_many == 0 {
            return;
        }
        let worth = |series: &Series| match series.holds {
            0 => (0, 0, 0),
            holds if series.snapshots < 2 => (2, 0, holds),
            holds if holds > series.held_at_first => (3, series.snapshots, holds),
            holds => (1, 0, holds),
        };
        let mut all: Vec<_> = self.sites.iter().map(|(id, series)| (worth(series), *id)).collect();
        all.sort_unstable();
        for (_, id) in &all[..too_many] {
            if let Some(series) = self.sites.remove(id) {
                self.forgotten.insert(*id, series.total);
            }
        }
    }

    fn seconds(&self, instant_ns: u64) -> f64 {
        Duration::from_nanos(instant_ns.saturating_sub(self.began_ns)).as_secs_f64()
    }

    fn verdicts(&mut self, profile: &Profile, snapshot: &Snapshot<'_>, pace: Pace) -> Vec<Verdict> {
        let sites = &snapshot.sites;
        let ends = self.ends();
        self.snapshots += 1;
        // Refreshes count as turns too, so that each site is judged as often as without them.
        let turns = sites.len().div_ceil(JUDGED_PER_SNAPSHOT).max(1) as u64;
        let first = self.snapshots - (self.refreshes as u64).min(turns - 1);
        self.refreshes = 0;
        let is_due = |site: u64| {
            let passed = (site % turns + turns - first % turns) % turns;
            pace == Pace::Thorough || passed <= self.snapshots - first
        };
        for now in sites {
            if let Some(series) = self.sites.get_mut(&now.site)
                && (is_due(now.site) || series.judged.is_none())
            {
                series.judged = series.judge(profile, snapshot, now, &ends, self.marks);
            }
        }
        let assessments = sites.iter().filter_map(|now| {
            let judged = self.sites.get(&now.site)?.judged.as_ref()?;
            Some(Assessment { judged, now })
        });
        worst_first(&assessments.collect::<Vec<_>>(), &self.before, &ends)
    }

    /// Ends of the intervals, in seconds since accounting began.
    fn ends(&self) -> Vec<f64> {
        self.instants_ns.iter().map(|instant| self.seconds(*instant)).collect()
    }
}

/// Verdicts without claims on the call sites that hold memory, for a profile that was not judged.
#[must_use]
pub fn call_sites(profile: &Profile) -> Vec<Verdict> {
    let snapshot = Snapshot::at(profile, &[], &[], &mut KnownStacks::default());
    let judged = &Judged::nothing(Basis::Nothing);
    let holding = snapshot.sites.iter().filter(|now| !now.live.is_nothing());
    let assessments: Vec<_> = holding.map(|now| Assessment { judged, now }).collect();
    worst_first(&assessments, &Before::default(), &[])
}

/// The histories of several processes.
#[derive(Debug, Default)]
pub struct Histories {
    /// By PID and start time.
    of: HashMap<(u32, u64), History>,
}

impl Histories {
    /// Records the next profile of a process and stores its verdicts in it.
    pub fn judge(&mut self, profile: &mut Profile, pace: Pace) {
        self.of(profile).judge(profile, pace);
    }

    /// Stores the last verdicts in a profile without recording it: see [`History::refresh`].
    pub fn refresh(&mut self, profile: &mut Profile) {
        let history = self.of(profile);
        profile.verdicts = history.refresh(profile);
        history.describe(profile);
    }

    /// Records the next profile of a process, without verdicts, for later ones.
    pub fn remember(&mut self, profile: &Profile) {
        self.of(profile).remember(profile);
    }

    fn of(&mut self, profile: &Profile) -> &mut History {
        self.of.entry((profile.process.pid, profile.process.start_time)).or_default()
    }

    /// Drops the history of a process after its last profile.
    pub fn forget(&mut self, process: &ProcessInfo) {
        self.of.remove(&(process.pid, process.start_time));
    }
}

#[cfg(test)]
mod tests;
