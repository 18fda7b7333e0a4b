//! Unwind tables of the kernel side: rows of all modules, and the code mappings of each process.
//!
//! - `rows`: the rows of all modules, in `groups`, which are in `chunks` with free `space`.
//! - `known_files`: where the kernel side finds rows of files that a process has just mapped.
//! - `room`: the files that make room for others.
//! - `uses`: the modules that the code mappings refer to.
//!
//! Rows of a module stay valid as long as the file exists, wherever and whenever it is mapped. They are removed only when there
//! is no space for others, and only if no process maps the file. A walk that runs meanwhile never meets rows of another module:
//! first, all that leads to the rows is removed, which are the kernel side's entry for the file and outdated tables of mappings;
//! then [`RowTables::await_programs`] waits for walks that have already followed it; only then others can take the place.

mod chunks;
mod groups;
mod known_files;
mod room;
mod rows;
mod space;
mod uses;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};
use std::sync::atomic::{Ordering, fence};

use aya::Ebpf;
use jjleak_common::jvm::CodeCache;
use jjleak_common::names;
use jjleak_common::process::ProcessSlot;
use jjleak_common::unwind::{
    CodeSeen, MAX_CODE_FILES, MAX_MAPPINGS, Mapping, MappingTable, NO_MAPPINGS, PAGE_SHIFT,
    TABLES_PER_PROCESS, layer,
};

use known_files::KnownFiles;
use room::{Extent, first_of, missing, spare};
use rows::{RowTables, Stored};
use uses::Uses;

use super::{Error, Mapped};
use crate::processes::{FileVersion, Mapping as ProcessMapping, ModuleTable};
use crate::unwind::{ModuleRows, VerifiedRows};

pub(super) use known_files::MINOR_BITS;

/// Addresses above belong to the kernel and the vsyscall page, which contain no frames of a program. The kernel side's search
/// compares addresses by the sign of their difference, which is correct below.
const USER_SPACE_END: u64 = 1 << 47;

/// The memory-mapped tables.
pub(super) struct UnwindTables {
    rows: RowTables,
    mappings: Mapped<MappingTable>,
    modules: HashMap<FileVersion, Loaded>,
    known_files: KnownFiles,
    uses: Uses,
    /// Number of files whose rows were removed.
    removed: u64,
    /// Layouts of JVMs, by which the kernel side unwinds their code, and its location.
    jvms: Mapped<CodeCache>,
    generated: HashMap<ProcessSlot, Vec<Range<u64>>>,
    generation: u32,
}

/// Rows of a module.
#[derive(Debug)]
struct Loaded {
    rows: Stored,
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
    /// Empty tables with room for this many rows.
    pub(super) fn new(ebpf: &mut Ebpf, max_rows: u32) -> Result<Self, Error> {
        let rows = RowTables::new(ebpf, max_rows)?;
        let known_files = KnownFiles::new(ebpf)?;
        let map = |name| ebpf.map(name).ok_or(Error::ObjectLacks { what: "map", name });
        Ok(Self {
            rows,
            mappings: Mapped::writable(map(names::MAPPINGS)?)?,
            modules: HashMap::new(),
            known_files,
            uses: Uses::default(),
            removed: 0,
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

    /// Number of files whose rows were removed to make room for others.
    pub(super) const fn removed(&self) -> u64 {
        self.removed
    }

    /// Keeps the rows of files that are about to be in a process's next table of mappings.
    pub(super) fn announce(&mut self, slot: ProcessSlot, files: impl IntoIterator<Item = FileVersion>) {
        self.uses.announce(slot, files);
    }

    /// Lets the kernel side use added rows: from now on, for any process that maps the files.
    fn publish(&mut self) -> Result<(), Error> {
        self.rows.publish()?;
        self.known_files.publish();
        Ok(())
    }

    /// Adds a module's rows, for [`Self::publish`]. If there is no space, rows of files that no process maps are removed. On
    /// failure, the module's code is unwound by frame pointers.
    pub(super) fn add(&mut self, file: FileVersion, module: &VerifiedRows) -> Result<(), RowsRefused> {
        if self.has(file) {
            return Ok(());
        }
        let rows = module.rows();
        let extent = Extent::of(rows);
        if extent.groups > Extent::MAX_GROUPS {
            return Err(RowsRefused::TooLong { pages: rows.pages().len() });
        }
        if self.modules.len() >= MAX_CODE_FILES as usize {
            self.remove_unused(Extent::default(), MAX_CODE_FILES as usize / 8)?;
        }
        let mut stored = self.rows.add(rows)?;
        // Free space may be in pieces that are too small: remove more, as long as there is anything to remove.
        while stored.is_none()
            && self.has_room(extent.words, extent.groups)
            && self.remove_unused(self.to_remove(extent), 1)?
        {
            stored = self.rows.add(rows)?;
        }
        self.rows.shrink();
        let stored = stored.ok_or_else(|| refused(rows, extent))?;
        self.known_files.add(file, module, &stored);
        self.uses.add(file);
        let addends = module.parts().iter().map(|part| part.addend).collect();
        self.modules.insert(file, Loaded { rows: stored, text_start: rows.text_start(), addends });
        Ok(())
    }

    /// Adds the rows of a file that may be mapped later, so that stacks through it are complete at once. A part of the space is
    /// left to files that are mapped.
    pub(super) fn add_expected(
        &mut self,
        file: FileVersion,
        module: &VerifiedRows,
    ) -> Result<(), RowsRefused> {
        let extent = Extent::of(module.rows());
        let is_spare = self.rows.room().holds(extent.and(spare(self.rows.capacity())));
        if !is_spare || self.modules.len() >= MAX_CODE_FILES as usize {
            return Err(refused(module.rows(), extent));
        }
        self.add(file, module)?;
        Ok(self.publish()?)
    }

    /// Returns true if a module of this size would fit if all rows of files that no process maps were removed.
    pub(super) fn has_room(&self, words: u64, groups: u64) -> bool {
        let extent = Extent { words, groups };
        let room = self.rows.room();
        let unused = || self.uses.unused().into_iter().map(|file| self.extent_of(file));
        room.holds(extent) || unused().fold(room, Extent::and).holds(extent)
    }

    fn extent_of(&self, file: FileVersion) -> Extent {
        self.modules.get(&file).map_or_else(Extent::default, |loaded| loaded.rows.extent())
    }

    /// Space to free for a module of this size that does not fit: where there is too little, at least the spare share.
    fn to_remove(&self, extent: Extent) -> Extent {
        let (room, spare) = (self.rows.room(), spare(self.rows.capacity()));
        missing(room, extent, spare)
    }

    /// Removes rows of files that no process maps, the least recently mapped first, until at least this much space and this many files
    /// are removed. Returns true if any were.
    fn remove_unused(&mut self, extent: Extent, files: usize) -> Result<bool, Error> {
        self.publish()?;
        let mut candidates = self.uses.unused();
        candidates.retain(|file| *file != FileVersion::VDSO);
        let sizes = candidates.into_iter().map(|file| (file, self.extent_of(file)));
        let unused: HashSet<_> = first_of(sizes, extent, files).into_iter().collect();
        if unused.is_empty() {
            return Ok(false);
        }
        for table in self.uses.take_outdated(&unused) {
            self.void(table);
        }
        let mut removed = Vec::with_capacity(unused.len());
        for file in &unused {
            self.known_files.remove(*file)?;
            self.uses.remove(*file);
            removed.extend(self.modules.remove(file));
        }
        // If this fails, the space is lost, but no walk meets other rows there.
        self.rows.await_programs()?;
        for loaded in &removed {
            self.rows.remove(&loaded.rows);
        }
        self.removed += removed.len() as u64;
        tracing::debug!("removed the unwind rows of {} files that no process maps", removed.len());
        Ok(true)
    }

    /// Waits until all programs that run now have ended. Returns false if there are no rows.
    pub(super) fn await_programs(&self) -> Result<bool, Error> {
        self.rows.await_programs()
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

    /// Notes that a process maps nothing any more.
    pub(super) fn release(&mut self, slot: ProcessSlot) {
        self.forget_generated(slot);
        self.uses.release(slot);
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

    /// Empties an outdated table, for a forked child that still uses that of its parent: it has to be scanned.
    fn void(&mut self, index: u32) {
        let Some(table) = self.mappings.get(index as usize) else { return };
        self.mark(index);
        // SAFETY: the table is mapped for writing.
        unsafe {
            write_volatile(addr_of_mut!((*table).count), 0);
            write_volatile(addr_of_mut!((*table).mappings).cast::<Mapping>(), Mapping::EMPTY);
            // A state that no process reaches.
            write_volatile(addr_of_mut!((*table).seen), CodeSeen { made: u64::MAX, scan: u64::MAX });
        }
        self.complete(table);
    }

    /// Makes a table that was written valid.
    fn complete(&mut self, table: *mut MappingTable) {
        fence(Ordering::Release);
        self.generation = self.generation.wrapping_add(1);
        // SAFETY: the table is mapped for writing.
        unsafe { write_volatile(addr_of_mut!((*table).generation), self.generation) };
        fence(Ordering::Release);
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
        self.publish()?;
        let index = not_in_use(slot, in_use);
        let lacks = Error::ObjectLacks { what: "table in map", name: names::MAPPINGS };
        let table = self.mappings.get(index as usize).ok_or(lacks)?;
        self.mark(index);
        let mut mappings = self.mappings_of(slot, code);
        mappings.sort_by_key(|mapping| mapping.begin);
        let excess = mappings.len().saturating_sub(MAX_MAPPINGS);
        mappings.truncate(MAX_MAPPINGS);
        // SAFETY: the table is mapped for writing and not in use; all writes are in bounds.
        unsafe {
            let places = addr_of_mut!((*table).mappings).cast::<Mapping>();
            for (place, mapping) in mappings.iter().enumerate() {
                write_volatile(places.add(place), *mapping);
            }
            write_volatile(addr_of_mut!((*table).seen), seen);
            write_volatile(addr_of_mut!((*table).count), u32::try_from(mappings.len()).unwrap_or_default());
        }
        self.complete(table);
        let files = code.iter().filter_map(|code| code.module).map(|(file, _)| file);
        self.uses.write(slot, index, files.filter(|file| self.modules.contains_key(file)));
        Ok((index, excess))
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
                first_page: loaded.rows.first_page(),
                pages: loaded.rows.pages,
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

fn refused(rows: &ModuleRows, Extent { words, groups }: Extent) -> RowsRefused {
    RowsRefused::Full { rows: rows.rows().len(), words, groups }
}

/// The one of a process's two tables that is not in use.
fn not_in_use(slot: ProcessSlot, in_use: Option<u32>) -> u32 {
    let first = NO_MAPPINGS + 1 + u32::from(slot.0) * TABLES_PER_PROCESS;
    if in_use == Some(first) { first + 1 } else { first }
}

/// The rows of a module were not added.
#[derive(Debug, thiserror::Error)]
pub enum RowsRefused {
    /// The tables have no space.
    #[error("the unwind tables have no room for its {rows} rows (--max-rows)")]
    Full {
        /// Number of rows of the module.
        rows: usize,
        /// Number of words that they take.
        words: u64,
        /// Number of entries in the directory that they take.
        groups: u64,
    },
    /// The module's text takes too much of the directory.
    #[error("its code extends over {} MiB, more than the unwind tables allow for a file", pages >> (20 - PAGE_SHIFT))]
    TooLong {
        /// Number of pages of its text.
        pages: usize,
    },
    /// The tables could not be written.
    #[error("its rows could not be written to the unwind tables")]
    Write(#[from] Error),
}
