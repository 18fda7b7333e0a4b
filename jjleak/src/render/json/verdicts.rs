//! Verdicts in the JSON report.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ThreadDocument, TotalsDocument};
use crate::profile::{Basis, Memory, Profile, Rate, Survival, Verdict, VerdictKind};
use crate::render::threads::ThreadShares;
use crate::render::verdicts::{evidence, site};

/// Memory limit of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDocument {
    /// Source of the limit: `cgroup` or `ram`.
    pub kind: String,
    /// The limit.
    pub limit_bytes: u64,
    /// Remaining bytes.
    pub available_bytes: u64,
}

/// Verdict on a call site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerdictDocument {
    /// `leaking`, `growing`, `cache_like`, `start_up` or `steady_churn`.
    pub kind: String,
    /// True if the call site has not been watched long enough to say more than that it grows or does not; absent otherwise.
    #[serde(default, skip_serializing_if = "is_false")]
    pub too_early: bool,
    /// Range 0 to 1.
    pub confidence: f64,
    /// Function, module, file and line of the call site.
    pub call_site: String,
    /// Evidence, as in the text report.
    pub evidence: Vec<String>,
    /// ID of the call site, stable across reports of the process: 16 hexadecimal digits.
    pub site: String,
    /// IDs of its stacks.
    pub stacks: Vec<String>,
    /// Live memory.
    pub live: TotalsDocument,
    /// Memory allocated since accounting began.
    pub allocated: TotalsDocument,
    /// Seconds watched: since the first allocation, or since it began to leak.
    pub watched_s: f64,
    /// Time of the first allocation, in seconds since accounting began.
    pub first_seen_s: f64,
    /// Rate of growth; absent if it does not grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateDocument>,
    /// Survival of allocations that are old enough to judge; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survival: Option<SurvivalDocument>,
    /// Bytes allocated per second while watched.
    pub allocated_bytes_per_s: f64,
    /// Bytes freed per second while watched.
    pub freed_bytes_per_s: f64,
    /// Share of memory that was old at an earlier report and has been freed since; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freed_when_old: Option<f64>,
    /// Number of blocks from before accounting that are freed for each block that seems to be kept, in the whole process; present
    /// if it is so high that the kept blocks may only replace them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freed_from_before: Option<f64>,
    /// It may replace blocks from before accounting, and resident memory does not grow as fast; absent if false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub not_resident: bool,
    /// Number of the call site's stacks that are hidden by a view: rates, survival and evidence include them; absent if there are
    /// none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hidden_stacks: u64,
    /// Seconds without growth, if it grew before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flat_for_s: Option<f64>,
    /// Threads that have allocated there, largest live memory first; absent if threads are not distinguished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadShareDocument>,
    /// Live bytes over time, oldest first: seconds since accounting began, and bytes. Absent for start-up and churn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<(f64, u64)>,
}

/// Live memory of a thread at a call site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadShareDocument {
    /// The thread.
    pub thread: ThreadDocument,
    /// Live memory.
    pub live: TotalsDocument,
}

/// Growth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RateDocument {
    /// The estimate.
    pub bytes_per_s: f64,
    /// Lower bound of its 95 % confidence interval.
    pub low_bytes_per_s: f64,
    /// Upper bound of the interval.
    pub high_bytes_per_s: f64,
    /// The estimate per day.
    pub bytes_per_day: f64,
}

/// Survival of allocations of at least a certain age.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SurvivalDocument {
    /// Minimum age in seconds.
    pub older_than_s: f64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Bytes of these that are live.
    pub live_bytes: u64,
}

impl From<Memory> for MemoryDocument {
    fn from(Memory { kind, limit, available }: Memory) -> Self {
        Self { kind: kind.name().to_owned(), limit_bytes: limit, available_bytes: available }
    }
}

/// All verdicts of a profile, with their threads.
pub(super) fn documents(profile: &Profile) -> Vec<VerdictDocument> {
    let shares = ThreadShares::of(profile);
    let document = |verdict| {
        let threads = shares
            .of_verdict(verdict)
            .into_iter()
            .map(|(thread, live)| ThreadShareDocument { thread: thread.into(), live: live.into() });
        VerdictDocument { threads: threads.collect(), ..VerdictDocument::from(verdict) }
    };
    profile.verdicts.iter().map(document).collect()
}

impl From<&Verdict> for VerdictDocument {
    fn from(verdict: &Verdict) -> Self {
        let has_series = verdict.kind <= VerdictKind::CacheLike;
        let series = verdict.series.iter().filter(|_| has_series);
        Self {
            kind: verdict.kind.name().to_owned(),
            too_early: verdict.basis == Basis::ShortHistory,
            confidence: verdict.confidence,
            call_site: site(verdict),
            evidence: evidence(verdict),
            site: format!("{:016x}", verdict.site),
            stacks: verdict.stacks.iter().map(|stack| format!("{stack:016x}")).collect(),
            live: verdict.live.into(),
            allocated: verdict.allocated.into(),
            watched_s: verdict.watched.as_secs_f64(),
            first_seen_s: verdict.first_seen.as_secs_f64(),
            rate: verdict.rate.map(Into::into),
            survival: verdict.survival.map(Into::into),
            allocated_bytes_per_s: verdict.allocation_rate,
            freed_bytes_per_s: verdict.free_rate,
            freed_when_old: verdict.freed_when_old,
            freed_from_before: verdict.freed_from_before,
            not_resident: verdict.not_resident,
            hidden_stacks: verdict.hidden_stacks,
            flat_for_s: verdict.flat_for.map(|flat| Duration::as_secs_f64(&flat)),
            threads: Vec::new(),
            series: series.map(|point| (point.at.as_secs_f64(), point.bytes)).collect(),
        }
    }
}

impl From<Rate> for RateDocument {
    fn from(rate: Rate) -> Self {
        Self {
            bytes_per_s: rate.per_second,
            low_bytes_per_s: rate.low,
            high_bytes_per_s: rate.high,
            bytes_per_day: rate.per_day(),
        }
    }
}

impl From<Survival> for SurvivalDocument {
    fn from(survival: Survival) -> Self {
        Self {
            older_than_s: survival.older_than.as_secs_f64(),
            allocated_bytes: survival.allocated.bytes,
            live_bytes: survival.live.bytes,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(super) const fn is_false(switch: &bool) -> bool {
    !*switch
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}
