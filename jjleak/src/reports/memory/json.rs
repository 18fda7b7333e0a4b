//! The report as JSON: docs/memory.md.

use serde_json::{Map, Value, json as value};

use super::{Change, MemoryReport};
use crate::diagnosis::Finding;
use crate::memory::hotspot::{CodeHeapMemory, JvmMemory, NativeCategory};
use crate::memory::{Kind, ProcessScan};
use crate::processes::GroupMemory;

/// Version of the document.
const SCHEMA: u32 = 1;

/// The report as one line of JSON.
#[must_use]
pub fn json(report: &MemoryReport<'_>) -> String {
    let scan = &report.scan.scan;
    let rows = report.changes().iter().map(|change| row(report.scan, change)).collect::<Vec<_>>();
    let rows: Vec<_> = rows.into_iter().chain(without_pages(report.scan)).collect();
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
        "nmt": nmt(report.scan),
        "diagnosis": report.findings().iter().map(finding).collect::<Vec<_>>(),
        "unknown": report.unknown(),
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
        "details": details(scan, change.kind, change.name),
    })
}

/// Rows of a JVM's memory whose pages other rows count: parts of malloc, and metaspace if its addresses are unknown.
fn without_pages(scan: &ProcessScan) -> Vec<Value> {
    let metaspace = scan.jvm.as_ref().filter(|jvm| jvm.metaspace.ranges.is_err()).map(metaspace);
    let parts = [
        (Kind::Metaspace, metaspace),
        (Kind::DirectBuffers, direct_buffers(scan)),
        (Kind::SymbolTables, tables(scan)),
    ];
    let known = parts.into_iter().filter_map(|(kind, details)| Some((kind, details?)));
    let row = |(kind, details): (Kind, Map<String, Value>)| value!({ "kind": kind.name(), "name": "", "resident_bytes": 0, "grown_bytes": 0, "details": details });
    known.map(row).collect()
}

fn direct_buffers(scan: &ProcessScan) -> Option<Map<String, Value>> {
    let direct = scan.jvm.as_ref()?.direct.as_ref().ok()?;
    let mut details = Map::new();
    details.insert("reserved_bytes".to_owned(), direct.reserved.into());
    details.insert("capacity_bytes".to_owned(), direct.capacity.into());
    details.insert("max_bytes".to_owned(), direct.most.into());
    details.insert("count".to_owned(), direct.count.into());
    details.extend(direct.netty.ok().map(|bytes| ("netty_bytes".to_owned(), bytes.into())));
    Some(details)
}

fn tables(scan: &ProcessScan) -> Option<Map<String, Value>> {
    let tables = scan.jvm.as_ref()?.tables.ok()?;
    let figures = [
        ("symbols", tables.symbols.items),
        ("symbol_buckets", tables.symbols.buckets),
        ("strings", tables.strings.items),
        ("string_buckets", tables.strings.buckets),
    ];
    Some(figures.into_iter().map(|(name, figure)| (name.to_owned(), figure.into())).collect())
}

/// Sizes of metaspace, class space included, and numbers of classes.
fn metaspace(jvm: &JvmMemory) -> Map<String, Value> {
    let space = jvm.metaspace.all;
    let figures = [
        ("used_bytes", space.map(|space| space.used)),
        ("committed_bytes", space.map(|space| space.committed)),
        ("classes_loaded", jvm.classes.loaded),
        ("classes_unloaded", jvm.classes.unloaded),
        ("class_loaders", jvm.classes.loaders),
    ];
    let known = figures.into_iter().filter_map(|(name, figure)| Some((name.to_owned(), figure.ok()?.into())));
    known.collect()
}

/// Native memory of a JVM by category; `None` if there is no JVM, or it does not count.
fn nmt(scan: &ProcessScan) -> Option<Vec<Value>> {
    let categories = scan.jvm.as_ref()?.native.as_ref().ok()?.as_ref()?;
    let value = |category: &NativeCategory| {
        value!({
            "name": category.name,
            "malloc_bytes": category.malloc,
            "arena_bytes": category.arena,
            "reserved_bytes": category.reserved,
            "committed_bytes": category.committed,
        })
    };
    Some(categories.iter().map(value).collect())
}

/// Known figures of a kind; unknown ones are left out.
fn details(scan: &ProcessScan, kind: Kind, name: &str) -> Map<String, Value> {
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
            details.extend(metaspace(jvm));
        }
        (Kind::Code, Some(jvm), _) => {
            let has_name = |heap: &&CodeHeapMemory| heap.name.as_deref() == Ok(name);
            let heap = jvm.code.iter().flatten().find(has_name);
            add("used_bytes", heap.and_then(|heap| heap.used.ok()));
            add("committed_bytes", heap.map(|heap| heap.committed));
        }
        (Kind::ClassSpace, Some(jvm), _) => {
            let space = jvm.metaspace.class_space;
            add("used_bytes", space.ok().map(|space| space.used));
            add("committed_bytes", space.ok().map(|space| space.committed));
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
