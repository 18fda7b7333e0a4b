//! Function ranges from DWARF. Units are read on demand.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use gimli::{
    AttributeSpecification, AttributeValue, DebugAbbrev, DebugAddr, DebugAddrBase, DebugInfo as Units,
    DebugLocListsBase, DebugRanges, DebugRngLists, DebugRngListsBase, DebugStrOffsetsBase, Dwarf,
    EndianSlice, EntriesRaw, LittleEndian, RangeLists, SectionId, Unit, UnitHeader, constants as dw,
};
use memmap2::Mmap;
use object::{CompressionFormat, Object, ObjectSection};

use crate::symbolize::tail_calls::Function;

/// Maximum total size of decompressed sections: those of a large library have some tens of MiB.
const MAX_DECOMPRESSED_BYTES: u64 = 128 << 20;
/// Maximum size of a unit. Whole programs optimized as one unit take seconds beyond.
const MAX_UNIT_BYTES: usize = 32 << 20;
/// Maximum number of bytes read of a file, for all its chains.
const MAX_READ_BYTES: usize = 512 << 20;
/// Maximum number of cached functions per file; beyond, the cache is cleared.
const MAX_FUNCTIONS: usize = 1 << 17;
/// Maximum number of units per file: browsers have some 30,000.
const MAX_UNITS: usize = 1 << 17;

/// Maximum number of address ranges of a function: compilers split one into two or three parts.
const MAX_RANGES: usize = 64;
/// Maximum number of entries read of range lists, for the units of a file or for the functions of a unit; a single range and a
/// unit are an entry, too. Lists can overlap, so the size of their section is no bound. A large unit has some 100,000 functions.
const MAX_RANGE_ENTRIES: usize = 1 << 18;

/// Maximum number of units checked for an address.
const MAX_OVERLAPPING: usize = 4;

type Bytes<'data> = EndianSlice<'data, LittleEndian>;

/// Required sections.
const SECTIONS: [SectionId; 5] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
];

/// Debug information of a file.
pub(super) struct DebugInfo {
    file: Mmap,
    sections: [Section; SECTIONS.len()],
    /// Address ranges of code, with the offset of the unit that describes it; sorted.
    units: Vec<(Range<u64>, usize)>,
    functions: HashMap<usize, Rc<[Rc<Function>]>>,
    kept: usize,
    read_bytes: usize,
}

enum Section {
    Mapped(Range<usize>),
    Decompressed(Vec<u8>),
}

impl DebugInfo {
    /// Opens the debug information of a file; `None` if there is none, or it cannot be read.
    pub(super) fn open(file: &File) -> Option<Self> {
        // SAFETY: the content is only parsed as bytes, so changes are harmless. Truncation of the file ends the child.
        let file = unsafe { Mmap::map(file) }.ok()?;
        let sections = sections(&file)?;
        let mut this =
            Self { file, sections, units: Vec::new(), functions: HashMap::new(), kept: 0, read_bytes: 0 };
        this.units = units(&this.dwarf());
        Some(this).filter(|this| !this.units.is_empty())
    }

    /// The function with this entry address.
    pub(super) fn at(&mut self, address: u64) -> Option<Rc<Function>> {
        let after = self.units.partition_point(|(code, _)| code.start <= address);
        // Ranges of units can overlap where the linker has discarded code.
        let around = self.units[..after]
            .iter()
            .rev()
            .take(MAX_OVERLAPPING)
            .filter(|(code, _)| code.contains(&address));
        let units: Vec<_> = around.map(|(_, unit)| *unit).collect();
        units.into_iter().find_map(|unit| {
            let functions = self.functions(unit)?;
            let index = functions.binary_search_by_key(&address, |function| function.start).ok()?;
            Some(Rc::clone(&functions[index]))
        })
    }

    /// Functions of a unit, sorted.
    fn functions(&mut self, offset: usize) -> Option<Rc<[Rc<Function>]>> {
        if let Some(known) = self.functions.get(&offset) {
            return Some(Rc::clone(known));
        }
        let dwarf = self.dwarf();
        let header = dwarf.debug_info.header_from_offset(gimli::DebugInfoOffset(offset)).ok()?;
        let length = header.length_including_self();
        if length > MAX_UNIT_BYTES || self.read_bytes + length > MAX_READ_BYTES {
            return None;
        }
        let found: Rc<[_]> = functions(&dwarf, header).unwrap_or_default().into();
        self.read_bytes += length;
        if self.kept + found.len() > MAX_FUNCTIONS {
            self.functions.clear();
            self.kept = 0;
        }
        self.kept += found.len();
        self.functions.insert(offset, Rc::clone(&found));
        Some(found)
    }

    fn dwarf(&self) -> Dwarf<Bytes<'_>> {
        let [info, abbrev, addr, ranges, lists] = self.sections.each_ref().map(|section| match section {
            Section::Mapped(range) => self.file.get(range.clone()).unwrap_or_default(),
            Section::Decompressed(bytes) => bytes,
        });
        let mut dwarf = Dwarf {
            debug_info: Units::new(info, LittleEndian),
            debug_abbrev: DebugAbbrev::new(abbrev, LittleEndian),
            ..Dwarf::default()
        };
        dwarf.debug_addr = DebugAddr::from(EndianSlice::new(addr, LittleEndian));
        dwarf.ranges =
            RangeLists::new(DebugRanges::new(ranges, LittleEndian), DebugRngLists::new(lists, LittleEndian));
        dwarf
    }
}

fn sections(file: &[u8]) -> Option<[Section; SECTIONS.len()]> {
    let elf = object::File::parse(file).ok()?;
    let mut left = MAX_DECOMPRESSED_BYTES;
    let mut section = |id: SectionId| {
        let Some(section) = elf.section_by_name(id.name()) else { return Some(Section::Mapped(0..0)) };
        let data = section.compressed_data().ok()?;
        if data.format == CompressionFormat::None {
            let (start, size) = section.file_range()?;
            let start = usize::try_from(start).ok()?;
            return Some(Section::Mapped(start..start.checked_add(usize::try_from(size).ok()?)?));
        }
        left = left.checked_sub(data.uncompressed_size)?;
        data.decompress().ok().map(Cow::into_owned).map(Section::Decompressed)
    };
    let [info, abbrev, addr, ranges, lists] = SECTIONS.map(&mut section);
    Some([info?, abbrev?, addr?, ranges?, lists?])
}

/// Address ranges of each unit, sorted.
fn units(dwarf: &Dwarf<Bytes<'_>>) -> Vec<(Range<u64>, usize)> {
    let mut units = Vec::new();
    let mut headers = dwarf.units();
    let mut room = MAX_RANGE_ENTRIES;
    while units.len() < MAX_UNITS
        && room > 0
        && let Ok(Some(header)) = headers.next()
    {
        room -= 1;
        let Some(gimli::DebugInfoOffset(offset)) = header.debug_info_offset() else { continue };
        let Some(unit) = open(dwarf, header) else { continue };
        let most = room;
        let code = Place::of_unit(dwarf, &unit).and_then(|place| place.code(dwarf, &unit, most, &mut room));
        // Discarded code starts at 0, or ends before its start.
        let code = code.into_iter().flatten().filter(|code| code.start != 0 && code.start < code.end);
        units.extend(code.map(|code| (code, offset)));
    }
    units.sort_unstable_by_key(|(code, _)| code.start);
    units
}

/// Opens a unit to read its entries. gimli's own constructor also requires the sections of strings and lines.
fn open<'data>(dwarf: &Dwarf<Bytes<'data>>, header: UnitHeader<Bytes<'data>>) -> Option<Unit<Bytes<'data>>> {
    let abbreviations = Arc::new(header.abbreviations(&dwarf.debug_abbrev).ok()?);
    let encoding = header.encoding();
    let mut unit = Unit {
        header,
        abbreviations,
        name: None,
        comp_dir: None,
        low_pc: 0,
        str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(encoding, dwarf.file_type),
        addr_base: DebugAddrBase(0),
        loclists_base: DebugLocListsBase::default_for_encoding_and_file(encoding, dwarf.file_type),
        rnglists_base: DebugRngListsBase::default_for_encoding_and_file(encoding, dwarf.file_type),
        line_program: None,
        dwo_id: None,
    };
    let mut low_pc = None;
    let mut entries = unit.header.entries_raw(&unit.abbreviations, None).ok()?;
    let abbreviation = entries.read_abbreviation().ok()??;
    for specification in abbreviation.attributes() {
        let attribute = entries.read_attribute(*specification).ok()?;
        match (attribute.name(), attribute.value()) {
            (dw::DW_AT_low_pc, address) => low_pc = Some(address),
            (_, AttributeValue::DebugAddrBase(base)) => unit.addr_base = base,
            (_, AttributeValue::DebugRngListsBase(base)) => unit.rnglists_base = base,
            _ => {}
        }
    }
    if let Some(address) = low_pc {
        unit.low_pc = dwarf.attr_address(&unit, address).ok()??;
    }
    Some(unit)
}

/// Functions of a unit, sorted; `None` if it is damaged, or has too many.
fn functions<'data>(
    dwarf: &Dwarf<Bytes<'data>>,
    header: UnitHeader<Bytes<'data>>,
) -> Option<Vec<Rc<Function>>> {
    let unit = open(dwarf, header)?;
    let mut entries = unit.entries_raw(None).ok()?;
    let mut found: Vec<Rc<Function>> = Vec::new();
    let mut room = MAX_RANGE_ENTRIES;
    while !entries.is_empty() {
        let Some(abbreviation) = entries.read_abbreviation().ok()? else { continue };
        if abbreviation.tag() == dw::DW_TAG_subprogram {
            let place = Place::read(dwarf, &unit, &mut entries, abbreviation.attributes()).ok()?;
            found.extend(place.function(dwarf, &unit, &mut room).map(Rc::new));
            if room == 0 {
                return None;
            }
        } else {
            entries.skip_attributes(abbreviation.attributes()).ok()?;
        }
    }
    found.sort_by_key(|function| function.start);
    Some(found)
}

/// Attributes with the location of an entry's code.
#[derive(Default)]
struct Place<'data> {
    low_pc: Option<u64>,
    entry_pc: Option<u64>,
    high_pc: Option<AttributeValue<Bytes<'data>>>,
    ranges: Option<AttributeValue<Bytes<'data>>>,
}

impl<'data> Place<'data> {
    fn of_unit(dwarf: &Dwarf<Bytes<'data>>, unit: &Unit<Bytes<'data>>) -> Option<Self> {
        let mut entries = unit.entries_raw(None).ok()?;
        let abbreviation = entries.read_abbreviation().ok()??;
        Self::read(dwarf, unit, &mut entries, abbreviation.attributes()).ok()
    }

    fn read(
        dwarf: &Dwarf<Bytes<'data>>,
        unit: &Unit<Bytes<'data>>,
        entries: &mut EntriesRaw<'_, Bytes<'data>>,
        attributes: &[AttributeSpecification],
    ) -> gimli::Result<Self> {
        let mut place = Self::default();
        for specification in attributes {
            let attribute = entries.read_attribute(*specification)?;
            let value = attribute.value();
            match attribute.name() {
                dw::DW_AT_low_pc => place.low_pc = dwarf.attr_address(unit, value)?,
                dw::DW_AT_entry_pc => place.entry_pc = dwarf.attr_address(unit, value)?,
                dw::DW_AT_high_pc => place.high_pc = Some(value),
                dw::DW_AT_ranges => place.ranges = Some(value),
                _ => {}
            }
        }
        Ok(place)
    }

    /// The function, if it has code. Takes the entries read of range lists from `room`.
    fn function(
        self,
        dwarf: &Dwarf<Bytes<'data>>,
        unit: &Unit<Bytes<'data>>,
        room: &mut usize,
    ) -> Option<Function> {
        let entry_pc = self.entry_pc;
        let code = self.code(dwarf, unit, MAX_RANGES, room)?;
        // The first range contains the entry point.
        let start = entry_pc.or(code.first().map(|code| code.start))?;
        // Discarded code is at 0.
        (start != 0).then_some(Function { start, code })
    }

    /// Ranges of the code, `most` at most. Takes the entries read of range lists from `room`; a single range is one entry.
    fn code(
        self,
        dwarf: &Dwarf<Bytes<'data>>,
        unit: &Unit<Bytes<'data>>,
        most: usize,
        room: &mut usize,
    ) -> Option<Vec<Range<u64>>> {
        if let Some(ranges) = self.ranges {
            let offset = dwarf.attr_ranges_offset(unit, ranges).ok()??;
            // Includes entries that are no ranges.
            let entries = dwarf.raw_ranges(unit, offset).ok()?.take(most + 1).count();
            *room = room.saturating_sub(entries.max(1));
            if entries > most {
                return None;
            }
            let ranges = dwarf.ranges(unit, offset).ok()?;
            return ranges.map(|range| range.map(|range| range.begin..range.end).ok()).collect();
        }
        let low = self.low_pc?;
        let end = match self.high_pc? {
            AttributeValue::Udata(size) => low.checked_add(size)?,
            high => dwarf.attr_address(unit, high).ok()??,
        };
        *room = room.saturating_sub(1);
        let code = low..end;
        Some(vec![code])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit with a root that has code at 0x1000..0x2000, and functions that share a range list.
    fn unit_of(functions: usize) -> Vec<u8> {
        let mut unit = vec![4, 0, 0, 0, 0, 0, 8]; // version, abbreviations at 0, bytes of an address
        unit.push(1);
        unit.extend(0x1000_u64.to_le_bytes());
        unit.extend(0x1000_u64.to_le_bytes());
        unit.extend([2, 0, 0, 0, 0].repeat(functions));
        unit.push(0);
        [&u32::try_from(unit.len()).unwrap().to_le_bytes(), &*unit].concat()
    }

    /// A unit's tag, address and size; a function's tag and offset of a range list.
    const ABBREVIATIONS: &[u8] = &[1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0, 0, 2, 0x2e, 0, 0x55, 0x17, 0, 0, 0];

    /// Number of functions read, and number of ranges of the first.
    fn read(functions: usize, ranges: usize) -> Option<(usize, usize)> {
        let info = unit_of(functions);
        let mut list = [0_u64, 0x10].map(u64::to_le_bytes).concat().repeat(ranges);
        list.extend([0; 16]);
        let mut dwarf = Dwarf {
            debug_info: Units::new(&info, LittleEndian),
            debug_abbrev: DebugAbbrev::new(ABBREVIATIONS, LittleEndian),
            ..Dwarf::default()
        };
        dwarf.ranges =
            RangeLists::new(DebugRanges::new(&list, LittleEndian), DebugRngLists::new(&[], LittleEndian));
        assert_eq!(units(&dwarf), [(0x1000..0x2000, 0)]);
        let header = dwarf.units().next().unwrap().unwrap();
        let functions = super::functions(&dwarf, header)?;
        Some((functions.len(), functions.first().map_or(0, |function| function.code.len())))
    }

    #[test]
    fn range_lists_longer_than_any_compilers_are_not_read() {
        assert_eq!(read(1, MAX_RANGES), Some((1, MAX_RANGES)));
        assert_eq!(read(1, MAX_RANGES + 1), Some((0, 0)));
        let many = MAX_RANGE_ENTRIES / MAX_RANGES;
        assert_eq!(read(many - 1, MAX_RANGES), Some((many - 1, MAX_RANGES)));
        assert_eq!(read(many, MAX_RANGES), None);
    }
}
