//! Reads the functions of an ELF file: their place in the file and their code.
//!
//! The file belongs to the profiled process and is not trusted: sizes and offsets are checked, and work is bounded by the file's
//! length.

use super::{
    Error, MissingReason, mini_debug,
    placement::Body,
    symbol_table::{Elf, Table},
};
use crate::fast_map::FastMap;
use crate::file_content::{Content, Window};
use gimli::{BaseAddresses, CieOrFde, EhFrame, UnwindSection};
use object::{
    LittleEndian, Object, ObjectSection, Relocation, RelocationTarget, SectionKind, elf,
    read::elf::{ProgramHeader, Sym},
};
use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
};

/// Section with mini debug info.
const MINI_DEBUG_INFO: &[u8] = b".gnu_debugdata";

/// Maximum size of a function that is analysed whole. malloc has about 800 bytes, a malloc with everything inlined a few
/// thousand. The size comes from the file and bounds the work.
const MAX_FUNCTION_BYTES: u64 = 64 << 10;

/// Number of bytes read of a function of unknown size: the longest x86 instruction.
const MAX_INSTRUCTION_BYTES: usize = 15;

/// Maximum number of definitions kept per name; versioned symbols have two or three.
const MAX_DEFINITIONS: usize = 8;

const ADDRESS_BYTES: u8 = 8;

/// Maximum number of prefixes tried; a program contains one jemalloc, rarely two.
const MAX_PREFIXES: usize = 4;

/// Maximum length of a prefixed name. Longer names are not read: a string table without a NUL would be read to its end for each
/// symbol.
const MAX_PREFIXED_BYTES: usize = 256;

/// Maximum number of loaded segments: linkers create up to ten. Each address is looked up in each.
const MAX_SEGMENTS: usize = 64;

/// Maximum number of functions with call frame information; Chromium has 800,000.
const MAX_DESCRIBED: usize = 1 << 21;

/// Maximum number of slots that the dynamic linker fills with other symbols' addresses; libLLVM has 60,000.
const MAX_LINKED: usize = 1 << 19;

/// The symbols and the executable code of a file.
pub(super) struct Image<'data> {
    file: Elf<'data>,
    code: Vec<Segment>,
    /// `None` if they hold more bytes than the file, or are more than linkers create.
    loaded: Option<Vec<Segment>>,
    definitions: FastMap<String, Vec<Definition>>,
    prefixes: Prefixes,
}

/// Prefixes in the names of a file's functions.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    /// Prefixes of public functions.
    pub(super) of_api: Vec<String>,
    /// Prefixes of internal functions.
    pub(super) of_internals: Vec<String>,
}

/// A loaded segment.
#[derive(Debug, Clone)]
struct Segment {
    address: u64,
    offset: u64,
    length: u64,
}

/// A function with call frame information.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) addresses: Range<u64>,
    /// True if an exception can transfer control into the middle of the function.
    pub(super) catches_exceptions: bool,
}

/// Target of a call through memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Callee {
    /// A function of the same file, at this address.
    Own(u64),
    /// A function of another file, with this name.
    Other(String),
}

/// A defined symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Definition {
    address: u64,
    size: u64,
    kind: elf::SymbolType,
    /// True if other files cannot bind to the symbol: linkers make hidden symbols of static executables local.
    local: bool,
}

/// A function and its place in the file.
#[derive(Debug)]
pub(super) struct Function<'data> {
    /// Virtual address, before relocation of the module.
    pub(super) address: u64,
    /// File offset of the first instruction.
    pub(super) offset: u64,
    pub(super) body: Body<'data>,
}

impl Definition {
    pub(super) const fn address(self) -> u64 {
        self.address
    }
}

impl Function<'_> {
    /// Address range of the known code.
    pub(super) fn range(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.body.bytes().len() as u64)
    }
}

impl<'data> Image<'data> {
    /// Reads the file and its symbols. Only symbols with a name from `names` are kept; `names` receives the prefixes under which
    /// the file defines `public` and `internals`.
    ///
    /// `debug_file` is another file with symbols for this one.
    pub(super) fn parse(
        data: impl Into<Content<'data>>,
        debug_file: Option<Content<'_>>,
        public: &str,
        internals: &[&str],
        names: impl FnOnce(&Prefixes) -> Vec<String>,
    ) -> Result<Self, Error> {
        let file = Elf::parse(data.into()).map_err(Error::Parse)?;
        let machine = file.elf_header().e_machine.get(LittleEndian);
        if machine != elf::EM_X86_64 {
            return Err(Error::Machine(machine.0));
        }
        let mini = file.section_by_name_bytes(MINI_DEBUG_INFO).and_then(|section| section.data().ok());
        let mini = mini.and_then(mini_debug::unpack);
        // A damaged debug file contributes no symbols.
        let more = [mini.as_ref().map(Content::from), debug_file].into_iter().flatten();
        let more: Vec<_> = more.filter_map(|elf| Elf::parse(elf).ok()).collect();
        let own =
            [file.elf_dynamic_symbol_table(), file.elf_symbol_table()].map(|table| Table::of(&file, table));
        let more = more.iter().map(|file| Table::of(file, file.elf_symbol_table()));
        let tables: Vec<_> = own.into_iter().chain(more).collect();
        let prefixes =
            Prefixes { of_api: prefixes(&tables, &[public]), of_internals: prefixes(&tables, internals) };
        let mut definitions: FastMap<_, _> =
            names(&prefixes).into_iter().map(|name| (name, Vec::new())).collect();
        for table in tables {
            collect_definitions(&table, &mut definitions);
        }
        definitions.values_mut().for_each(drop_doubtful);
        let loaded = segments(&file, |_| true).ok();
        Ok(Self { code: executable_segments(&file)?, loaded, definitions, prefixes, file })
    }

    /// Targets of calls through memory that the dynamic linker fills, by address of the slot.
    pub(super) fn linkage(&self) -> HashMap<u64, Callee> {
        let table = Table::of(&self.file, self.file.elf_dynamic_symbol_table());
        let mut window = Window::new(table.content);
        let relocations = self.file.dynamic_relocations().into_iter().flatten();
        let mut callee = |relocation: &Relocation| {
            let RelocationTarget::Symbol(index) = relocation.target() else { return None };
            let symbol = table.symbols.symbol(index).ok()?;
            if !symbol.is_undefined(LittleEndian) {
                return Some(Callee::Own(symbol.st_value.get(LittleEndian)));
            }
            // Only the names of functions that never return matter, which are short.
            let name = table.name(&mut window, symbol, MAX_PREFIXED_BYTES).unwrap_or_default();
            Some(Callee::Other(String::from_utf8_lossy(name).into_owned()))
        };
        let linked = relocations.filter_map(|(slot, relocation)| Some((slot, callee(&relocation)?)));
        linked.take(MAX_LINKED).collect()
    }

    /// Code from an address on, as far as functions are analysed; empty outside the code.
    pub(super) fn code_from(&self, address: u64) -> &'data [u8] {
        self.code_within(address, MAX_FUNCTION_BYTES).unwrap_or_default()
    }

    /// Up to `length` bytes of the code at an address; `None` outside the code.
    fn code_within(&self, address: u64, length: u64) -> Option<&'data [u8]> {
        let segment = self.segment(address)?;
        let offset = segment.offset_of(address);
        self.file.data().get(offset..segment.end().min(offset.saturating_add(length)))
    }

    fn segment(&self, address: u64) -> Option<&Segment> {
        self.code.iter().find(|segment| segment.contains(address))
    }

    /// File offset of the code at an address.
    pub(super) fn offset_of(&self, address: u64) -> Option<u64> {
        Some(self.segment(address)?.offset_of(address))
    }

    /// Returns true for an executable without a symbol table.
    pub(super) fn is_stripped_executable(&self) -> bool {
        let header = self.file.elf_header();
        let interpreted =
            || self.file.elf_program_headers().iter().any(|it| it.p_type(LittleEndian) == elf::PT_INTERP);
        let pie = || header.e_type.get(LittleEndian) == elf::ET_DYN && !self.has_name();
        let executable = header.e_type.get(LittleEndian) == elf::ET_EXEC || interpreted() || pie();
        executable && self.file.elf_symbol_table().is_empty()
    }

    /// Returns true if other files can refer to this one by name (`DT_SONAME`), as to a library.
    fn has_name(&self) -> bool {
        let dynamic = self
            .file
            .elf_program_headers()
            .iter()
            .find_map(|header| header.dynamic(LittleEndian, self.file.data()).ok().flatten());
        let tags = dynamic.into_iter().flatten().map(|entry| entry.d_tag.get(LittleEndian));
        tags.into_iter().any(|tag| tag == elf::DT_SONAME)
    }

    /// Prefixes found for the requested names.
    pub(super) fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// Returns true if two names are defined for the same code.
    pub(super) fn same_code(&self, one: &str, other: &str) -> bool {
        let others = self.definitions(other);
        self.definitions(one).iter().any(|one| others.iter().any(|other| one.address == other.address))
    }

    /// Returns true if the file defines the name.
    pub(super) fn defines(&self, name: &str) -> bool {
        !self.definitions(name).is_empty()
    }

    /// Returns true if other files can bind to the file's definition of the name.
    pub(super) fn exports(&self, name: &str) -> bool {
        self.definitions(name).iter().any(|definition| !definition.local)
    }

    /// All definitions of the name.
    pub(super) fn definitions(&self, name: &str) -> &[Definition] {
        self.definitions.get(name).map_or(&[], Vec::as_slice)
    }

    /// The function of a symbol.
    pub(super) fn function(&self, symbol: Definition) -> Result<Function<'data>, MissingReason> {
        match symbol.kind {
            elf::STT_FUNC => {}
            elf::STT_GNU_IFUNC => return Err(MissingReason::Indirect),
            _ => return Err(MissingReason::NoFunction),
        }
        let offset = self.offset_of(symbol.address).ok_or(MissingReason::OutsideCode)?;
        let rest = self.code_from(symbol.address);
        if rest.is_empty() {
            return Err(MissingReason::OutsideCode);
        }
        let whole = match symbol.size {
            1..=MAX_FUNCTION_BYTES => usize::try_from(symbol.size).ok().and_then(|size| rest.get(..size)),
            _ => None,
        };
        let start = || rest.split_at_checked(MAX_INSTRUCTION_BYTES).map_or(rest, |(start, _)| start);
        let body = whole.map_or_else(|| Body::Start(start()), Body::Whole);
        Ok(Function { address: symbol.address, offset, body })
    }

    /// The function at an address, with unknown length.
    pub(super) fn function_at(&self, address: u64) -> Result<Function<'data>, MissingReason> {
        self.function(Definition { address, size: 0, kind: elf::STT_FUNC, local: false })
    }

    /// The functions with call frame information (`.eh_frame`); `None` if there are more than in any program.
    pub(super) fn described(&self) -> Option<Vec<Described>> {
        let Some(section) = self.file.section_by_name(".eh_frame") else { return Some(Vec::new()) };
        let Ok(bytes) = section.data() else { return Some(Vec::new()) };
        let bases = BaseAddresses::default().set_eh_frame(section.address());
        let mut frames = EhFrame::new(bytes, gimli::LittleEndian);
        frames.set_address_size(ADDRESS_BYTES);
        let mut entries = frames.entries(&bases);
        let mut described = Vec::new();
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(entry) = entry else { continue };
            let Ok(entry) = entry.parse(EhFrame::cie_from_offset) else { continue };
            let begin = entry.initial_address();
            let addresses = begin..begin.saturating_add(entry.len());
            if described.len() == MAX_DESCRIBED {
                return None;
            }
            described.push(Described { addresses, catches_exceptions: entry.lsda().is_some() });
        }
        Some(described)
    }

    /// Passes everything that is loaded to `visit`, in pieces with their addresses. Each word of `bytes` bytes is whole in one of
    /// them. Returns false if the segments cannot be read, or overlap.
    #[must_use]
    pub(super) fn visit_loaded(&self, bytes: usize, mut visit: impl FnMut(u64, &[u8])) -> bool {
        let Some(loaded) = &self.loaded else { return false };
        loaded.iter().all(|segment| {
            let visit = |at, bytes: &[u8]| visit(segment.address.wrapping_add(at), bytes);
            self.file.data().visit(segment.offset..segment.end(), bytes - 1, visit)
        })
    }

    /// File range of what is loaded from an address on; `None` if nothing is loaded there.
    pub(super) fn loaded_from(&self, address: u64) -> Option<Range<u64>> {
        let segment = self.loaded.iter().flatten().find(|segment| segment.contains(address))?;
        Some(segment.offset_of(address)..segment.end())
    }

    /// A window on the file.
    pub(super) fn window(&self) -> Window<'data> {
        Window::new(self.file.data())
    }

    /// Returns true if there is code at an address.
    pub(super) fn is_code(&self, address: u64) -> bool {
        self.segment(address).is_some()
    }

    /// Passes read-only data, which includes the strings, to `visit`: in pieces that overlap by `overlap` bytes, each with true if it
    /// begins a section. Ends early where sections overlap, so that they hold more bytes than the file.
    pub(super) fn visit_constants(&self, overlap: usize, mut visit: impl FnMut(bool, &[u8])) {
        let data = self.file.data();
        let sections = self.file.sections().filter(|section| {
            section.kind() == SectionKind::ReadOnlyString || section.kind() == SectionKind::ReadOnlyData
        });
        let mut room = data.length();
        for (offset, length) in sections.filter_map(|section| section.file_range()) {
            let Some(left) = room.checked_sub(length) else { return };
            room = left;
            // A section beyond the end of the file has no bytes.
            let _ =
                data.visit(offset..offset.saturating_add(length), overlap, |at, bytes| visit(at == 0, bytes));
        }
    }

    /// Returns true if the file is always loaded at the addresses in its headers.
    pub(super) fn is_fixed(&self) -> bool {
        self.file.elf_header().e_type.get(LittleEndian) == elf::ET_EXEC
    }

    /// Passes all code to `visit`, in pieces with their addresses. Each instruction is whole in one of them. Returns false if the
    /// file cannot be read.
    #[must_use]
    pub(super) fn visit_code(&self, mut visit: impl FnMut(u64, &[u8])) -> bool {
        let data = self.file.data();
        self.code.iter().all(|segment| {
            let visit = |at, bytes: &[u8]| visit(segment.address.wrapping_add(at), bytes);
            data.visit(segment.offset..segment.end(), MAX_INSTRUCTION_BYTES, visit)
        })
    }
}

impl Segment {
    fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|distance| distance < self.length)
    }

    /// File offset of an address of the segment.
    const fn offset_of(&self, address: u64) -> u64 {
        self.offset + (address - self.address)
    }

    /// File offset of its end.
    const fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// Adds the defined symbols of a table under the names that are already keys.
fn collect_definitions(table: &Table<'_, '_>, definitions: &mut FastMap<String, Vec<Definition>>) {
    let longest = definitions.keys().map(String::len).max().unwrap_or_default();
    table.visit(longest, |name, symbol| {
        let Some(known) = definitions.get_mut(name) else { return };
        let definition = Definition {
            address: symbol.st_value.get(LittleEndian),
            size: symbol.st_size.get(LittleEndian),
            kind: symbol.st_type(),
            local: symbol.is_local(),
        };
        if known.len() < MAX_DEFINITIONS && !known.contains(&definition) {
            known.push(definition);
        }
    });
}

/// Keeps the global definitions of a name. Without one, keeps the local function if there is only one: a program may have many
/// local functions of the same name, none of which is the allocator's.
fn drop_doubtful(definitions: &mut Vec<Definition>) {
    if definitions.iter().any(|definition| !definition.local) {
        definitions.retain(|definition| !definition.local);
    } else if definitions.iter().any(|definition| definition.address != definitions[0].address) {
        definitions.clear();
    }
}

/// Prefixes of function names that end in one of the marks.
fn prefixes(tables: &[Table<'_, '_>], marks: &[&str]) -> Vec<String> {
    let mut prefixes = BTreeSet::new();
    for table in tables {
        table.visit(MAX_PREFIXED_BYTES, |name, symbol| {
            let prefix = marks.iter().find_map(|mark| name.strip_suffix(mark));
            let Some(prefix) = prefix.filter(|_| symbol.st_type() == elf::STT_FUNC) else { return };
            if !prefixes.contains(prefix) {
                prefixes.insert(prefix.to_owned());
            }
            if prefixes.len() > MAX_PREFIXES {
                prefixes.pop_last();
            }
        });
    }
    prefixes.into_iter().collect()
}

fn executable_segments(file: &Elf<'_>) -> Result<Vec<Segment>, Error> {
    segments(file, |flags| flags.contains(elf::PF_X))
}

/// Loaded segments with these flags. Fails if they have more bytes than the file: each is read by itself.
fn segments(file: &Elf<'_>, is_wanted: impl Fn(elf::ProgramFlags) -> bool) -> Result<Vec<Segment>, Error> {
    let segments = file.elf_program_headers().iter().filter(|header| {
        header.p_type(LittleEndian) == elf::PT_LOAD && is_wanted(header.p_flags(LittleEndian))
    });
    let end = file.data().length();
    let mut room = end;
    let segments = segments.take(MAX_SEGMENTS + 1).map(|header| {
        let (offset, length) = header.file_range(LittleEndian);
        // A segment beyond the end of the file contains nothing; the others remain usable.
        let is_there = offset.checked_add(length).is_some_and(|of_segment| of_segment <= end);
        let (offset, length) = if is_there { (offset, length) } else { (0, 0) };
        room = room.checked_sub(length).ok_or(Error::OverlappingCode)?;
        Ok(Segment { address: header.p_vaddr(LittleEndian), offset, length })
    });
    let segments = segments.collect::<Result<Vec<_>, Error>>()?;
    if segments.len() > MAX_SEGMENTS { Err(Error::ManySegments) } else { Ok(segments) }
}
