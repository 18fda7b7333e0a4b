//! What is remembered of a process from profile to profile.
//!
//! - `known`: which call site each stack is of.
//! - `look`: a profile by its call sites.
//! - `series`: what is remembered of a call site.
//! - `said`: what is said of call sites at a look.

mod known;
mod look;
mod said;
mod series;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::judge::{Before, OLD};
use crate::collect::Timeline;
use crate::fast_map::{FastMap, FastSet};
use crate::profile::{Basis, Profile, Totals, Verdict};
use known::KnownStacks;
use look::{Look, Now};
use said::{Judged, Said, worst_first};
use series::Series;

/// Call sites that are remembered of a process, at less than 2 KiB each: more than programs have. Beyond, those go first that
/// cannot be leaks: see [`History::bound`]. The others are counted as not judged.
const MAX_SITES: usize = 10_000;

/// Call sites that are judged anew at a look that is one of many ([`Pace::InTurn`]), of each process: a few milliseconds' work.
const JUDGED_AT_ONCE: usize = 500;

/// From one look back at what is old to the next, the time watched grows by this factor: of the last two, one is always
/// between half and seven tenths of the time ago.
const BETWEEN_MARKS: f64 = std::f64::consts::SQRT_2;

/// Which call sites a look judges anew. Figures are those of the look in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// All.
    Thorough,
    /// A part of them, so that looks one after the other judge all; and those that are new. A past of minutes is hardly another
    /// one a few seconds later.
    InTurn,
}

/// The past of a process's call sites, of bounded size, and what is to be thought of them.
#[derive(Debug, Default)]
pub struct History {
    /// The instants that are remembered, in nanoseconds.
    instants_ns: Vec<u64>,
    /// When accounting began, likewise.
    began_ns: u64,
    sites: FastMap<u64, Series>,
    /// Frees of what was allocated before.
    before: Before,
    /// What call sites without a past had allocated at the last look: only what they allocate from then on counts when they
    /// are taken in again.
    forgotten: FastMap<u64, Totals>,
    /// Call sites that hold something and of which no past is remembered.
    unjudged: u64,
    known: KnownStacks,
    /// Looks that were taken in.
    taken_in: u64,
    /// Looks at which verdicts were asked for.
    looks: u64,
    /// Those since call sites were last judged, at which only figures were.
    glances: usize,
    /// When survivors were last marked, since accounting began; the latest last.
    marks: [f64; 2],
    /// Instants of profiles that have none.
    timeline: Timeline,
}

impl History {
    /// Takes in the next profile of the process. Returns what is to be thought of each call site that holds something or has
    /// done so, what is worst first.
    pub fn observe(&mut self, profile: &Profile, pace: Pace) -> Vec<Verdict> {
        let look = self.take_in(profile);
        self.judge(profile, &look, pace)
    }

    /// What was thought of each call site when it was last judged, with the figures of this profile, of which nothing else is
    /// taken in: for looks that tell no more of the past. What is new is not judged yet.
    pub fn glance(&mut self, profile: &Profile) -> Vec<Verdict> {
        self.glances += 1;
        self.looks += 1;
        let look = Look::at(profile, &[], &self.instants_ns, &mut self.known);
        let new = Judged::nothing(Basis::ShortPast);
        let said = look.sites.iter().filter_map(|now| {
            let judged = match self.sites.get(&now.site) {
                Some(Series { judged: Some(judged), .. }) => judged,
                // It has never held anything, or there are too many.
                Some(_) if now.live.is_nothing() => return None,
                None if now.live.is_nothing() || self.forgotten.contains_key(&now.site) => return None,
                Some(_) | None => &new,
            };
            Some(Said { judged, now })
        });
        worst_first(&said.collect::<Vec<_>>(), &self.before, &self.ends())
    }

    fn take_in<'a>(&mut self, profile: &'a Profile) -> Look<'a> {
        let instants_ns = self.advance(profile);
        let look = Look::at(profile, &instants_ns, &self.instants_ns, &mut self.known);
        self.remember(&look, profile.coverage.settle);
        look
    }

    /// Adds the profile's instant, and forgets those that it does not know of any more. Returns the instants of the profile.
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
        // Mostly, the last instant only moves on.
        let moves_on = self.instants_ns.split_last().is_some_and(|(_, before)| before == kept);
        if !moves_on && kept.len() < self.instants_ns.len() {
            // What belonged to an instant that is gone belongs to the next one.
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

    fn remember(&mut self, look: &Look<'_>, settle: Duration) {
        let sites = &look.sites;
        let intervals = self.instants_ns.len();
        let elapsed = self.seconds(self.instants_ns[intervals - 1]);
        let mark = elapsed > 0. && elapsed >= self.marks[1] * BETWEEN_MARKS;
        if mark {
            self.marks = [self.marks[1], elapsed];
        }
        let (age, settle) = (OLD * elapsed, settle.as_secs_f64());
        let old =
            self.instants_ns.partition_point(|instant| self.seconds(*instant) <= elapsed - age.max(settle));
        self.taken_in += 1;
        for now in sites {
            if let Some(before) = self.forgotten.get_mut(&now.site) {
                // What allocates nothing does not leak, and what holds nothing neither.
                if now.allocated.bytes == before.bytes || now.live.bytes == 0 {
                    *before = now.allocated;
                    continue;
                }
            }
            let forgotten = &mut self.forgotten;
            let series =
                self.sites.entry(now.site).or_insert_with(|| Series::since(forgotten.remove(&now.site)));
            series.extend(intervals);
            series.enter(now, look.live_of_first(now, old));
            series.seen_at = self.taken_in;
            if mark {
                series.mark(look, Some(now));
            }
        }
        for series in self.sites.values_mut().filter(|series| series.seen_at != self.taken_in) {
            series.extend(intervals);
            series.holds = 0;
            if mark {
                series.mark(look, None);
            }
        }
        if !self.forgotten.is_empty() {
            let known: FastSet<_> = sites.iter().map(|now| now.site).collect();
            self.forgotten.retain(|id, _| known.contains(id));
        }
        self.bound(MAX_SITES);
        // All others are remembered.
        let is_unjudged = |now: &&Now<'_>| now.live.bytes > 0 && !self.sites.contains_key(&now.site);
        self.unjudged =
            if self.forgotten.is_empty() { 0 } else { sites.iter().filter(is_unjudged).count() as u64 };
    }

    /// Forgets call sites, if there are too many: first those that hold nothing, then those that have not grown since they were
    /// taken in, then those that are new. A leak holds little for long, but it grows: what has a past and has grown goes
    /// last, that with the shortest past first.
    fn bound(&mut self, most: usize) {
        let too_many = self.sites.len().saturating_sub(most);
        if too_many == 0 {
            return;
        }
        let worth = |series: &Series| match series.holds {
            0 => (0, 0, 0),
            holds if series.looks < 2 => (2, 0, holds),
            holds if holds > series.held_at_first => (3, series.looks, holds),
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

    fn judge(&mut self, profile: &Profile, look: &Look<'_>, pace: Pace) -> Vec<Verdict> {
        let sites = &look.sites;
        let ends = self.ends();
        self.looks += 1;
        // As many a look as if each were one at which call sites are judged.
        let turns = sites.len().div_ceil(JUDGED_AT_ONCE).max(1) as u64;
        let first = self.looks - (self.glances as u64).min(turns - 1);
        self.glances = 0;
        let is_due = |site: u64| {
            let passed = (site % turns + turns - first % turns) % turns;
            pace == Pace::Thorough || passed <= self.looks - first
        };
        for now in sites {
            if let Some(series) = self.sites.get_mut(&now.site)
                && (is_due(now.site) || series.judged.is_none())
            {
                series.judged = series.judge(profile, look, now, &ends, self.marks);
            }
        }
        let said = sites.iter().filter_map(|now| {
            let judged = self.sites.get(&now.site)?.judged.as_ref()?;
            Some(Said { judged, now })
        });
        worst_first(&said.collect::<Vec<_>>(), &self.before, &ends)
    }

    /// When intervals end, in seconds since accounting began.
    fn ends(&self) -> Vec<f64> {
        self.instants_ns.iter().map(|instant| self.seconds(*instant)).collect()
    }
}

/// The call sites that hold something, without any claim: for a profile in which nothing was judged.
#[must_use]
pub fn call_sites(profile: &Profile) -> Vec<Verdict> {
    let look = Look::at(profile, &[], &[], &mut KnownStacks::default());
    let judged = &Judged::nothing(Basis::Nothing);
    let holding = look.sites.iter().filter(|now| !now.live.is_nothing());
    let said: Vec<_> = holding.map(|now| Said { judged, now }).collect();
    worst_first(&said, &Before::default(), &[])
}

/// The histories of several processes.
#[derive(Debug, Default)]
pub struct Histories {
    /// By PID and start time.
    of: HashMap<(u32, u64), History>,
}

impl Histories {
    /// Takes in the next profile of a process, and says in it what is to be thought of its call sites.
    pub fn judge(&mut self, profile: &mut Profile, pace: Pace) {
        let history = self.of(profile);
        profile.verdicts = history.observe(profile, pace);
        profile.looks = u32::try_from(history.instants_ns.len()).unwrap_or(u32::MAX);
        profile.unjudged_sites = history.unjudged;
    }

    /// Says in a profile what was last thought of its call sites, without taking it in: see [`History::glance`].
    pub fn glance(&mut self, profile: &mut Profile) {
        let history = self.of(profile);
        profile.verdicts = history.glance(profile);
        profile.looks = u32::try_from(history.instants_ns.len()).unwrap_or(u32::MAX);
        profile.unjudged_sites = history.unjudged;
    }

    /// Takes in the next profile of a process for the sake of later ones.
    pub fn remember(&mut self, profile: &Profile) {
        self.of(profile).take_in(profile);
    }

    fn of(&mut self, profile: &Profile) -> &mut History {
        self.of.entry((profile.process.pid, profile.process.start_time)).or_default()
    }

    /// The profile was the last one of its process.
    pub fn forget(&mut self, profile: &Profile) {
        self.of.remove(&(profile.process.pid, profile.process.start_time));
    }
}

#[cfg(test)]
mod tests;
