//! Lookup of unwind rows by address, through the process's mappings.

use core::ptr::{addr_of, read_volatile, write_volatile};

use aya_ebpf::{macros::map, maps::PerCpuArray};
use jjleak_common::unwind::{
    CHUNK_SHIFT, CHUNK_WORDS, CodeChanges, CodeSeen, GROUP_PAGES, GROUP_SHIFT, GROUPS, MAX_FOUND,
    MAX_MAPPINGS, Mapping, MappingTable, PAGE_SHIFT, Row, RowKind, SEARCH_STEPS, SavedFp,
};

use jjleak_common::process::{ImageId, ProcessRow};

use crate::{
    maps::{self, ROWS},
    memory::top_bit,
};

/// Entries of the row cache. Hot allocation paths of a program have a few hundred return addresses.
const CACHE_ENTRIES: usize = 1024;

/// Cache of rows by address, so that most frames need one lookup. Per CPU. A probe can be preempted between the two words of an
/// entry by another one that writes the same entry: the key is stored as its XOR with the row, so that a torn entry matches no key.
#[repr(C)]
pub(super) struct RowCache {
    entries: [[u64; 2]; CACHE_ENTRIES],
}

#[map]
pub(super) static ROW_CACHE: PerCpuArray<RowCache> = PerCpuArray::with_max_entries(1, 0);

/// All data for a lookup; pointers into map values.
#[derive(Clone, Copy)]
pub(super) struct Tables {
    pub(super) cache: *mut RowCache,
    /// The process's mappings.
    pub(super) mappings: *const MappingTable,
    /// Marks entries of the cache: they are valid for one image and one version of its mappings.
    pub(super) scope: u64,
    /// Additional mappings found by the walk.
    pub(super) found: *const [Mapping; MAX_FOUND],
}

/// Mark of cache entries for one version of an image's mappings; `since_ns` is the start of the image. Marks differ in their high
/// bits, which are 0 in all addresses.
#[inline(always)]
pub(super) fn scope(image: ImageId, since_ns: u64, generation: u32) -> u64 {
    let image = ((image.0 as u64) << 32 | generation as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    image ^ since_ns.wrapping_mul(0xff51_afd7_ed55_8ccd)
}

/// Offsets of a group per word of a chunk.
const OFFSETS_PER_WORD: usize = size_of::<u64>() / size_of::<u16>();

/// Number of halvings to search a table of up to 2^9 mappings.
const MAPPING_STEPS: u32 = MAX_MAPPINGS.ilog2() + 1;

/// The state that a table reflects.
///
/// # Safety
/// The table is a map value.
#[inline(always)]
pub(crate) unsafe fn seen(table: *const MappingTable) -> CodeSeen {
    // SAFETY: as promised by the caller.
    unsafe {
        CodeSeen {
            made: read_volatile(addr_of!((*table).seen.made)),
            scan: read_volatile(addr_of!((*table).seen.scan)),
        }
    }
}

/// Row for the code at `address`, with the layer of its mapping in the address field; `None` if it is not mapped.
#[inline(always)]
pub(super) fn find(tables: &Tables, address: u64) -> Option<Row> {
    // SAFETY: all pointers are map values, and every index is masked to the bounds of its array.
    unsafe {
        if let Some(row) = cached(tables.cache, tables.scope, address) {
            return Some(row);
        }
        let mapping = mapping_at(tables.mappings, address);
        if holds(mapping, address) {
            let row = Row(search_rows(mapping, address));
            let entry = entry(tables.cache, address).cast_mut();
            write_volatile(&raw mut (*entry)[1], row.0);
            write_volatile(&raw mut (*entry)[0], address ^ tables.scope ^ row.0);
            Some(row)
        } else {
            // Mappings found by the walk are not cached: they may have changed by the next one.
            Some(Row(search_rows(found_at(tables.found, address)?, address)))
        }
    }
}

/// Row for the code at `address` from the cache, for mappings of this scope.
///
/// # Safety
/// The cache is a map value.
#[inline(always)]
pub(super) unsafe fn cached(cache: *const RowCache, scope: u64, address: u64) -> Option<Row> {
    // SAFETY: as promised by the caller.
    unsafe {
        let entry = entry(cache, address);
        let row = read_volatile(addr_of!((*entry)[1]));
        let is_it = read_volatile(addr_of!((*entry)[0])) ^ row == address ^ scope;
        is_it.then_some(Row(row))
    }
}

/// Entry of the cache for `address`.
///
/// # Safety
/// The cache is a map value.
#[inline(always)]
unsafe fn entry(cache: *const RowCache, address: u64) -> *const [u64; 2] {
    let slot = (address ^ address >> 10) as usize & (CACHE_ENTRIES - 1);
    // SAFETY: as promised by the caller; the mask keeps the index in bounds.
    unsafe { addr_of!((*cache).entries).cast::<[u64; 2]>().add(slot) }
}

/// See [`search`]. Exported, so that the verifier follows it once, and not for each mapping that it can be.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn search_rows(mapping: *const Mapping, address: u64) -> u64 {
    if mapping.is_null() {
        return Row::plain(0, RowKind::None).0;
    }
    // SAFETY: not null, so it is in a map value.
    unsafe { search(mapping, address).0 }
}

/// Row for the code at `address` in a mapping.
///
/// # Safety
/// The mapping is in a map value.
#[inline(always)]
unsafe fn search(mapping: *const Mapping, address: u64) -> Row {
    // SAFETY: as promised by the caller; indexes are masked to bounds.
    unsafe {
        if (*mapping).pages == Mapping::GENERATED {
            let (jvm, heap) = ((*mapping).first_page as u64, (*mapping).text as i64 & 7);
            let row = Row::new((*mapping).layer, RowKind::Generated, jvm & 0xfff, SavedFp::Register, heap);
            return row.unwrap_or(Row::plain((*mapping).layer, RowKind::None));
        }
        if (*mapping).pages == Mapping::WITHOUT_ROWS {
            return Row::plain((*mapping).layer, RowKind::FramePointer);
        }
        let relative = address.wrapping_sub((*mapping).text);
        let page = relative >> PAGE_SHIFT;
        if page >= (*mapping).pages as u64 {
            return Row::plain((*mapping).layer, RowKind::None);
        }
        let at = (*mapping).first_page as u64 + page;
        let Some(groups) = maps::GROUPS.get_ptr(0) else {
            return Row::plain((*mapping).layer, RowKind::None);
        };
        let group = *groups.cast::<u32>().add((at >> GROUP_SHIFT) as usize & (GROUPS - 1)) as u64;
        let Some(chunk) = ROWS.get_value_ptr_mut((group >> CHUNK_SHIFT) as u32, &0) else {
            return Row::plain((*mapping).layer, RowKind::None);
        };
        let (rows, offsets) = (chunk.cast::<u64>(), chunk.cast::<u16>());
        let index = (group << OFFSETS_PER_WORD.ilog2()) + (at & (GROUP_PAGES as u64 - 1));
        let low = *offsets.add(index as usize & (OFFSETS_PER_WORD * CHUNK_WORDS - 1)) as u64;
        let high = *offsets.add((index + 1) as usize & (OFFSETS_PER_WORD * CHUNK_WORDS - 1)) as u64;
        let mut base = group + low;
        let mut count = high.wrapping_sub(low) + 1;
        let mut step = 0;
        while step < SEARCH_STEPS {
            let half = count >> 1;
            let middle = (base + half) as usize & (CHUNK_WORDS - 1);
            let start = *rows.add(middle) & 0xffff_ffff;
            base += take_if_not_below(relative, start, half);
            count -= half;
            step += 1;
        }
        let row = *rows.add(base as usize & (CHUNK_WORDS - 1));
        Row(row & !0xffff_ffff | (*mapping).layer as u64)
    }
}

/// # Safety
/// The mapping is in a map value.
#[inline(always)]
pub(super) unsafe fn holds(mapping: *const Mapping, address: u64) -> bool {
    // SAFETY: as promised by the caller.
    unsafe { address.wrapping_sub((*mapping).begin) < (*mapping).end.wrapping_sub((*mapping).begin) }
}

/// The mapping at `address` among those found by the walk.
///
/// # Safety
/// They are in a map value.
#[inline(always)]
unsafe fn found_at(found: *const [Mapping; MAX_FOUND], address: u64) -> Option<*const Mapping> {
    let mut place = 0;
    while place < MAX_FOUND {
        // SAFETY: as promised by the caller; the index is in bounds.
        let mapping = unsafe { found.cast::<Mapping>().add(place) };
        // SAFETY: as above.
        if unsafe { holds(mapping, address) } {
            return Some(mapping);
        }
        place += 1;
    }
    None
}

/// The last mapping that begins at or before `address`, or the first.
///
/// # Safety
/// The table is a map value.
#[inline(always)]
pub(crate) unsafe fn mapping_at(table: *const MappingTable, address: u64) -> *const Mapping {
    // SAFETY: as promised by the caller; indexes are masked to bounds.
    unsafe {
        let mappings = addr_of!((*table).mappings).cast::<Mapping>();
        let mut base = 0u64;
        let mut count = (*table).count as u64;
        let mut step = 0;
        while step < MAPPING_STEPS {
            let half = count >> 1;
            let middle = (base + half) as usize & (MAX_MAPPINGS - 1);
            base += take_if_not_below(address, (*mappings.add(middle)).begin, half);
            count -= half;
            step += 1;
        }
        mappings.add(base as usize & (MAX_MAPPINGS - 1))
    }
}

/// `step` if `value >= start`, else 0; without a branch, because the verifier follows each branch of a search separately.
#[inline(always)]
fn take_if_not_below(value: u64, start: u64, step: u64) -> u64 {
    step & top_bit(value.wrapping_sub(start)).wrapping_sub(1)
}

/// Changes of a process's code mappings.
///
/// # Safety
/// `row` is a map value.
#[inline(always)]
pub(crate) unsafe fn changes(row: *const ProcessRow) -> CodeChanges {
    // SAFETY: as promised by the caller.
    unsafe {
        let code = addr_of!((*row).code);
        CodeChanges {
            made: read_volatile(addr_of!((*code).made)),
            replaced: read_volatile(addr_of!((*code).replaced)),
            scan: read_volatile(addr_of!((*code).scan)),
            disturbed: read_volatile(addr_of!((*code).disturbed)),
        }
    }
}
