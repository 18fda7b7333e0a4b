//! The kernel side's unwind tables: rows of all modules, and where each process maps them.

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
    CodeFile, CodeRows, CodeSeen, MAX_MAPPINGS, Mapping, MappingTable, NO_MAPPINGS, PAGES, ROWS, Row,
    TABLES_PER_PROCESS, layer,
};

use super::{Error, Mapped};
use crate::processes::{FileVersion, Mapping as ProcessMapping, ModuleTable};
use crate::unwind::VerifiedRows;

/// Above are the kernel and the vsyscall page, which no frame of a program is in. The kernel side's search compares
/// addresses by the sign of their difference, which is right below.
const USER_SPACE_END: u64 = 1 << 47;

/// Bits of the minor number in the kernel's device numbers (`MINORBITS` in `include/linux/kdev_t.h`).
pub(super) const MINOR_BITS: u32 = 20;

/// Rows of files that nobody maps yet have their place up to here.
const MAX_EXPECTED_ROWS: usize = ROWS / 2;

/// The tables, memory-mapped for writing. What a module's rows take is never given back: they stay right for as long as
/// the file exists, wherever and whenever it is mapped.
pub(super) struct UnwindTables {
    rows: Mapped<[Row; ROWS]>,
    pages: Mapped<[u32; PAGES]>,
    mappings: Mapped<MappingTable>,
    modules: HashMap<FileVersion, Loaded>,
    /// What the kernel side finds by itself when a file is mapped anew.
    code: BpfHashMap<MapData, CodeFile, CodeRows>,
    used_rows: usize,
    used_pages: usize,
    /// What the kernel side reads JVMs' code by, and where that is.
    jvms: Mapped<CodeCache>,
    generated: HashMap<ProcessSlot, Vec<Range<u64>>>,
    generation: u32,
}

/// A place in the index.
#[derive(Debug, Clone, Copy)]
struct Place {
    first_page: u32,
    pages: u32,
}

/// A module's place in the index.
#[derive(Debug, Clone)]
struct Loaded {
    place: Place,
    text_start: u64,
    /// See [`VerifiedRows::addends`].
    addends: Vec<u64>,
}

/// Where a process maps code.
#[derive(Debug, Clone)]
pub struct CodeMapping {
    /// Addresses.
    pub addresses: Range<u64>,
    /// The file, and the address in it (as its program headers have it) that is mapped at the start; `None` for code
    /// that is in no file, or in one that cannot be read.
    pub module: Option<(FileVersion, u64)>,
    /// The offset in the file that is mapped at the start.
    pub file_offset: u64,
    /// What tells it from other code: see [`jjleak_common::unwind::code_identity`].
    pub identity: u64,
    /// Which of the files that have been mapped there it is, or one of [`jjleak_common::unwind::layer`].
    pub layer: u16,
}

impl CodeMapping {
    /// Describes a mapping by the modules of its process.
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

    /// What a table has seen.
    pub(super) fn seen(&self, index: u32) -> Option<CodeSeen> {
        let table = self.mappings.get(index as usize)?;
        // SAFETY: the table is mapped for reading, and this side alone writes it.
        Some(unsafe { read_volatile(addr_of!((*table).seen)) })
    }

    /// Whether a module's rows are there.
    pub(super) fn has(&self, file: FileVersion) -> bool {
        self.modules.contains_key(&file)
    }

    /// Adds a module's rows. If all of its code is laid out in one way, the kernel side is told where they are, so that it can use
    /// them for whoever maps the file next. `Err` when there is no room for them: its code is then unwound by frame pointers.
    pub(super) fn add(&mut self, file: FileVersion, module: &VerifiedRows) -> Result<(), TablesFull> {
        let (rows, addends) = (module.rows(), module.addends().to_vec());
        let full = TablesFull { rows: rows.rows().len() };
        let place = self.append(rows.rows(), rows.pages()).ok_or(full)?;
        let text_start = rows.text_start();
        if let [addend] = addends[..] {
            let Place { first_page, pages } = place;
            let rows = CodeRows { first_page, pages, text: text_start.wrapping_sub(addend) };
            if let Err(error) = self.code.insert(as_kernel_knows(file), rows, 0) {
                tracing::debug!(%error, ?file, "the kernel side is not told of it");
            }
        }
        self.modules.insert(file, Loaded { place, text_start, addends });
        Ok(())
    }

    /// Adds the rows of a file that may be mapped one day, so that whoever does has whole stacks at once.
    pub(super) fn expect(&mut self, file: FileVersion, module: &VerifiedRows) -> Result<(), TablesFull> {
        let (rows, pages) = (module.rows().rows().len(), module.rows().pages().len());
        if self.used_rows + rows > MAX_EXPECTED_ROWS || self.used_pages + pages > PAGES / 2 {
            return Err(TablesFull { rows });
        }
        self.add(file, module)
    }

    /// Writes rows and their index to where nobody has read yet.
    fn append(&mut self, rows: &[Row], pages: &[u32]) -> Option<Place> {
        let (first_row, first_page) = (self.used_rows, self.used_pages);
        let (end_row, end_page) = (first_row + rows.len(), first_page + pages.len());
        if end_row > ROWS || end_page > PAGES {
            return None;
        }
        let (row_table, page_table) = (self.rows.get(0)?, self.pages.get(0)?);
        // SAFETY: both are mapped for writing, and what is written is in bounds.
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

    /// Says where a process generates code. It counts from the next [`Self::write`] on.
    pub(super) fn set_generated(&mut self, slot: ProcessSlot, code: &CodeCache) {
        if let Some(row) = self.jvms.get(usize::from(slot.0)) {
            let mut unfinished = *code;
            // By this, a walk knows that it may rely on all else that is said of continuations.
            unfinished.continuations.klass = 0;
            // SAFETY: the row is mapped for writing. A walk that reads it meanwhile finds no code, or some that it checks.
            unsafe { write_volatile(row, unfinished) };
            fence(Ordering::SeqCst);
            // SAFETY: as above.
            unsafe { write_volatile(addr_of_mut!((*row).continuations.klass), code.continuations.klass) };
        }
        self.generated.insert(slot, code.heaps.iter().map(|heap| heap.begin..heap.end).collect());
    }

    /// A process's generated code is gone, with the process or its image.
    pub(super) fn forget_generated(&mut self, slot: ProcessSlot) {
        self.generated.remove(&slot);
    }

    /// Says that a table is being written.
    fn mark(&mut self, table: u32) {
        if let Some(table) = self.mappings.get(table as usize) {
            self.generation = self.generation.wrapping_add(1) | 1;
            // SAFETY: the table is mapped for writing.
            unsafe { write_volatile(addr_of_mut!((*table).generation), self.generation) };
            fence(Ordering::SeqCst);
        }
    }

    /// Writes what a process maps into the one of its two tables that is not in use, and returns that table's index and
    /// how many mappings did not fit. A child that was born with its parent's mappings uses one of the parent's.
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
        // SAFETY: the table is mapped for writing and not in use; what is written is in bounds.
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

    /// Where a process maps code. What is in no file where it generates code, is generated.
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
            // Rows were compared with the code at these addends only.
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

/// Of a process's two tables, the one that is not in use.
fn not_in_use(slot: ProcessSlot, in_use: Option<u32>) -> u32 {
    let first = NO_MAPPINGS + 1 + u32::from(slot.0) * TABLES_PER_PROCESS;
    if in_use == Some(first) { first + 1 } else { first }
}

/// The tables have fewer than 2^32 rows and pages.
fn as_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
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

/// The unwind tables have no room for a module.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the unwind tables have no room for its {rows} rows")]
pub struct TablesFull {
    rows: usize,
}
