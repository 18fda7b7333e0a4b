//! The files a process maps for execution, remembered while their addresses may need names.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use object::{Object, ObjectSegment};

use super::{FileId, Mapping, Pid};

/// Of memory.
const PAGE_BYTES: u64 = 4096;

/// A mapped file.
#[derive(Debug)]
pub struct Module {
    /// Which file it is.
    pub id: FileId,
    /// Its path, as the process sees it.
    pub path: PathBuf,
    /// The open file: it stays readable when the process has ended or the path leads elsewhere.
    file: File,
    /// Build ID in hex; empty when it has none.
    pub build_id: String,
    /// Loaded parts of the file, as its program headers have them.
    segments: Vec<Segment>,
}

/// A loaded part of a file.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    file_offset: u64,
    file_size: u64,
}

impl Module {
    /// A path that leads to the file for as long as this value lives.
    #[must_use]
    pub fn stable_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// The address that the program headers give to an offset in the file.
    #[must_use]
    pub fn address_of(&self, file_offset: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|segment| {
            // A mapping begins at the page that holds the segment's first byte.
            let start = segment.file_offset & !(PAGE_BYTES - 1);
            file_offset >= start && file_offset < segment.file_offset + segment.file_size
        })?;
        Some(segment.address.wrapping_add(file_offset).wrapping_sub(segment.file_offset))
    }

    /// The file's bytes. Read rather than mapped: a file truncated under a mapping would kill jjleak.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        fs::read(self.stable_path())
    }
}

/// Index of a module in its [`ModuleTable`]; never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(usize);

#[derive(Debug, Clone, Copy)]
struct Region {
    end: u64,
    file_offset: u64,
    module: ModuleId,
}

/// Modules by address. Regions stay known after they were unmapped, until another file is mapped over them.
#[derive(Debug, Default)]
pub struct ModuleTable {
    modules: Vec<Module>,
    by_file: HashMap<FileId, ModuleId>,
    regions: BTreeMap<u64, Region>,
}

impl ModuleTable {
    /// Takes in what the process maps now; returns the modules that are new. Files that cannot be opened are
    /// left out: their addresses stay unknown, and show as such.
    pub fn refresh(&mut self, pid: Pid, mappings: &[Mapping]) -> Vec<ModuleId> {
        let mut new = Vec::new();
        for mapping in mappings.iter().filter(|mapping| mapping.executable) {
            let Some(file_id) = mapping.file else { continue };
            let known = self.by_file.get(&file_id).copied();
            let module = match known {
                Some(module) => module,
                None => match open(pid, file_id, mapping) {
                    Ok(module) => self.add(module, &mut new),
                    Err(error) => {
                        tracing::warn!(path = %mapping.path.display(), %error, "cannot open mapped file");
                        continue;
                    }
                },
            };
            self.map(mapping, module);
        }
        new
    }

    /// The module with this ID.
    #[must_use]
    pub fn get(&self, id: ModuleId) -> &Module {
        &self.modules[id.0]
    }

    /// All modules.
    pub fn iter(&self) -> impl Iterator<Item = (ModuleId, &Module)> {
        self.modules.iter().enumerate().map(|(index, module)| (ModuleId(index), module))
    }

    /// The module mapped at an address, and the address's offset in its file.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(ModuleId, u64)> {
        let (start, region) = self.regions.range(..=address).next_back()?;
        (address < region.end).then(|| (region.module, address - start + region.file_offset))
    }

    /// Where a module's code is mapped, from its first to its last executable address.
    #[must_use]
    pub fn text(&self, id: ModuleId) -> Option<Range<u64>> {
        let regions = || self.regions.iter().filter(|(_, region)| region.module == id);
        let start = regions().map(|(start, _)| *start).min()?;
        let end = regions().map(|(_, region)| region.end).max()?;
        Some(start..end)
    }

    fn add(&mut self, module: Module, new: &mut Vec<ModuleId>) -> ModuleId {
        let id = ModuleId(self.modules.len());
        self.by_file.insert(module.id, id);
        self.modules.push(module);
        new.push(id);
        id
    }

    /// Enters a region and forgets what was mapped there before.
    fn map(&mut self, mapping: &Mapping, module: ModuleId) {
        let range = mapping.addresses.clone();
        let overlapping: Vec<u64> = self
            .regions
            .range(..range.end)
            .rev()
            .take_while(|(_, region)| region.end > range.start)
            .map(|(start, _)| *start)
            .collect();
        for start in overlapping {
            self.regions.remove(&start);
        }
        self.regions.insert(range.start, Region { end: range.end, file_offset: mapping.file_offset, module });
    }
}

/// Opens the mapped file itself; by its path in the process's root where that is not allowed.
fn open(pid: Pid, id: FileId, mapping: &Mapping) -> io::Result<Module> {
    let file = File::open(mapping.map_file(pid)).or_else(|_| {
        let mut path = pid.proc_file("root").into_os_string();
        path.push(&mapping.path);
        File::open(path)
    })?;
    let mut module =
        Module { id, path: mapping.path.clone(), file, build_id: String::new(), segments: Vec::new() };
    let bytes = module.read()?;
    if let Ok(elf) = object::File::parse(bytes.as_slice()) {
        module.build_id = build_id(&elf);
        module.segments = segments(&elf);
    }
    Ok(module)
}

fn segments(elf: &object::File<'_>) -> Vec<Segment> {
    let segment = |segment: object::Segment<'_, '_>| {
        let (file_offset, file_size) = segment.file_range();
        Segment { address: segment.address(), file_offset, file_size }
    };
    elf.segments().map(segment).collect()
}

fn build_id(elf: &object::File<'_>) -> String {
    use std::fmt::Write;
    let id = elf.build_id().ok().flatten();
    id.unwrap_or_default().iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_modules() -> (ModuleTable, Vec<Mapping>, Vec<ModuleId>) {
        let pid = Pid::new(std::process::id()).unwrap();
        let mappings = Mapping::all(pid).unwrap();
        let mut table = ModuleTable::default();
        let new = table.refresh(pid, &mappings);
        (table, mappings, new)
    }

    #[test]
    fn an_address_leads_to_its_file_and_offset() {
        let (table, mappings, _) = own_modules();
        let exe = std::env::current_exe().unwrap();
        let text = mappings.iter().find(|m| m.executable && m.path == exe).unwrap();
        let (module, offset) = table.find(text.addresses.start + 5).unwrap();
        assert_eq!(table.get(module).path, exe);
        assert_eq!(offset, text.file_offset + 5);
        assert!(table.find(0).is_none());
    }

    #[test]
    fn a_second_look_finds_nothing_new() {
        let (mut table, mappings, first) = own_modules();
        assert!(!first.is_empty());
        assert!(table.refresh(Pid::new(std::process::id()).unwrap(), &mappings).is_empty());
    }

    #[test]
    fn a_file_mapped_over_another_replaces_it() {
        let (mut table, mappings, _) = own_modules();
        let text = mappings.iter().find(|m| m.executable && m.file.is_some()).unwrap().clone();
        let other = table.iter().last().unwrap().0;
        let middle = text.addresses.start + 4096;
        table.map(&Mapping { addresses: middle..middle + 4096, file_offset: 0, ..text.clone() }, other);
        assert_eq!(table.find(middle + 1), Some((other, 1)));
        assert_eq!(table.find(text.addresses.start), None);
    }
}
