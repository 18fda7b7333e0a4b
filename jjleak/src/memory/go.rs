//! Heap of a Go program: regions at addresses that its runtime asks for, where the kernel places nothing by itself.

use std::ops::Range;

use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::elf::FileHeader;

use super::{Claim, Kind};
use crate::file_content::Content;
use crate::processes::{Mapping, ModuleTable};

/// Name of the row.
pub(crate) const GO_HEAP: &str = "Go heap";
/// Section of each file that Go's linker writes, also if it is stripped.
const BUILD_INFO: &[u8] = b".go.buildinfo";
/// Size and alignment of a region (`heapArenaBytes` in Go's `runtime/malloc.go`).
const REGION: u64 = 64 << 20;
/// Addresses from here on are those that the kernel chooses. Go asks for lower ones (`arenaHints` in `runtime/malloc.go`).
const CHOSEN_BY_KERNEL: u64 = 0x7000_0000_0000;

/// The heap, if the process maps code that was linked by Go.
pub(super) fn heap(modules: &ModuleTable, mappings: &[Mapping]) -> Vec<Claim> {
    let regions = regions(mappings);
    if regions.is_empty()
        || !modules.iter().any(|(_, module)| module.content().is_ok_and(|file| is_go(Content::from(&file))))
    {
        return Vec::new();
    }
    let claim = |range| Claim { range, kind: Kind::Anonymous, name: GO_HEAP.to_owned() };
    regions.into_iter().map(claim).collect()
}

fn is_go(elf: Content<'_>) -> bool {
    let sections =
        FileHeader64::<LittleEndian>::parse(elf).and_then(|header| header.sections(LittleEndian, elf));
    sections.is_ok_and(|sections| sections.section_by_name(LittleEndian, BUILD_INFO).is_some())
}

/// Aligned regions that are reserved as a whole, in mappings without a file.
fn regions(mappings: &[Mapping]) -> Vec<Range<u64>> {
    let mut reserved: Vec<Range<u64>> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| is_anonymous(mapping)) {
        let Range { start, end } = mapping.addresses;
        match reserved.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => reserved.push(start..end),
        }
    }
    let whole = |range: Range<u64>| range.start.next_multiple_of(REGION)..range.end / REGION * REGION;
    reserved
        .into_iter()
        .filter(|range| range.end <= CHOSEN_BY_KERNEL)
        .map(whole)
        .filter(|range| range.start < range.end)
        .collect()
}

fn is_anonymous(mapping: &Mapping) -> bool {
    let path = mapping.path.as_os_str().as_encoded_bytes();
    // Go 1.25 and later name their memory where the kernel takes names.
    mapping.file.is_none() && (path.is_empty() || path.starts_with(b"[anon: Go: "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::parse_maps;

    #[test]
    fn aligned_regions_that_are_reserved_as_a_whole_are_the_heap() {
        let maps = parse_maps(
            "00400000-00500000 r-xp 00000000 fd:01 7 /app\n\
             c000000000-c001c00000 rw-p 00000000 00:00 0 \n\
             c001c00000-c004000000 ---p 00000000 00:00 0 \n\
             c004000000-c008000000 rw-p 00000000 00:00 0 [anon: Go: heap]\n\
             c00c000000-c00d000000 rw-p 00000000 00:00 0 \n\
             7f0000000000-7f0008000000 rw-p 00000000 00:00 0 \n",
        );
        assert_eq!(regions(&maps.unwrap()), vec![0xc0_0000_0000..0xc0_0800_0000]);
    }
}
