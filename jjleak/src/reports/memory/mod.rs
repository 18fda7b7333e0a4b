//! Reports on the resident memory of a process.

mod html;
mod json;
mod table;
mod text;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::diagnosis::{Finding, diagnose};
use crate::memory::{Kind, ProcessScan};
use crate::processes::Process;

pub use html::{html, html_table};
pub use json::json;
pub use table::table;
pub use text::text;

/// A scan, and what has changed since the first one.
#[derive(Debug)]
pub struct MemoryReport<'scan> {
    /// The process.
    pub process: &'scan Process,
    /// Time of the scan.
    pub taken_at: Timestamp,
    /// The scan.
    pub scan: &'scan ProcessScan,
    /// The first scan, and the time since then; `None` if this is the first.
    pub first: Option<(&'scan ProcessScan, Duration)>,
}

/// Resident memory of one use, now and since the first scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change<'scan> {
    pub(super) kind: Kind,
    pub(super) name: &'scan str,
    pub(super) resident: u64,
    /// Change since the first scan.
    pub(super) grown: i64,
}

impl MemoryReport<'_> {
    /// Rows, the largest first; those that are gone last.
    pub(super) fn changes(&self) -> Vec<Change<'_>> {
        let before = self.first.map_or(&[][..], |(first, _)| &first.scan.rows);
        let mut earlier: BTreeMap<_, _> =
            before.iter().map(|row| ((row.kind, row.name.as_str()), row.resident)).collect();
        let is_first = self.first.is_none();
        let mut changes: Vec<_> = self
            .scan
            .scan
            .rows
            .iter()
            .map(|row| {
                let before = earlier.remove(&(row.kind, row.name.as_str())).unwrap_or(0);
                let grown = if is_first { 0 } else { difference(row.resident, before) };
                Change { kind: row.kind, name: &row.name, resident: row.resident, grown }
            })
            .collect();
        changes.extend(earlier.into_iter().map(|((kind, name), before)| Change {
            kind,
            name,
            resident: 0,
            grown: difference(0, before),
        }));
        changes
    }

    /// Causes of the growth since the first scan; empty for the first.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let pid = self.process.pid.number().get();
        self.first.map_or_else(Vec::new, |(first, elapsed)| diagnose(first, self.scan, elapsed, pid))
    }

    /// Parts that could not be read, with the reasons.
    pub(super) fn unknown(&self) -> Vec<String> {
        let of_jvm = self.scan.jvm.as_ref().map_or_else(Vec::new, |jvm| {
            let tables = jvm.tables.as_ref().err().map(|why| ("symbol and string tables", why));
            let native = jvm.native.as_ref().err().map(|why| ("Native Memory Tracking", why));
            let metaspace = jvm.metaspace.ranges.as_ref().err().map(|why| ("metaspace", why));
            metaspace.into_iter().chain(tables).chain(native).collect()
        });
        let lines = of_jvm.into_iter().map(|(what, why)| format!("the JVM's {what}: {why}"));
        self.scan.unknown.iter().cloned().chain(lines).collect()
    }

    /// Change of the resident memory since the first scan.
    pub(super) fn grown(&self) -> i64 {
        self.first.map_or(0, |(first, _)| difference(self.scan.scan.resident, first.scan.resident))
    }
}

#[cfg(test)]
mod tests;

fn difference(now: u64, before: u64) -> i64 {
    now.cast_signed().wrapping_sub(before.cast_signed())
}
