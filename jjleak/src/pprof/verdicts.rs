//! Verdicts and memory limits, in jjleak's own fields.

use std::time::Duration;

use super::error::Error;
use super::limits::Budget;
use super::proto::{MemoryDetail, PointDetail, RateDetail, SurvivalDetail, TotalsDetail, VerdictDetail};
use super::tables::Tables;
use crate::profile::{Basis, Memory, MemoryKind, Point, Rate, Survival, Totals, Verdict, VerdictKind};

/// Encodes a verdict; its frames and the name of its kind are in tables.
pub(super) fn write(verdict: &Verdict, kind: i64, location_id: Vec<u64>) -> VerdictDetail {
    VerdictDetail {
        kind,
        is_early: verdict.basis == Basis::ShortHistory,
        confidence: verdict.confidence,
        site: verdict.site,
        stack_id: verdict.stacks.to_vec(),
        location_id,
        caller: verdict.caller as u64,
        live: Some(write_totals(verdict.live)),
        allocated: Some(write_totals(verdict.allocated)),
        watched: nanoseconds(verdict.watched),
        first_seen: nanoseconds(verdict.first_seen),
        rate: verdict.rate.map(|Rate { per_second, low, high }| RateDetail { per_second, low, high }),
        survival: verdict.survival.map(|survival| SurvivalDetail {
            older_than: nanoseconds(survival.older_than),
            allocated: Some(write_totals(survival.allocated)),
            live: Some(write_totals(survival.live)),
        }),
        allocation_rate: verdict.allocation_rate,
        free_rate: verdict.free_rate,
        freed_when_old: verdict.freed_when_old,
        freed_from_before: verdict.freed_from_before,
        not_resident: verdict.not_resident,
        hidden_stacks: verdict.hidden_stacks,
        flat_for: verdict.flat_for.map(nanoseconds),
        point: verdict
            .series
            .iter()
            .map(|point| PointDetail { at: nanoseconds(point.at), bytes: point.bytes })
            .collect(),
    }
}

/// Decodes a verdict; `None` for an unknown kind.
pub(super) fn read(
    detail: &VerdictDetail,
    tables: &mut Tables<'_>,
    budget: &mut Budget,
) -> Result<Option<Verdict>, Error> {
    let name = tables.string(detail.kind)?;
    let Some(kind) = VerdictKind::ALL.into_iter().find(|kind| kind.name() == name) else { return Ok(None) };
    let frames = tables.stack(&detail.location_id, budget)?;
    let caller = usize::try_from(detail.caller).unwrap_or_default().min(frames.len().saturating_sub(1));
    Ok(Some(Verdict {
        kind,
        basis: if detail.is_early { Basis::ShortHistory } else { Basis::LongHistory },
        confidence: detail.confidence,
        site: detail.site,
        stacks: detail.stack_id.iter().copied().collect(),
        frames: frames.into(),
        caller,
        live: read_totals(detail.live),
        allocated: read_totals(detail.allocated),
        watched: Duration::from_nanos(detail.watched),
        first_seen: Duration::from_nanos(detail.first_seen),
        rate: detail.rate.map(|RateDetail { per_second, low, high }| Rate { per_second, low, high }),
        survival: detail.survival.map(|survival| Survival {
            older_than: Duration::from_nanos(survival.older_than),
            allocated: read_totals(survival.allocated),
            live: read_totals(survival.live),
        }),
        allocation_rate: detail.allocation_rate,
        free_rate: detail.free_rate,
        freed_when_old: detail.freed_when_old,
        freed_from_before: detail.freed_from_before,
        not_resident: detail.not_resident,
        hidden_stacks: detail.hidden_stacks,
        flat_for: detail.flat_for.map(Duration::from_nanos),
        series: detail
            .point
            .iter()
            .map(|point| Point { at: Duration::from_nanos(point.at), bytes: point.bytes })
            .collect(),
    }))
}

pub(super) fn write_memory(memory: Memory, kind: i64) -> MemoryDetail {
    MemoryDetail { kind, limit: memory.limit, available: memory.available }
}

pub(super) fn read_memory(detail: &MemoryDetail, tables: &Tables<'_>) -> Result<Option<Memory>, Error> {
    let name = tables.string(detail.kind)?;
    let kind = [MemoryKind::Cgroup, MemoryKind::Ram].into_iter().find(|kind| kind.name() == name);
    Ok(kind.map(|kind| Memory { kind, limit: detail.limit, available: detail.available }))
}

fn write_totals(totals: Totals) -> TotalsDetail {
    TotalsDetail { bytes: totals.bytes, objects: totals.objects }
}

fn read_totals(detail: Option<TotalsDetail>) -> Totals {
    detail.map_or(Totals::default(), |detail| Totals { bytes: detail.bytes, objects: detail.objects })
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}
