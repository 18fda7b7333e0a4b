//! History of the code mappings of a process.
//!
//! A file can replace another one while stacks of both still need symbols. Files mapped at the same addresses are kept in
//! *layers*, in order of arrival: within a layer, each address belongs to one file permanently.

use std::collections::BTreeMap;
use std::ops::Range;

use jjleak_common::unwind::{MAX_FOUND, layer};

use super::{Located, Mapping, ModuleId};

/// A position in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FilePlace {
    pub(super) module: ModuleId,
    pub(super) offset: u64,
    /// Difference between addresses and file offsets, see [`Module::addend`](super::Module).
    pub(super) addend: Option<u64>,
}

/// A current or former mapping of code.
#[derive(Debug, Clone, Copy)]
struct Region {
    end: u64,
    /// Position of its first address.
    place: FilePlace,
    identity: u64,
    /// Number of the last scan that found it.
    seen: u64,
}

/// Current and former code mappings of all files.
#[derive(Debug, Clone, Default)]
pub(super) struct Regions {
    /// Regions by first address.
    layers: Vec<BTreeMap<u64, Region>>,
    scans: u64,
}

impl Regions {
    /// Begins a scan of the current mappings.
    pub(super) fn begin_look(&mut self) {
        self.scans += 1;
    }

    /// Adds a mapping, to the first layer where nothing else overlaps. If a process maps more files at one place than there are
    /// layers, the rest get no symbols. An addend that is unknown now may be known from another scan, which saw more of the file's
    /// mappings; it is the same, because the file and its place are.
    pub(super) fn map(&mut self, range: &Range<u64>, identity: u64, place: FilePlace) {
        let addend_in = |regions: &BTreeMap<u64, Region>| {
            place.addend.or_else(|| overlapping(regions, range).find_map(|(_, region)| region.place.addend))
        };
        let fits = |regions: &BTreeMap<u64, Region>| {
            let addend = addend_in(regions);
            overlapping(regions, range).all(|(_, region)| {
                let known = region.place;
                let agrees = known.addend.is_none() || known.addend == addend;
                region.identity == identity && known.module == place.module && agrees
            })
        };
        let index = match self.layers.iter().position(fits) {
            Some(index) => index,
            None if self.layers.len() < usize::from(layer::MAX) => {
                self.layers.push(BTreeMap::new());
                self.layers.len() - 1
            }
            None => return,
        };
        let regions = &mut self.layers[index];
        let addend = addend_in(regions);
        // Merge adjacent parts of the same file.
        let (mut start, mut end) = (range.start, range.end);
        let parts: Vec<u64> = overlapping(regions, range).map(|(start, _)| start).collect();
        for part in parts {
            start = start.min(part);
            end = end.max(regions.remove(&part).map_or(end, |region| region.end));
        }
        let place = FilePlace { offset: place.offset.wrapping_sub(range.start - start), addend, ..place };
        regions.insert(start, Region { end, place, identity, seen: self.scans });
    }

    /// Layer of a mapping.
    pub(super) fn layer(&self, mapping: &Mapping) -> u16 {
        let identity = mapping.identity();
        let is_there = |regions: &BTreeMap<u64, Region>| {
            at(regions, mapping.addresses.start).is_some_and(|(_, region)| region.identity == identity)
        };
        let index = self.layers.iter().position(is_there).and_then(|index| u16::try_from(index).ok());
        index.unwrap_or(layer::NO_FILE)
    }

    /// Resolves an address to the file mapped there last.
    pub(super) fn newest(&self, address: u64) -> Option<Located> {
        let found = self.at(address).max_by_key(|(_, region)| region.seen);
        found.map(|(start, region)| located(start, region, address))
    }

    /// Resolves an address to the only file that has been mapped there, and its layer.
    pub(super) fn only(&self, address: u64) -> Option<(Located, u16)> {
        let mut all =
            (0..).zip(&self.layers).filter_map(|(layer, regions)| Some((layer, at(regions, address)?)));
        let (layer, (start, region)) = all.next()?;
        all.next().is_none().then(|| (located(start, region, address), layer))
    }

    /// Layer of the code with this identity at an address.
    pub(super) fn layer_of(&self, address: u64, identity: u64) -> Option<u16> {
        let mut layers = (0..).zip(&self.layers);
        let is_it = |regions| at(regions, address).is_some_and(|(_, region)| region.identity == identity);
        layers.find(|(_, regions)| is_it(regions)).map(|(layer, _)| layer)
    }

    /// Resolves the address of a frame to the file mapped there when its stack was captured, if that is certain; see
    /// [`jjleak_common::stack::StackFrame`].
    pub(super) fn of_frame(&self, address: u64, layer: u16, found: &[u64; MAX_FOUND]) -> Option<Located> {
        let (start, region) = match layer {
            layer::NO_FILE | layer::UNKNOWN => return None,
            layer::OF_SITE => {
                let mut all = self.at(address);
                let only = all.next()?;
                if all.next().is_some() {
                    return None;
                }
                only
            }
            layer::FOUND.. => {
                let identity = *found.get(usize::from(layer - layer::FOUND))?;
                self.at(address).find(|(_, region)| region.identity == identity)?
            }
            number => at(self.layers.get(usize::from(number))?, address)?,
        };
        Some(located(start, region, address))
    }

    /// Address range of a module in the last scan.
    pub(super) fn extent(&self, module: ModuleId) -> Option<Range<u64>> {
        let regions = || {
            let all = self.layers.iter().flatten();
            all.filter(|(_, region)| region.place.module == module && region.seen == self.scans)
        };
        let start = regions().map(|(start, _)| *start).min()?;
        let end = regions().map(|(_, region)| region.end).max()?;
        Some(start..end)
    }

    fn at(&self, address: u64) -> impl Iterator<Item = (u64, &Region)> {
        self.layers.iter().filter_map(move |regions| at(regions, address))
    }
}

fn located(start: u64, region: &Region, address: u64) -> Located {
    let FilePlace { module, offset, addend } = region.place;
    let offset = offset.wrapping_add(address - start);
    Located { module, offset, address: addend.map(|addend| offset.wrapping_add(addend)) }
}

fn at(regions: &BTreeMap<u64, Region>, address: u64) -> Option<(u64, &Region)> {
    let (start, region) = regions.range(..=address).next_back()?;
    (address < region.end).then_some((*start, region))
}

fn overlapping<'a>(
    regions: &'a BTreeMap<u64, Region>,
    range: &Range<u64>,
) -> impl Iterator<Item = (u64, &'a Region)> {
    let start = range.start;
    let before_end = regions.range(..range.end).rev().take_while(move |(_, region)| region.end > start);
    before_end.map(|(start, region)| (*start, region))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::FileId;

    const FIRST: ModuleId = ModuleId(0);
    const SECOND: ModuleId = ModuleId(1);

    const ADDEND: u64 = 0x1000;

    const NOTHING: [u64; MAX_FOUND] = [0; MAX_FOUND];

    fn enter(regions: &mut Regions, mapping: &Mapping, module: ModuleId) {
        let place = FilePlace { module, offset: mapping.file_offset, addend: Some(ADDEND) };
        regions.map(&mapping.addresses, mapping.identity(), place);
    }

    fn located_at(module: ModuleId, offset: u64) -> Located {
        Located { module, offset, address: Some(offset + ADDEND) }
    }

    fn mapping(addresses: Range<u64>, module: ModuleId) -> Mapping {
        Mapping {
            addresses,
            executable: true,
            file_offset: 0x1000,
            file: Some(FileId { device: (8, 1), inode: 10 + module.0 as u64 }),
            path: "/lib".into(),
            deleted: false,
        }
    }

    #[test]
    fn a_file_in_anothers_place_is_another_layer_and_both_stay_known() {
        let mut regions = Regions::default();
        let (first, second) = (mapping(0x7000..0x9000, FIRST), mapping(0x8000..0xa000, SECOND));
        for (mapping, module) in [(&first, FIRST), (&second, SECOND), (&first, FIRST)] {
            regions.begin_look();
            enter(&mut regions, mapping, module);
        }
        assert_eq!((regions.layer(&first), regions.layer(&second)), (0, 1));
        assert_eq!(regions.of_frame(0x8010, 0, &NOTHING), Some(located_at(FIRST, 0x2010)));
        assert_eq!(regions.of_frame(0x8010, 1, &NOTHING), Some(located_at(SECOND, 0x1010)));
        assert_eq!(regions.newest(0x8010), Some(located_at(FIRST, 0x2010)));
        assert_eq!((regions.extent(FIRST), regions.extent(SECOND)), (Some(0x7000..0x9000), None));
    }

    #[test]
    fn what_was_not_known_has_no_name_unless_it_is_certain() {
        let mut regions = Regions::default();
        let (first, second) = (mapping(0x7000..0x9000, FIRST), mapping(0x8000..0xa000, SECOND));
        enter(&mut regions, &first, FIRST);
        enter(&mut regions, &second, SECOND);
        assert_eq!(regions.of_frame(0x8010, layer::OF_SITE, &NOTHING), None);
        assert_eq!(regions.of_frame(0x7010, layer::OF_SITE, &NOTHING), Some(located_at(FIRST, 0x1010)));
        assert_eq!(regions.of_frame(0x7010, layer::UNKNOWN, &NOTHING), None);
        assert_eq!(regions.of_frame(0x7010, layer::NO_FILE, &NOTHING), None);
        assert_eq!(regions.of_frame(0x7010, 7, &NOTHING), None);
        let mut found = NOTHING;
        found[..2].copy_from_slice(&[5, second.identity()]);
        assert_eq!(regions.of_frame(0x8010, layer::FOUND + 1, &found), Some(located_at(SECOND, 0x1010)));
        assert_eq!(regions.of_frame(0x7010, layer::FOUND + 1, &found), None);
        assert_eq!(regions.of_frame(0x8010, layer::FOUND, &found), None);
        assert_eq!(regions.of_frame(0x8010, layer::FOUND + 9, &found), None);
    }

    #[test]
    fn a_mapping_that_is_cut_or_grows_stays_in_its_layer() {
        let mut regions = Regions::default();
        enter(&mut regions, &mapping(0x7000..0x9000, FIRST), FIRST);
        let rest = Mapping { file_offset: 0x2000, ..mapping(0x8000..0xb000, FIRST) };
        enter(&mut regions, &rest, FIRST);
        assert_eq!(regions.layer(&rest), 0);
        for (address, offset) in [(0x7010, 0x1010), (0x8010, 0x2010), (0xa010, 0x4010)] {
            assert_eq!(regions.of_frame(address, 0, &NOTHING), Some(located_at(FIRST, offset)));
        }
    }

    #[test]
    fn an_addend_that_becomes_known_stays_known() {
        let mut regions = Regions::default();
        let first = mapping(0x7000..0x9000, FIRST);
        let addresses = [None, Some(ADDEND), None].map(|addend| {
            regions.begin_look();
            let place = FilePlace { module: FIRST, offset: first.file_offset, addend };
            regions.map(&first.addresses, first.identity(), place);
            let found = regions.of_frame(0x7010, 0, &NOTHING);
            assert_eq!(found, regions.newest(0x7010));
            found.unwrap().address
        });
        assert_eq!(addresses, [None, Some(0x1010 + ADDEND), Some(0x1010 + ADDEND)]);
    }

    #[test]
    fn code_without_a_file_is_in_no_layer() {
        let anonymous = Mapping { file: None, ..mapping(0x7000..0x8000, FIRST) };
        assert_eq!(Regions::default().layer(&anonymous), layer::NO_FILE);
    }
}
