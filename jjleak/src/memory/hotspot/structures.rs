//! Code heaps, threads, class loaders, tables of collectors, and archives.

use std::ops::Range;

use super::{CodeHeapMemory, JavaThread, Reader, Reading, Unknown};
use crate::jvm::Memory;

const WORD: u64 = 8;
/// Maximum number of code heaps; HotSpot has up to 4.
const MAX_HEAPS: u64 = 8;
/// Maximum number of threads and of class loaders read.
const MAX_THREADS: u64 = 1 << 16;
const MAX_LOADERS: usize = 1 << 16;
/// Largest stack of a thread.
const MAX_STACK: u64 = 1 << 34;
/// Regions of an archive; all versions have at least this many that are mapped outside the heap.
const REGIONS: u64 = 4;
/// Maximum size of a code heap's description.
const MAX_DESCRIPTION: u64 = 1024;

pub(super) fn code<M: Memory>(reader: &Reader<'_, M>) -> Reading<Vec<CodeHeapMemory>> {
    let array = reader.fixed(&[("CodeCache", "_heaps")])?;
    let count = reader.field(array, &[("GrowableArrayBase", "_len"), ("GenericGrowableArray", "_len")])?;
    let data = reader.field(array, &[("GrowableArray<int>", "_data")])?;
    if !(1..=MAX_HEAPS).contains(&count) {
        return Err(Unknown::Implausible);
    }
    (0..count).map(|index| code_heap(reader, reader.word(data.wrapping_add(WORD * index))?)).collect()
}

fn code_heap<M: Memory>(reader: &Reader<'_, M>, at: u64) -> Reading<CodeHeapMemory> {
    let space = |name| {
        let space = reader.inner(at, &[("CodeHeap", name)])?;
        let of = |name| reader.field(space, &[("VirtualSpace", name)]);
        let (low, high) = (of("_low")?, of("_high")?);
        let reserved = reader.mapped(of("_low_boundary")?..of("_high_boundary")?)?;
        let is_inside = reserved.start <= low && low <= high && high <= reserved.end;
        is_inside.then_some((reserved, high.wrapping_sub(low))).ok_or(Unknown::Implausible)
    };
    let (reserved, committed) = space("_memory")?;
    let (segment_map, _) = space("_segmap")?;
    let log2 = reader.inner(at, &[("CodeHeap", "_log2_segment_size")])?;
    Ok(CodeHeapMemory {
        name: name(reader, at),
        reserved,
        segment_map,
        committed,
        used: used(reader, log2, committed),
    })
}

/// Segments in use: those below the next one, without free ones. These fields are not described; the ones before them, which
/// have to agree with the committed size, show that the layout is the known one.
fn used<M: Memory>(reader: &Reader<'_, M>, log2: u64, committed: u64) -> Reading<u64> {
    let word = |at: i64| reader.word(log2.wrapping_add_signed(at * 8));
    let (committed_segments, size) = (word(-3)?, word(-1)?);
    let (next, free) = (word(1)?, word(4)?);
    let is_known = committed_segments.checked_mul(size) == Some(committed) && size.is_power_of_two();
    let is_plausible = is_known && free <= next && next <= committed_segments;
    is_plausible.then(|| (next - free) * size).ok_or(Unknown::Implausible)
}

/// The only pointer in a code heap to a text that is a code heap's name.
fn name<M: Memory>(reader: &Reader<'_, M>, at: u64) -> Reading<String> {
    let size = reader.structs.size("CodeHeap").map_err(|_| Unknown::Undescribed)?.min(MAX_DESCRIPTION);
    let copy =
        reader.memory.bytes(at, usize::try_from(size).unwrap_or_default()).ok_or(Unknown::Unreadable)?;
    let words =
        copy.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).filter(|word| *word > 4096);
    let is_name = |text: &String| text.starts_with("CodeHeap '") || text == "CodeCache";
    let mut names = words.filter_map(|word| reader.memory.text(word).filter(is_name));
    let first = names.next().ok_or(Unknown::Unreadable)?;
    if names.next().is_some() { Err(Unknown::Implausible) } else { Ok(first) }
}

pub(super) fn threads<M: Memory>(reader: &Reader<'_, M>) -> Reading<Vec<JavaThread>> {
    if let Ok(list) = reader.fixed(&[("ThreadsSMRSupport", "_java_thread_list")]) {
        let count = reader.field(list, &[("ThreadsList", "_length")])?;
        let first = reader.field(list, &[("ThreadsList", "_threads")])?;
        if count > MAX_THREADS {
            return Err(Unknown::Implausible);
        }
        return (0..count)
            .map(|index| thread(reader, reader.word(first.wrapping_add(WORD * index))?))
            .collect();
    }
    let mut next = reader.fixed(&[("Threads", "_thread_list")])?;
    let mut threads = Vec::new();
    while next != 0 {
        if threads.len() as u64 == MAX_THREADS {
            return Err(Unknown::Implausible);
        }
        threads.push(thread(reader, next)?);
        next = reader.field(next, &[("JavaThread", "_next")])?;
    }
    Ok(threads)
}

fn thread<M: Memory>(reader: &Reader<'_, M>, at: u64) -> Reading<JavaThread> {
    let of = |name| reader.field(at, &[("JavaThread", name), ("Thread", name)]);
    let (base, size) = (of("_stack_base")?, of("_stack_size")?);
    let start = base.checked_sub(size).filter(|_| size <= MAX_STACK).ok_or(Unknown::Implausible)?;
    let system = of("_osthread");
    let tid = system.and_then(|at| reader.field(at, &[("OSThread", "_thread_id")]));
    let tid = tid.and_then(|tid| u32::try_from(tid & 0xffff_ffff).map_err(|_| Unknown::Implausible));
    Ok(JavaThread { stack: reader.mapped(start..base)?, tid })
}

/// Class loader data: of loaders, and of hidden classes with data of their own.
pub(super) fn loaders<M: Memory>(reader: &Reader<'_, M>) -> Reading<Vec<u64>> {
    let link = reader.structs.field(&[("ClassLoaderData", "_next")]).map_err(|_| Unknown::Undescribed)?;
    let mut next = reader.fixed(&[("ClassLoaderDataGraph", "_head")])?;
    let mut loaders = Vec::new();
    let mut marked = 0;
    while next != 0 {
        // A list that is a circle comes to a marked one again (Brent's algorithm).
        if next == marked || loaders.len() == MAX_LOADERS {
            return Err(Unknown::Implausible);
        }
        loaders.push(next);
        if loaders.len().is_power_of_two() {
            marked = next;
        }
        next = link.read(reader.memory, next).ok_or(Unknown::Unreadable)?;
    }
    Ok(loaders)
}

pub(super) fn card_table<M: Memory>(reader: &Reader<'_, M>) -> Reading<Range<u64>> {
    let flags = crate::jvm::description::flags(reader.memory, reader.structs).ok_or(Unknown::Unreadable)?;
    let is_on = |flag| flags.get(flag).is_some_and(|(at, _)| reader.memory.number(*at, 1) == Some(1));
    if !["UseG1GC", "UseSerialGC", "UseParallelGC"].into_iter().any(is_on) {
        return Err(Unknown::Undescribed);
    }
    let barriers = reader.fixed(&[("BarrierSet", "_barrier_set")])?;
    let table = reader.field(barriers, &[("CardTableBarrierSet", "_card_table")])?;
    let start = reader.field(table, &[("CardTable", "_byte_map")])?;
    let size = reader.field(table, &[("CardTable", "_byte_map_size")])?;
    reader.mapped(start..start.checked_add(size).ok_or(Unknown::Implausible)?)
}

pub(super) fn cds<M: Memory>(reader: &Reader<'_, M>) -> Reading<Vec<Range<u64>>> {
    let archive = reader.fixed(&[("FileMapInfo", "_current_info")])?;
    let header = reader.field(archive, &[("FileMapInfo", "_header")])?;
    let first = reader.inner(header, &[("FileMapHeader", "_regions[0]"), ("FileMapHeader", "_space[0]")])?;
    let stride = reader.structs.size("CDSFileMapRegion").map_err(|_| Unknown::Undescribed)?;
    let region = |index: u64| {
        let at = first.wrapping_add(index.wrapping_mul(stride));
        let names = [("CDSFileMapRegion", "_mapped_base"), ("CDSFileMapRegion", "_addr._base")];
        let (start, used) = (reader.field(at, &names)?, reader.field(at, &[("CDSFileMapRegion", "_used")])?);
        reader.mapped(start..start.checked_add(used).ok_or(Unknown::Implausible)?)
    };
    let found: Vec<_> = (0..REGIONS).filter_map(|index| region(index).ok()).collect();
    if found.is_empty() { Err(Unknown::Implausible) } else { Ok(found) }
}
