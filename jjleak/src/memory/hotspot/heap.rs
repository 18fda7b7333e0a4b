//! The Java heap, by collector (`src/hotspot/share/gc` in the JDK).

use std::ops::Range;

use super::{JavaHeap, Reader, Reading, Unknown};
use crate::jvm::Memory;
use crate::jvm::description::flags;

/// Flag of each collector, and its name.
const COLLECTORS: [(&str, &str); 6] = [
    ("UseG1GC", "G1"),
    ("UseSerialGC", "Serial"),
    ("UseParallelGC", "Parallel"),
    ("UseZGC", "ZGC"),
    ("UseShenandoahGC", "Shenandoah"),
    ("UseEpsilonGC", "Epsilon"),
];
/// Name under which ZGC maps its heap.
const ZGC_FILE: &str = "/memfd:java_heap";

pub(super) fn read<M: Memory>(reader: &Reader<'_, M>, number: &impl Fn(&str) -> Reading<u64>) -> JavaHeap {
    let collector = collector(reader);
    let reserved = match collector {
        Ok("ZGC") => zgc_ranges(reader),
        _ => reserved(reader).map(|range| vec![range]),
    };
    let sizes = collector.and_then(|collector| match collector {
        "G1" => g1(reader),
        "Serial" => serial(reader),
        "Parallel" => parallel(reader),
        "ZGC" => zgc(reader),
        "Shenandoah" => shenandoah(reader),
        _ => Err(Unknown::Undescribed),
    });
    let sizes = sizes.and_then(|(used, committed)| {
        let most = reserved
            .as_ref()
            .map_or(u64::MAX, |ranges| ranges.iter().map(|range| range.end - range.start).sum());
        (used <= committed && (committed <= most || collector == Ok("ZGC")))
            .then_some((used, committed))
            .ok_or(Unknown::Implausible)
    });
    JavaHeap {
        collector,
        reserved,
        used: sizes.map(|(used, _)| used),
        committed: sizes.map(|(_, committed)| committed),
        used_after_collection: after_collection(collector, number),
    }
}

fn collector<M: Memory>(reader: &Reader<'_, M>) -> Reading<&'static str> {
    let flags = flags(reader.memory, reader.structs).ok_or(Unknown::Unreadable)?;
    let is_on = |flag| flags.get(flag).is_some_and(|(at, _)| reader.memory.number(*at, 1) == Some(1));
    let found = COLLECTORS.iter().find(|(flag, _)| is_on(*flag)).map(|(_, name)| *name);
    found.ok_or(Unknown::Undescribed)
}

fn heap<M: Memory>(reader: &Reader<'_, M>) -> Reading<u64> {
    reader.fixed(&[("Universe", "_collectedHeap")])
}

fn reserved<M: Memory>(reader: &Reader<'_, M>) -> Reading<Range<u64>> {
    let region = reader.inner(heap(reader)?, &[("CollectedHeap", "_reserved")])?;
    let start = reader.field(region, &[("MemRegion", "_start")])?;
    let words = reader.field(region, &[("MemRegion", "_word_size")])?;
    let end = words.checked_mul(8).and_then(|bytes| start.checked_add(bytes)).ok_or(Unknown::Implausible)?;
    reader.mapped(start..end)
}

fn zgc_ranges<M: Memory>(reader: &Reader<'_, M>) -> Reading<Vec<Range<u64>>> {
    let is_heap = |path: &str| path.starts_with(ZGC_FILE);
    let found = reader.mappings.iter().filter(|mapping| mapping.path.to_str().is_some_and(is_heap));
    let found: Vec<_> = found.map(|mapping| mapping.addresses.clone()).collect();
    if found.is_empty() { Err(Unknown::Undescribed) } else { Ok(found) }
}

type Sizes = Reading<(u64, u64)>;

fn add(values: &[u64]) -> Reading<u64> {
    values.iter().try_fold(0u64, |sum, value| sum.checked_add(*value)).ok_or(Unknown::Implausible)
}

fn g1<M: Memory>(reader: &Reader<'_, M>) -> Sizes {
    let names = [("G1CollectedHeap", "_monitoring_support"), ("G1CollectedHeap", "_g1mm")];
    let support = reader.field(heap(reader)?, &names)?;
    let of = |new, old| reader.field(support, &[("G1MonitoringSupport", new), ("G1MonitoringSupport", old)]);
    let used = [
        of("_eden_space_used", "_eden_used")?,
        of("_survivor_space_used", "_survivor_used")?,
        of("_old_gen_used", "_old_used")?,
    ];
    let committed = [
        of("_eden_space_committed", "_eden_committed")?,
        of("_survivor_space_committed", "_survivor_committed")?,
        of("_old_gen_committed", "_old_committed")?,
    ];
    Ok((add(&used)?, add(&committed)?))
}

/// Bytes between a space's bottom and its top.
fn used_in<M: Memory>(reader: &Reader<'_, M>, space: u64, kind: &str) -> Reading<u64> {
    let older = if kind == "MutableSpace" { "ImmutableSpace" } else { "Space" };
    let bottom = reader.field(space, &[(kind, "_bottom"), (older, "_bottom")])?;
    reader.field(space, &[(kind, "_top")])?.checked_sub(bottom).ok_or(Unknown::Implausible)
}

fn serial<M: Memory>(reader: &Reader<'_, M>) -> Sizes {
    let of = |name| reader.field(heap(reader)?, &[("SerialHeap", name), ("GenCollectedHeap", name)]);
    let (young, old) = (of("_young_gen")?, of("_old_gen")?);
    let space = |at, kind, name| used_in(reader, reader.field(at, &[(kind, name)])?, "ContiguousSpace");
    let used = [
        space(young, "DefNewGeneration", "_eden_space")?,
        space(young, "DefNewGeneration", "_from_space")?,
        space(old, "TenuredGeneration", "_the_space")?,
    ];
    let committed = |generation| {
        let space = reader.inner(generation, &[("Generation", "_virtual_space")])?;
        let low = reader.field(space, &[("VirtualSpace", "_low")])?;
        reader.field(space, &[("VirtualSpace", "_high")])?.checked_sub(low).ok_or(Unknown::Implausible)
    };
    Ok((add(&used)?, add(&[committed(young)?, committed(old)?])?))
}

fn parallel<M: Memory>(reader: &Reader<'_, M>) -> Sizes {
    let young = reader.fixed(&[("ParallelScavengeHeap", "_young_gen")])?;
    let old = reader.fixed(&[("ParallelScavengeHeap", "_old_gen")])?;
    let space = |at, kind, name| used_in(reader, reader.field(at, &[(kind, name)])?, "MutableSpace");
    let used = [
        space(young, "PSYoungGen", "_eden_space")?,
        space(young, "PSYoungGen", "_from_space")?,
        space(old, "PSOldGen", "_object_space")?,
    ];
    let committed = |generation, kind| {
        let space = reader.field(generation, &[(kind, "_virtual_space")])?;
        let low = reader.field(space, &[("PSVirtualSpace", "_committed_low_addr")])?;
        let high = reader.field(space, &[("PSVirtualSpace", "_committed_high_addr")])?;
        high.checked_sub(low).ok_or(Unknown::Implausible)
    };
    Ok((add(&used)?, add(&[committed(young, "PSYoungGen")?, committed(old, "PSOldGen")?])?))
}

/// JDK 21 to 23 have two implementations, of which a flag selects one.
fn zgc<M: Memory>(reader: &Reader<'_, M>) -> Sizes {
    let flags = flags(reader.memory, reader.structs).ok_or(Unknown::Unreadable)?;
    let on = |flag| flags.get(flag).map(|(at, _)| reader.memory.number(*at, 1) == Some(1));
    let is_old =
        reader.structs.field(&[("XPageAllocator", "_used")]).is_ok() && on("ZGenerational") == Some(false);
    let (collected, inner, pages) = if is_old {
        ("XCollectedHeap", "XHeap", "XPageAllocator")
    } else {
        ("ZCollectedHeap", "ZHeap", "ZPageAllocator")
    };
    let heap = reader.inner(heap(reader)?, &[(collected, "_heap")])?;
    let pages_at = reader.inner(heap, &[(inner, "_page_allocator")])?;
    if reader.structs.field(&[("ZPartition", "_used")]).is_ok() {
        // One partition a NUMA node; their number is known only without NUMA.
        if on("UseNUMA") != Some(false) {
            return Err(Unknown::Undescribed);
        }
        let first = reader.field(pages_at, &[("ZPageAllocator", "_partitions")])?;
        let of = |name| reader.field(first, &[("ZPartition", name)]);
        return Ok((of("_used")?, of("_capacity")?));
    }
    let used = reader.field(pages_at, &[(pages, "_used")])?;
    let capacity = reader.field(pages_at, &[(pages, "_capacity")]).or_else(|_| {
        let physical = reader.inner(pages_at, &[(pages, "_physical")])?;
        reader.field(physical, &[("ZPhysicalMemoryManager", "_capacity")])
    })?;
    Ok((used, capacity))
}

fn shenandoah<M: Memory>(reader: &Reader<'_, M>) -> Sizes {
    let heap = heap(reader)?;
    let used = reader.field(heap, &[("ShenandoahHeap", "_used")]).or_else(|_| {
        let all = reader.field(heap, &[("ShenandoahHeap", "_global_generation")])?;
        reader.field(all, &[("ShenandoahGeneration", "_used")])
    })?;
    Ok((used, reader.field(heap, &[("ShenandoahHeap", "_committed")])?))
}

/// Collectors with generations update these counters at collections only.
fn after_collection(collector: Reading<&str>, number: &impl Fn(&str) -> Reading<u64>) -> Reading<u64> {
    if !matches!(collector?, "Serial" | "Parallel" | "G1") {
        return Err(Unknown::Undescribed);
    }
    let spaces = ["0.space.0", "0.space.1", "0.space.2", "1.space.0"];
    let used: Reading<Vec<_>> =
        spaces.iter().map(|space| number(&format!("sun.gc.generation.{space}.used"))).collect();
    add(&used?)
}
