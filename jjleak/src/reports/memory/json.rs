//! The report as JSON: docs/memory.md.

use serde_json::{Map, Value, json as value};

use super::{Change, MemoryReport};
use crate::diagnosis::Finding;
use crate::memory::{Kind, ProcessScan};
use crate::processes::GroupMemory;

/// Version of the document.
const SCHEMA: u32 = 1;

/// The report as one line of JSON.
#[must_use]
pub fn json(report: &MemoryReport<'_>) -> String {
    let scan = &report.scan.scan;
    let rows = report.changes().iter().map(|change| row(report.scan, change)).collect::<Vec<_>>();
    let rows: Vec<_> = rows.into_iter().chain(direct_buffers(report.scan)).collect();
    let document = value!({
        "schema": SCHEMA,
        "time": report.taken_at.to_string(),
        "process": {
            "pid": report.process.pid.to_string().parse::<u32>().unwrap_or_default(),
            "comm": report.process.comm,
            "threads": report.scan.threads,
        },
        "elapsed_ms": report.first.map_or(0, |(_, elapsed)| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)),
        "rss_bytes": scan.resident,
        "grown_bytes": report.grown(),
        "pss_bytes": scan.proportional,
        "swap_bytes": scan.swapped,
        "page_table_bytes": report.scan.page_tables,
        "limit": report.scan.limit.as_ref().map(|limit| value!({
            "is_cgroup": limit.is_cgroup,
            "limit_bytes": limit.limit,
            "available_bytes": limit.available,
        })),
        "cgroup": report.scan.control_group.as_ref().map(group),
        "rows": rows,
        "diagnosis": report.findings().iter().map(finding).collect::<Vec<_>>(),
        "unknown": report.scan.unknown,
    });
    format!("{document}\n")
}

fn finding(finding: &Finding) -> Value {
    value!({
        "cause": finding.cause.name(),
        "grown_bytes": finding.bytes,
        "confidence": finding.confidence,
        "evidence": finding.evidence,
        "to_do": finding.to_do,
    })
}

fn group(group: &GroupMemory) -> Value {
    value!({
        "current_bytes": group.current,
        "anon_bytes": group.anonymous,
        "file_bytes": group.file,
        "shmem_bytes": group.shared,
        "sock_bytes": group.sockets,
        "slab_bytes": group.slab,
        "kernel_stack_bytes": group.kernel_stacks,
        "pagetables_bytes": group.page_tables,
    })
}

fn row(scan: &ProcessScan, change: &Change<'_>) -> Value {
    value!({
        "kind": change.kind.name(),
        "name": change.name,
        "resident_bytes": change.resident,
        "grown_bytes": change.grown,
        "details": details(scan, change.kind),
    })
}

/// Direct buffers of a JVM. Their pages are counted as malloc's.
fn direct_buffers(scan: &ProcessScan) -> Option<Value> {
    let direct = scan.jvm.as_ref()?.direct.as_ref().ok()?;
    let mut details = Map::new();
    details.insert("reserved_bytes".to_owned(), direct.reserved.into());
    details.insert("capacity_bytes".to_owned(), direct.capacity.into());
    details.insert("max_bytes".to_owned(), direct.most.into());
    details.insert("count".to_owned(), direct.count.into());
    details.extend(direct.netty.ok().map(|bytes| ("netty_bytes".to_owned(), bytes.into())));
    let kind = Kind::DirectBuffers;
    let rest = value!({ "name": "", "resident_bytes": 0, "grown_bytes": 0 });
    let mut row = value!({ "kind": kind.name(), "details": details });
    row.as_object_mut()?.extend(rest.as_object().cloned().unwrap_or_default());
    Some(row)
}

/// Known figures of a kind; unknown ones are left out.
fn details(scan: &ProcessScan, kind: Kind) -> Map<String, Value> {
    let mut details = Map::new();
    let mut add = |name: &str, known: Option<u64>| {
        details.extend(known.map(|known| (name.to_owned(), known.into())));
    };
    match (kind, &scan.jvm, &scan.malloc) {
        (Kind::JavaHeap, Some(jvm), _) => {
            add("used_bytes", jvm.heap.used.ok());
            add("committed_bytes", jvm.heap.committed.ok());
            add("used_after_collection_bytes", jvm.heap.used_after_collection.ok());
        }
        (Kind::Metaspace, Some(jvm), _) => {
            add("used_bytes", jvm.metaspace.all.as_ref().ok().map(|space| space.used));
            add("classes_loaded", jvm.classes.loaded.ok());
            add("classes_unloaded", jvm.classes.unloaded.ok());
            add("class_loaders", jvm.classes.loaders.ok());
        }
        (Kind::MallocLive, _, Some(usage)) => {
            add("live_bytes", Some(usage.live.bytes));
            add("live_chunks", (!usage.is_by_lists).then_some(usage.live.count));
            add("pinned_free_bytes", Some(usage.free.pinned));
            add("cached_bytes", (!usage.is_by_lists).then_some(usage.cached.bytes));
        }
        (Kind::MallocFree, _, Some(usage)) => add("trimmable_bytes", Some(usage.free.trimmable)),
        _ => {}
    }
    details
}
