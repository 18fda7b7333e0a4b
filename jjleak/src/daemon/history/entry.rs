//! Entries of the index.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::profile::{Cost, Profile, SourceKind, Totals};
use crate::render::{duration, estimated_from, headline, in_short, leaks};

/// ID of a profile: the time at which it was taken, in milliseconds since 1970, and the PID, as `digits-digits`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id {
    milliseconds: i64,
    pid: u32,
}

impl Id {
    /// ID for a profile.
    #[must_use]
    pub fn of(profile: &Profile) -> Self {
        Self { milliseconds: profile.taken_at.as_millisecond().max(0), pid: profile.process.pid }
    }

    /// The ID a millisecond later.
    #[must_use]
    pub const fn next(&self) -> Self {
        Self { milliseconds: self.milliseconds.saturating_add(1), pid: self.pid }
    }

    /// Time at which the profile was taken.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        Timestamp::from_millisecond(self.milliseconds).unwrap_or(Timestamp::MAX)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:013}-{}", self.milliseconds, self.pid)
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "not a profile ID".to_owned();
        let (milliseconds, pid) = text.split_once('-').ok_or_else(wrong)?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(milliseconds) || !is_number(pid) {
            return Err(wrong());
        }
        let id = Self {
            milliseconds: milliseconds.parse().map_err(|_| wrong())?,
            pid: pid.parse().map_err(|_| wrong())?,
        };
        // Accept the canonical form only: files are named by it.
        if id.to_string() == text { Ok(id) } else { Err(wrong()) }
    }
}

impl TryFrom<String> for Id {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.to_string()
    }
}

/// Summary of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// ID of the profile.
    pub id: Id,
    /// Time at which it was taken.
    pub time: Timestamp,
    /// Start of accounting: the same for all profiles of a series, to within milliseconds.
    pub began: Timestamp,
    /// First profile of the series that was taken in one run; `None` if unknown because the index was lost.
    #[serde(default)]
    pub series: Option<Id>,
    /// The process.
    pub pid: u32,
    /// Its start time, in clock ticks since boot.
    pub start_time: u64,
    /// Its name.
    pub comm: String,
    /// Reason for profiling.
    pub why: String,
    /// Name of the source: allocations (`malloc`), the Java heap (`java_heap`), or pages that became resident (`growth`).
    #[serde(default)]
    pub source: String,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live objects.
    pub live_objects: u64,
    /// Bytes allocated per second; 0 if unknown.
    #[serde(default)]
    pub allocation_rate: f64,
    /// True if there is a verdict on leaks.
    pub judged: bool,
    /// The verdict on the process, in words.
    pub verdict: String,
    /// A few of the leaks that matter, worst first: the application's function, and what it calls.
    pub leaking: Vec<String>,
    /// Number of leaks that matter.
    #[serde(default)]
    pub leaking_sites: usize,
    /// Total leak rate in bytes per second.
    #[serde(default)]
    pub leak_rate: f64,
    /// Method of estimation; `None` if everything was counted.
    #[serde(default)]
    pub estimate: Option<Estimate>,
    /// Overhead since the previous profile; `None` if unknown.
    #[serde(default)]
    pub cost: Option<Costs>,
    /// True if anything was lost: figures are not exact.
    pub has_losses: bool,
    /// Losses by name.
    #[serde(default)]
    pub lost: BTreeMap<String, u64>,
    file_bytes: u64,
    picture_bytes: u64,
    checksum: u32,
}

/// Estimation of the figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Method, in words.
    pub from: String,
    /// True if the fate of each counted block is observed. If not, there can be no verdict, however long profiling takes.
    pub can_be_judged: bool,
}

/// Estimated overhead of profiling a process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Allocations and frees per second.
    pub calls_per_s: f64,
    /// Cost of each in nanoseconds; `None` if unknown.
    pub ns_per_call: Option<f64>,
    /// Share of the process's CPU time.
    pub of_cpu: Option<f64>,
}

impl From<Cost> for Costs {
    fn from(cost: Cost) -> Self {
        Self { calls_per_s: cost.calls_per_second(), ns_per_call: cost.ns_per_call(), of_cpu: cost.of_cpu() }
    }
}

/// Maximum difference of start times within a series, which are computed from elapsed times; series are further apart.
const SAME_BEGIN: Duration = Duration::from_secs(1);
/// Maximum number of call sites in an entry.
const MAX_SITES: usize = 10;

impl Entry {
    /// Summarizes a profile.
    #[must_use]
    pub fn of(id: Id, profile: &Profile, why: &str) -> Self {
        // A profile of a Java heap knows what was allocated, not what is live.
        let is_live = profile.coverage.source != SourceKind::JavaHeap;
        let live = if is_live { profile.live() } else { Totals::default() };
        let leaks = if profile.is_judged() { leaks(profile) } else { Vec::new() };
        let lost = profile.lost.iter().filter(|(_, count)| **count > 0);
        let lost: BTreeMap<_, _> = lost.map(|(name, count)| (name.clone(), *count)).collect();
        Self {
            id,
            time: profile.taken_at,
            began: profile.started_at,
            series: None,
            pid: profile.process.pid,
            start_time: profile.process.start_time,
            comm: profile.process.comm.clone(),
            why: why.to_owned(),
            source: profile.coverage.source.name().to_owned(),
            live_bytes: live.bytes,
            live_objects: live.objects,
            allocation_rate: per_second(profile.allocated().bytes, profile.elapsed()),
            judged: profile.is_judged(),
            verdict: verdict(profile),
            leaking_sites: leaks.len(),
            leak_rate: leaks.iter().fold(0., |sum, (_, per_second)| sum + per_second),
            leaking: leaks.into_iter().take(MAX_SITES).map(|(place, _)| place).collect(),
            estimate: estimated_from(&profile.coverage)
                .map(|from| Estimate { from, can_be_judged: profile.coverage.knows_live() }),
            cost: profile.cost.map(Costs::from),
            has_losses: !lost.is_empty(),
            lost,
            file_bytes: 0,
            picture_bytes: 0,
            checksum: 0,
        }
    }

    /// The source: allocations, unless another one is named.
    #[must_use]
    pub fn source(&self) -> SourceKind {
        SourceKind::named(&self.source).unwrap_or_default()
    }

    /// Adds the entry to a series, which begins with it if `first` is `None`.
    #[must_use]
    pub fn in_series(self, first: &mut Option<Id>) -> Self {
        Self { series: Some(first.get_or_insert_with(|| self.id.clone()).clone()), ..self }
    }

    /// Returns true if both are of the same series.
    #[must_use]
    pub fn is_same_series(&self, other: &Self) -> bool {
        if self.pid != other.pid || self.start_time != other.start_time {
            return false;
        }
        match (&self.series, &other.series) {
            (Some(own), Some(others)) => own == others,
            _ => self.began.duration_since(other.began).unsigned_abs() < SAME_BEGIN,
        }
    }

    /// Returns true if later profiles of its kind would add nothing: there is a verdict, or there can be none.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.judged || self.estimate.as_ref().is_some_and(|estimate| !estimate.can_be_judged)
    }

    /// Sets sizes and checksum from its files.
    pub(super) fn seal(&mut self, file: &[u8], picture: &[u8]) {
        (self.file_bytes, self.picture_bytes) = (file.len() as u64, picture.len() as u64);
        self.checksum = crc32fast::hash(file);
    }

    /// Returns true if a file with this length and checksum is unchanged.
    pub(super) const fn is_of(&self, (length, checksum): (u64, u32)) -> bool {
        self.file_bytes == length && self.checksum == checksum
    }

    /// Size of its files.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.file_bytes + self.picture_bytes
    }
}

/// One-line verdict on the process, with the method of estimation.
fn verdict(profile: &Profile) -> String {
    if !profile.coverage.source.is_judged() {
        return in_short(profile);
    }
    match estimated_from(&profile.coverage) {
        None => headline(profile),
        Some(from) if !profile.coverage.knows_live() => {
            let watched = duration(profile.elapsed());
            let needed = profile.coverage.windows.and_then(|windows| windows.needed_percent);
            let remedy = needed.map_or_else(String::new, |needed| format!(" (it takes {needed} %)"));
            format!(
                "watched for {watched}: following all frees costs more than profile.max_overhead allows{remedy}, so live memory is \
                 unknown and no call site is judged; estimates from {from}"
            )
        }
        Some(from) => format!("{}; estimates from {from}", headline(profile)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn per_second(bytes: u64, over: Duration) -> f64 {
    if over.is_zero() { 0. } else { bytes as f64 / over.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{InWindows, Sampling};
    use crate::render::sample;

    #[test]
    fn estimates_are_labelled_and_impossible_verdicts_are_final() {
        let entry = |profile: &Profile| Entry::of(Id::of(profile), profile, "a test");
        let mut profile = sample::judged();
        let exact = entry(&profile);
        assert_eq!((exact.estimate.clone(), exact.is_final()), (None, true));
        profile.coverage.sampling = Sampling::Bytes(4096);
        let sampled = entry(&profile);
        assert!(
            sampled.verdict.ends_with("; estimates from one allocation in 4096 bytes"),
            "{}",
            sampled.verdict
        );
        assert_eq!(sampled.leaking_sites, exact.leaking_sites);
        profile.coverage.sampling = Sampling::Off;
        profile.coverage.windows = Some(InWindows { windows: 12, ..InWindows::default() });
        profile.unjudge();
        let bounded = entry(&profile);
        assert!(
            bounded.verdict.contains("no call site is judged; estimates from 12 windows"),
            "{}",
            bounded.verdict
        );
        assert!(!bounded.judged && bounded.is_final() && bounded.leaking_sites == 0);
        // The empty sum must not be -0, which would be shown.
        assert!(bounded.leak_rate.is_sign_positive());
        let early = Profile { taken_at: profile.started_at, ..sample::judged() };
        assert!(!entry(&early).is_final());
    }

    #[test]
    fn profiles_of_one_run_are_a_series() {
        let taken = |second: i64| {
            let second = Timestamp::from_second(second).unwrap();
            let profile = Profile { taken_at: second, ..sample::judged() };
            Entry::of(Id::of(&profile), &profile, "a test")
        };
        let (mut first, mut next) = (None, None);
        let [a, b] = [100, 160].map(|second| taken(second).in_series(&mut first));
        let c = taken(220).in_series(&mut next);
        assert_eq!((a.series.as_ref(), b.series.as_ref()), (Some(&a.id), Some(&a.id)));
        // The start times are equal, so only the series tells them apart.
        assert!(a.is_same_series(&b) && !b.is_same_series(&c) && a.began == c.began);
        let found = Entry { series: None, ..taken(280) };
        assert!(found.is_same_series(&a));
        let another = Entry { start_time: a.start_time + 1, ..b.clone() };
        assert!(!another.is_same_series(&a));
    }

    #[test]
    fn entries_of_earlier_versions_are_read() {
        let profile = sample::judged();
        let mut json = serde_json::to_value(Entry::of(Id::of(&profile), &profile, "a test")).unwrap();
        for key in ["leaking_sites", "leak_rate", "estimate", "cost", "lost", "series", "source"] {
            json.as_object_mut().unwrap().remove(key).unwrap();
        }
        assert_eq!(serde_json::from_value::<Entry>(json).unwrap().estimate, None);
    }
}
