//! Unwind tables of the kernel side: rows of all modules, and the code mappings of each process.

use std::collections::HashMap;
use std::ops::Range;
use std::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};
use std::sync::atomic::{Ordering, fence};

use aya::Ebpf;
use aya::maps::{HashMap as BpfHashMap, MapData};
use jjleak_common::jvm::CodeCache;
use jjleak_common::names;
use jjleak_common::process::ProcessSlot;
use jjleak_common::unwind::{
    CodeFile, CodePart, CodeRows, CodeSeen, MAX_CODE_PARTS, MAX_MAPPINGS, Mapping, MappingTable, NO_MAPPINGS,
    PAGES, ROWS, Row, TABLES_PER_PROCESS, layer,
};

use super::{Error, Mapped};
use crate::processes::{FileVersion, Mapping as ProcessMapping, ModuleTable};
use crate::unwind::{VerifiedPart, VerifiedRows};

/// Addresses above belong to the kernel and the vsyscall page, which contain no frames of a program. The kernel side's search
/// compares addresses by the sign of their difference, which is correct below.
const USER_SPACE_END: u64 = 1 << 47;

/// Width of the minor number in the kernel's device numbers (`MINORBITS` in `include/linux/kdev_t.h`).
pub(super) const MINOR_BITS: u32 = 20;

/// Rows and pages of files that are not mapped yet are added only up to these fill levels.
const MAX_EXPECTED_ROWS: usize = ROWS / 8 * 7;
const MAX_EXPECTED_PAGES: usize = PAGES / 8 * 7;

/// The memory-mapped tables. Rows of a module are never freed: they stay valid as long as the file exists, wherever and whenever
/// it is mapped.
pub(super) struct UnwindTables {
    rows: Mapped<[Row; ROWS]>,
    pages: Mapped<[u32; PAGES]>,
    mappings: Mapped<MappingTable>,
    modules: HashMap<FileVersion, Loaded>,
    /// Files that the kernel side can resolve itself when they are newly mapped.
    code: BpfHashMap<MapData, CodeFile, CodeRows>,
    used_rows: usize,
    used_pages: usize,
    /// Layouts of JVMs, by which the kernel side unwinds their code, and its location.
    jvms: Mapped<CodeCache>,
    generated: HashMap<ProcessSlot, Vec<Range<u64>>>,
    generation: u32,
}

/// Position in the index of pages.
#[derive(Debug, Clone, Copy)]
struct Place {
    first_page: u32,
    pages: u32,
}

/// Position of a module in the index.
#[derive(Debug, Clone)]
struct Loaded {
    place: Place,
    text_start: u64,
    /// Of its verified parts, see [`VerifiedRows::parts`].
    addends: Vec<u64>,
}

/// A mapping of code.
#[derive(Debug, Clone)]
pub struct CodeMapping {
    /// Address range.
    pub addresses: Range<u64>,
    /// The file, and the address in its program headers of the first byte; `None` for code without a file, or with an unreadable
    /// one.
    pub module: Option<(FileVersion, u64)>,
    /// File offset of the first byte.
    pub file_offset: u64,
    /// Distinguishes it from other code: see [`jjleak_common::unwind::code_identity`].
    pub identity: u64,
    /// Its position among the files mapped at these addresses, or one of [`jjleak_common::unwind::layer`].
    pub layer: u16,
}

impl CodeMapping {
    /// Describes a mapping, using the modules of its process.
    #[must_use]
    pub fn of(mapping: &ProcessMapping, modules: &ModuleTable) -> Self {
        Self {
            addresses: mapping.addresses.clone(),
            module: modules.place(mapping),
            file_offset: mapping.file_offset,
            identity: mapping.identity(),
            layer: modules.layer(mapping),
        }
    }
}

impl UnwindTables {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let name = names::CODE;
        let code = ebpf.take_map(name).ok_or(Error::ObjectLacks { what: "map", name })?;
        let map = |name| ebpf.map(name).ok_or(Error::ObjectLacks { what: "map", name });
        Ok(Self {
            rows: Mapped::writable(map(names::ROWS)?)?,
            pages: Mapped::writable(map(names::PAGES)?)?,
            mappings: Mapped::writable(map(names::MAPPINGS)?)?,
            modules: HashMap::new(),
            code: BpfHashMap::try_from(code).map_err(Error::table)?,
            used_rows: 0,
            used_pages: 0,
            jvms: Mapped::writable(map(names::JVMS)?)?,
            generated: HashMap::new(),
            generation: 0,
        })
    }

    /// The state that a table reflects.
    pub(super) fn seen(&self, index: u32) -> Option<CodeSeen> {
        let table = self.mappings.get(index as usize)?;
        // SAFETY: the table is mapped for reading, and only this side writes it.
        Some(unsafe { read_volatile(addr_of!((*table).seen)) })
    }

    /// Returns true if the table has the rows of a module.
    pub(super) fn has(&self, file: FileVersion) -> bool {
        self.modules.contains_key(&file)
    }

    /// Adds a module's rows. If its code has few parts, the kernel side learns their location, so that it can use them for any
    /// process that maps the file later. `Err` if there is no space: the module's code is then unwound by frame
    /// pointers.
    pub(super) fn add(&mut self, file: FileVersion, module: &VerifiedRows) -> Result<(), TablesFull> {
        let (rows, parts) = (module.rows(), module.parts());
        let full = TablesFull { rows: rows.rows().len() };
        let place = self.append(rows.rows(), rows.pages()).ok_or(full)?;
        let text_start = rows.text_start();
        if let Some(parts) = as_kernel_parts(parts, text_start) {
            let Place { first_page, pages } = place;
            if let Err(error) =
                self.code.insert(as_kernel_knows(file), CodeRows { first_page, pages, parts }, 0)
            {
                tracing::debug!(%error, ?file, "cannot register unwind rows of a file for other processes");
            }
        }
        let addends = parts.iter().map(|part| part.addend).collect();
        self.modules.insert(file, Loaded { place, text_start, addends });
        Ok(())
    }

    /// Adds the rows of a file that may be mapped later, so that stacks through it are complete at once.
    pub(super) fn add_expected(
        &mut self,
        file: FileVersion,
        module: &VerifiedRows,
    ) -> Result<(), TablesFull> {
        let (rows, pages) = (module.rows().rows().len(), module.rows().pages().len());
        if self.used_rows + rows > MAX_EXPECTED_ROWS || self.used_pages + pages > MAX_EXPECTED_PAGES {
            return Err(TablesFull { rows });
        }
        self.add(file, module)
    }

    /// Writes rows and their index to unused parts of the tables.
    fn append(&mut self, rows: &[Row], pages: &[u32]) -> Option<Place> {
        let (first_row, first_page) = (self.used_rows, self.used_pages);
        let (end_row, end_page) = (first_row + rows.len(), first_page + pages.len());
        if end_row > ROWS || end_page > PAGES {
            return None;
        }
        let (row_table, page_table) = (self.rows.get(0)?, self.pages.get(0)?);
        // SAFETY: both are mapped for writing, and all writes are in bounds.
        unsafe {
            let to = row_table.cast::<Row>().add(first_row);
            std::ptr::copy_nonoverlapping(rows.as_ptr(), to, rows.len());
            let to = page_table.cast::<u32>().add(first_page);
            for (index, page) in pages.iter().enumerate() {
                write_volatile(to.add(index), as_u32(first_row) + page);
            }
        }
        (self.used_rows, self.used_pages) = (end_row, end_page);
        Some(Place { first_page: as_u32(first_page), pages: as_u32(pages.len().saturating_sub(1)) })
    }

    /// Sets the location of a process's generated code. Takes effect at the next [`Self::write`].
    pub(super) fn set_generated(&mut self, slot: ProcessSlot, code: &CodeCache) {
        if let Some(row) = self.jvms.get(usize::from(slot.0)) {
            let mut unfinished = *code;
            // A nonzero value tells a stack walk that all other fields of continuations are valid.
            unfinished.continuations.klass = 0;
            // SAFETY: the row is mapped for writing. A concurrent stack walk finds no code, or values that it validates.
            unsafe { write_volatile(row, unfinished) };
            fence(Ordering::SeqCst);
            // SAFETY: as above.
            unsafe { write_volatile(addr_of_mut!((*row).continuations.klass), code.continuations.klass) };
        }
        self.generated.insert(slot, code.heaps.iter().map(|heap| heap.begin..heap.end).collect());
    }

    /// Removes a process's generated code, which ended with the process or its program image.
    pub(super) fn forget_generated(&mut self, slot: ProcessSlot) {
        self.generated.remove(&slot);
    }

    /// Marks a table as being written.
    fn mark(&mut self, table: u32) {
        if let Some(table) = self.mappings.get(table as usize) {
            self.generation = self.generation.wrapping_add(1) | 1;
            // SAFETY: the table is mapped for writing.
            unsafe { write_volatile(addr_of_mut!((*table).generation), self.generation) };
            fence(Ordering::SeqCst);
        }
    }

    /// Writes the code mappings of a process into the one of its two tables that is not in use; returns the index of that table
    /// and the number of mappings that did not fit. A forked child starts with its parent's table.
    pub(super) fn write(
        &mut self,
        slot: ProcessSlot,
        in_use: Option<u32>,
        code: &[CodeMapping],
        seen: CodeSeen,
    ) -> Result<(u32, usize), Error> {
        let index = not_in_use(slot, in_use);
        let lacks = Error::ObjectLacks { what: "table in map", name: names::MAPPINGS };
        let table = self.mappings.get(index as usize).ok_or(lacks)?;
        self.mark(index);
        let mut mappings = self.mappings_of(slot, code);
        mappings.sort_by_key(|mapping| mapping.begin);
        let left_out = mappings.len().saturating_sub(MAX_MAPPINGS);
        mappings.truncate(MAX_MAPPINGS);
        // SAFETY: the table is mapped for writing and not in use; all writes are in bounds.
        unsafe {
            let places = addr_of_mut!((*table).mappings).cast::<Mapping>();
            for (place, mapping) in mappings.iter().enumerate() {
                write_volatile(places.add(place), *mapping);
            }
            write_volatile(addr_of_mut!((*table).seen), seen);
            write_volatile(addr_of_mut!((*table).count), u32::try_from(mappings.len()).unwrap_or_default());
            fence(Ordering::Release);
            self.generation = self.generation.wrapping_add(1);
            write_volatile(addr_of_mut!((*table).generation), self.generation);
        }
        fence(Ordering::Release);
        Ok((index, left_out))
    }

    /// Code mappings of a process. Mappings without a file that overlap the generated code count as generated.
    fn mappings_of(&self, slot: ProcessSlot, code: &[CodeMapping]) -> Vec<Mapping> {
        let heaps = self.generated.get(&slot).map(Vec::as_slice).unwrap_or_default();
        let is_generated = |code: &CodeMapping| {
            let overlaps =
                |heap: &Range<u64>| heap.start < code.addresses.end && code.addresses.start < heap.end;
            code.module.is_none() && heaps.iter().any(overlaps)
        };
        let others = code.iter().filter(|code| !is_generated(code)).map(|code| self.mapping(code));
        let generated = (0..).zip(heaps).filter(|(_, heap)| !heap.is_empty()).map(|(index, heap)| Mapping {
            begin: heap.start,
            end: heap.end,
            text: index,
            first_page: u32::from(slot.0),
            pages: Mapping::GENERATED,
            identity: 0,
            layer: u32::from(layer::NO_FILE),
            reserved: 0,
        });
        others.chain(generated).filter(|mapping| mapping.end <= USER_SPACE_END).collect()
    }

    fn mapping(&self, code: &CodeMapping) -> Mapping {
        let (begin, end) = (code.addresses.start, code.addresses.end);
        let (identity, layer) = (code.identity, u32::from(code.layer));
        let by_rows = code.module.and_then(|(file, address)| {
            let addend = address.wrapping_sub(code.file_offset);
            // Rows were verified against the code at these addends only.
            let loaded = self.modules.get(&file).filter(|loaded| loaded.addends.contains(&addend));
            Some((loaded?, address))
        });
        match by_rows {
            Some((loaded, address)) => Mapping {
                begin,
                end,
                text: begin.wrapping_sub(address).wrapping_add(loaded.text_start),
                first_page: loaded.place.first_page,
                pages: loaded.place.pages,
                identity,
                layer,
                reserved: 0,
            },
            None => Mapping {
                begin,
                end,
                text: begin,
                first_page: 0,
                pages: Mapping::WITHOUT_ROWS,
                identity,
                layer,
                reserved: 0,
            },
        }
    }
}

/// The one of a process's two tables that is not in use.
fn not_in_use(slot: ProcessSlot, in_use: Option<u32>) -> u32 {
    let first = NO_MAPPINGS + 1 + u32::from(slot.0) * TABLES_PER_PROCESS;
    if in_use == Some(first) { first + 1 } else { first }
}

/// The tables have fewer than 2^32 rows and pages.
fn as_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Parts of code for the kernel side; `None` if there are too many, or they overlap.
fn as_kernel_parts(parts: &[VerifiedPart], text_start: u64) -> Option<[CodePart; MAX_CODE_PARTS]> {
    let is_apart = parts.windows(2).all(|pair| pair[0].offsets.end <= pair[1].offsets.start);
    let mut places = [CodePart::default(); MAX_CODE_PARTS];
    if parts.len() > MAX_CODE_PARTS || !is_apart {
        return None;
    }
    for (place, VerifiedPart { offsets, addend }) in places.iter_mut().zip(parts) {
        let text = text_start.wrapping_sub(*addend);
        *place = CodePart { begin: offsets.start, end: offsets.end, text };
    }
    Some(places)
}

fn as_kernel_knows(FileVersion { file, changed }: FileVersion) -> CodeFile {
    let (major, minor) = file.device;
    CodeFile {
        inode: file.inode,
        changed_s: changed.0,
        // Less than a second.
        changed_ns: u32::try_from(changed.1).unwrap_or_default(),
        device: major << MINOR_BITS | minor,
    }
}

/// The unwind tables have no space for a module.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the unwind tables have no room for its {rows} rows")]
pub struct TablesFull {
    rows: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_side_knows_code_in_up_to_two_parts_that_share_no_page() {
        let part = |offsets, addend| VerifiedPart { offsets, addend };
        let [first, second] = as_kernel_parts(&[part(0x1000..0x3000, 0x10)], 0x5000).unwrap();
        assert_eq!(
            (first, second),
            (CodePart { begin: 0x1000, end: 0x3000, text: 0x4ff0 }, CodePart::default())
        );
        let bolt = [part(0x1000..0x3000, 0x1000), part(0x20_0000..0x40_0000, 0)];
        assert_eq!(as_kernel_parts(&bolt, 0x2000).unwrap()[1].text, 0x2000);
        assert_eq!(as_kernel_parts(&[part(0x1000..0x3000, 1), part(0x2000..0x4000, 2)], 0), None);
        assert_eq!(as_kernel_parts(&[0, 1, 2].map(|at| part(at << 12..(at + 1) << 12, at)), 0), None);
    }
}
