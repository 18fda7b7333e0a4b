//! What is remembered of a process from profile to profile.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::judge::{Before, Earlier, OLD, Past};
use super::site;
use crate::collect::Timeline;
use crate::profile::{Point, Profile, Sampling, StackProfile, Totals, Verdict};

/// Call sites that are remembered of a process, at less than 1 KiB each: more than programs have. Beyond, those go first that
/// cannot be leaks: see [`History::bound`]. The others are counted as not judged.
const MAX_SITES: usize = 10_000;

/// From one look back at what is old to the next, the time watched grows by this factor: of the last two, one is always
/// between half and seven tenths of the time ago.
const BETWEEN_MARKS: f64 = std::f64::consts::SQRT_2;

/// The past of a process's call sites, of bounded size, and what is to be thought of them.
#[derive(Debug, Default)]
pub struct History {
    /// The instants that are remembered, in nanoseconds.
    instants_ns: Vec<u64>,
    /// When accounting began, likewise.
    began_ns: u64,
    sites: HashMap<u64, Series>,
    /// Frees of what was allocated before.
    before: Before,
    /// What call sites without a past had allocated at the last look: only what they allocate from then on counts when they
    /// are taken in again.
    forgotten: HashMap<u64, Totals>,
    /// Call sites that hold something and of which no past is remembered.
    unjudged: u64,
    /// The call sites of stacks.
    of_stacks: HashMap<u64, u64>,
    /// When survivors were last marked, since accounting began; the latest last.
    marks: [f64; 2],
    /// Instants of profiles that have none.
    timeline: Timeline,
}

/// What is remembered of a call site, for each remembered instant.
#[derive(Debug, Default)]
struct Series {
    /// Bytes allocated since the instant before.
    allocated: Vec<f32>,
    /// Bytes that lived.
    live: Vec<f32>,
    /// Bytes among them that were old: see [`Past::old`].
    old: Vec<f32>,
    /// What lived, when survivors were marked, of what was allocated since the instant before.
    marks: [Vec<f32>; 2],
    /// What was allocated since accounting began.
    total: Totals,
    /// What lives, to tell which sites matter.
    holds: u64,
    /// Looks since it was taken in, and what lived then.
    looks: u32,
    held_at_first: u64,
}

/// What a profile says of a call site.
struct Now<'a> {
    site: u64,
    live: Totals,
    allocated: Totals,
    survivors: Vec<Totals>,
    stacks: Vec<u64>,
    /// That which holds the most.
    largest: &'a StackProfile,
}

impl History {
    /// Takes in the next profile of the process. Returns what is to be thought of each call site that holds something or has
    /// done so, what is worst first.
    pub fn observe(&mut self, profile: &Profile) -> Vec<Verdict> {
        let now = self.take_in(profile);
        self.judge(profile, &now)
    }

    fn take_in<'a>(&mut self, profile: &'a Profile) -> HashMap<u64, Now<'a>> {
        let instants_ns = self.advance(profile);
        let now = self.sites_of(profile, &instants_ns);
        self.remember(&now, profile.coverage.settle);
        now
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
        if kept.len() < self.instants_ns.len() {
            // What belonged to an instant that is gone belongs to the next one.
            let next = |instant: &u64| kept.partition_point(|kept| kept < instant);
            let map: Vec<_> = self.instants_ns.iter().map(next).collect();
            self.before.thin(&map, kept.len() + 1);
            self.sites.values_mut().for_each(|series| series.thin(&map, kept.len() + 1));
        } else {
            self.sites.values_mut().for_each(|series| series.extend(kept.len() + 1));
        }
        self.instants_ns = kept;
        self.instants_ns.push(now_ns);
        self.before.enter(profile, self.instants_ns.len());
        instants_ns
    }

    /// Sums the stacks of a profile up by their call sites.
    fn sites_of<'a>(&mut self, profile: &'a Profile, instants_ns: &[u64]) -> HashMap<u64, Now<'a>> {
        let own = &self.instants_ns;
        let interval_of: Vec<_> =
            instants_ns.iter().map(|end| own.partition_point(|own| own < end).min(own.len() - 1)).collect();
        let mut sites: HashMap<u64, Now<'a>> = HashMap::new();
        let mut of_stacks = HashMap::with_capacity(profile.stacks.len());
        for stack in &profile.stacks {
            let identify = || site::identity(&stack.frames, site::caller(&stack.frames));
            let site = self.of_stacks.get(&stack.id).copied().unwrap_or_else(identify);
            // A stack that could not be read yet will have frames later.
            if !stack.frames.is_empty() {
                of_stacks.insert(stack.id, site);
            }
            let now = sites.entry(site).or_insert_with(|| Now {
                site,
                live: Totals::default(),
                allocated: Totals::default(),
                survivors: Vec::new(),
                stacks: Vec::new(),
                largest: stack,
            });
            now.live = [now.live, stack.live].into_iter().sum();
            now.allocated = [now.allocated, stack.allocated].into_iter().sum();
            now.stacks.push(stack.id);
            if stack.live.bytes > now.largest.live.bytes {
                now.largest = stack;
            }
            if !stack.cohorts.is_empty() {
                now.survivors.resize(own.len(), Totals::default());
            }
            for cohort in &stack.cohorts {
                let interval =
                    interval_of.get(usize::from(cohort.interval)).copied().unwrap_or(own.len() - 1);
                now.survivors[interval] = [now.survivors[interval], cohort.live].into_iter().sum();
            }
        }
        self.of_stacks = of_stacks;
        sites
    }

    fn remember(&mut self, sites: &HashMap<u64, Now<'_>>, settle: Duration) {
        let intervals = self.instants_ns.len();
        let elapsed = self.seconds(self.instants_ns[intervals - 1]);
        let mark = elapsed > 0. && elapsed >= self.marks[1] * BETWEEN_MARKS;
        if mark {
            self.marks = [self.marks[1], elapsed];
        }
        let (age, settle) = (OLD * elapsed, settle.as_secs_f64());
        let old =
            self.instants_ns.partition_point(|instant| self.seconds(*instant) <= elapsed - age.max(settle));
        for (id, now) in sites {
            if let Some(before) = self.forgotten.get_mut(id) {
                // What allocates nothing does not leak, and what holds nothing neither.
                if now.allocated.bytes == before.bytes || now.live.bytes == 0 {
                    *before = now.allocated;
                    continue;
                }
            }
            let forgotten = &mut self.forgotten;
            let series = self.sites.entry(*id).or_insert_with(|| Series::since(forgotten.remove(id)));
            series.extend(intervals);
            series.enter(now, old);
        }
        for (id, series) in &mut self.sites {
            let now = sites.get(id);
            series.holds = now.map_or(0, |now| now.live.bytes);
            if mark {
                series.mark(now);
            }
        }
        self.forgotten.retain(|id, _| sites.contains_key(id));
        self.bound(MAX_SITES);
        let is_unjudged = |id: &u64, now: &Now<'_>| now.live.bytes > 0 && !self.sites.contains_key(id);
        self.unjudged = sites.iter().map(|(id, now)| u64::from(is_unjudged(id, now))).sum();
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

    fn judge(&self, profile: &Profile, sites: &HashMap<u64, Now<'_>>) -> Vec<Verdict> {
        let ends: Vec<_> = self.instants_ns.iter().map(|instant| self.seconds(*instant)).collect();
        let mut verdicts: Vec<_> = sites
            .iter()
            .filter_map(|(id, now)| self.verdict(profile, now, self.sites.get(id)?, &ends))
            .collect();
        self.before.doubt(&mut verdicts, &ends);
        verdicts.sort_by(Verdict::worst_first);
        verdicts
    }

    fn verdict(&self, profile: &Profile, now: &Now<'_>, series: &Series, ends: &[f64]) -> Option<Verdict> {
        let first = series.allocated.iter().position(|bytes| *bytes > 0.)?;
        if series.live.iter().all(|bytes| *bytes <= 0.) {
            return None;
        }
        let nothing = vec![Totals::default(); ends.len()];
        let has_ages = !profile.coverage.combined && !profile.instants_ns.is_empty();
        let survivors = if now.survivors.is_empty() { &nothing } else { &now.survivors };
        let earlier = |which: usize| Earlier { at: self.marks[which], survivors: &series.marks[which] };
        let past = Past {
            ends,
            first,
            allocated: &series.allocated,
            live: &series.live,
            old: &series.old,
            survivors: has_ages.then_some(survivors),
            earlier: [earlier(0), earlier(1)],
            settle: profile.coverage.settle.as_secs_f64(),
            weight: weight(profile.coverage.sampling, now.live),
        };
        let judged = past.judge();
        let (allocation_rate, free_rate) = past.turnover();
        let seconds = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Some(Verdict {
            kind: judged.kind,
            confidence: judged.confidence,
            site: now.site,
            stacks: now.stacks.clone(),
            frames: Arc::clone(&now.largest.frames),
            caller: site::caller(&now.largest.frames),
            live: now.live,
            allocated: now.allocated,
            watched: seconds(judged.watched),
            first_seen: seconds(first.checked_sub(1).map_or(0., |before| ends[before])),
            rate: judged.rate,
            survival: judged.survival,
            allocation_rate,
            free_rate,
            freed_when_old: judged.freed_when_old,
            freed_from_before: None,
            flat_for: judged.flat_for.map(seconds),
            series: points(ends, &series.live),
        })
    }
}

fn points(ends: &[f64], live: &[f32]) -> Vec<Point> {
    let point = |(end, live): (&f64, &f32)| Point {
        at: Duration::try_from_secs_f64(*end).unwrap_or_default(),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rounded sum of bytes"
        )]
        bytes: *live as u64,
    };
    ends.iter().zip(live).map(point).collect()
}

/// How many blocks each that was drawn stands for, on average.
fn weight(sampling: Sampling, live: Totals) -> f64 {
    match sampling {
        Sampling::Off => 1.,
        Sampling::Rate(rate) => f64::from(rate),
        Sampling::Bytes(bytes) => {
            let size = super::statistics::figure(live.bytes) / super::statistics::figure(live.objects.max(1));
            let drawn = 1. - (-size / super::statistics::figure(bytes.max(1))).exp();
            1. / drawn.max(f64::EPSILON)
        }
    }
}

impl Series {
    /// Of a call site that had allocated so much when it was last looked at without being remembered.
    fn since(total: Option<Totals>) -> Self {
        Self { total: total.unwrap_or_default(), ..Self::default() }
    }

    /// Makes room for so many instants.
    fn extend(&mut self, instants: usize) {
        self.allocated.resize(instants, 0.);
        self.live.resize(instants, 0.);
        self.old.resize(instants, 0.);
        for marks in &mut self.marks {
            marks.resize(instants, 0.);
        }
    }

    /// Adds up what belongs to the same instant now: `map` has the new index of each old one.
    fn thin(&mut self, map: &[usize], instants: usize) {
        let add = |old: &[f32]| {
            let mut new = vec![0.; instants];
            for (figure, index) in old.iter().zip(map) {
                new[*index] += figure;
            }
            new
        };
        self.allocated = add(&self.allocated);
        self.marks = [add(&self.marks[0]), add(&self.marks[1])];
        let last = |old: &[f32]| {
            let mut new = vec![0.; instants];
            for (figure, index) in old.iter().zip(map) {
                new[*index] = *figure;
            }
            new
        };
        self.live = last(&self.live);
        self.old = last(&self.old);
    }

    #[expect(clippy::cast_precision_loss, reason = "estimates have no use for more than 24 bits")]
    fn enter(&mut self, now: &Now<'_>, old: usize) {
        if now.allocated.bytes < self.total.bytes {
            // Another program with the same functions.
            let instants = self.live.len();
            *self = Self::default();
            self.extend(instants);
        }
        let last = self.live.len() - 1;
        self.allocated[last] += (now.allocated.bytes - self.total.bytes) as f32;
        self.live[last] = now.live.bytes as f32;
        self.old[last] = now.survivors.iter().take(old).map(|survivors| survivors.bytes as f32).sum();
        self.total = now.allocated;
        if self.looks == 0 {
            self.held_at_first = now.live.bytes;
        }
        self.looks = self.looks.saturating_add(1);
    }

    #[expect(clippy::cast_precision_loss, reason = "estimates have no use for more than 24 bits")]
    fn mark(&mut self, now: Option<&Now<'_>>) {
        let instants = self.live.len();
        let mut marks = vec![0.; instants];
        for (mark, survivors) in marks.iter_mut().zip(now.map_or(&[][..], |now| &now.survivors)) {
            *mark = survivors.bytes as f32;
        }
        self.marks.swap(0, 1);
        self.marks[1] = marks;
    }
}

/// The histories of several processes.
#[derive(Debug, Default)]
pub struct Histories {
    /// By PID and start time.
    of: HashMap<(u32, u64), History>,
}

impl Histories {
    /// Takes in the next profile of a process, and says in it what is to be thought of its call sites.
    pub fn judge(&mut self, profile: &mut Profile) {
        let history = self.of(profile);
        profile.verdicts = history.observe(profile);
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
