//! Functions that are known from outside of the code that is to be described: symbols, the entry point, words that the loader
//! relocates, and calls from code with call frame information.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction};
use object::elf::{
    FileHeader64, PF_X, PT_LOAD, ProgramHeader64, R_X86_64_RELATIVE, SHF_EXECINSTR, SHT_DYNSYM, SHT_PROGBITS,
    SHT_SYMTAB, STT_FUNC, SectionHeader64,
};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, SectionTable, Sym};
use object::{LittleEndian, ReadRef};

use super::{
    Code, Gaps,
    function::{Name, named},
    functions::MAX_FUNCTIONS,
};
use crate::file_content::Content;

/// Maximum number of executable segments, and of executable sections.
const MAX_SEGMENTS: usize = 16;
const MAX_SECTIONS: usize = 256;
/// Maximum number of symbols, and of relocations, that are read.
const MAX_ENTRIES: usize = 1 << 20;
/// Maximum number of bytes of code that is searched for calls: a fraction of a second.
const MAX_SEARCHED_BYTES: usize = 32 << 20;

type Sections<'data> = SectionTable<'data, FileHeader64<LittleEndian>, Content<'data>>;

/// Code of a module, and functions in it that are known from outside of the code.
pub(super) struct Known<'data> {
    /// Addresses and bytes of the executable segments.
    pub(super) segments: Vec<(u64, &'data [u8])>,
    /// Addresses of symbols of functions in the gaps, and the entry point.
    pub(super) certain: Vec<u64>,
    /// Relocated words that lead into the gaps: functions, or places in functions to jump to.
    pub(super) doubtful: HashSet<u64>,
    /// True if the file is not stripped: symbols are all functions.
    pub(super) has_all: bool,
}

impl<'data> Known<'data> {
    /// Reads what a file says. A damaged table counts as none.
    pub(super) fn locate(elf: Content<'data>, gaps: &Gaps) -> Option<Self> {
        let header = FileHeader64::<LittleEndian>::parse(elf).ok()?;
        let segments = code_segments(header, elf)?.filter_map(|segment| {
            let bytes = elf.read_bytes_at(segment.p_offset(LittleEndian), segment.p_filesz(LittleEndian));
            Some((segment.p_vaddr(LittleEndian), bytes.ok()?))
        });
        let segments = segments.take(MAX_SEGMENTS).collect();
        let table = header.sections(LittleEndian, elf).unwrap_or_default();
        let mut certain = vec![header.e_entry.get(LittleEndian)];
        let has_all = symbols(&table, elf, gaps, &mut certain);
        Some(Self { doubtful: relocated(&table, elf, gaps), segments, certain, has_all })
    }

    /// The functions in the gaps.
    pub(super) fn find(&self, code: &Code<'_>) -> BTreeSet<u64> {
        let known = self.certain.iter().chain(&self.doubtful).copied();
        let in_gap = known.filter(|address| code.gaps.contains(*address));
        let mut starts: BTreeSet<u64> = in_gap.take(MAX_FUNCTIONS).collect();
        if self.has_all {
            return starts;
        }
        let mut left = MAX_SEARCHED_BYTES;
        for (address, bytes) in &self.segments {
            let bytes = &bytes[..bytes.len().min(left)];
            left -= bytes.len();
            search(*address, bytes, code, &mut starts);
        }
        starts
    }
}

fn code_segments<'data>(
    header: &FileHeader64<LittleEndian>,
    elf: Content<'data>,
) -> Option<impl Iterator<Item = &'data ProgramHeader64<LittleEndian>>> {
    let segments = header.program_headers(LittleEndian, elf).ok()?.iter();
    Some(segments.filter(|segment| {
        segment.p_type(LittleEndian) == PT_LOAD && segment.p_flags(LittleEndian).contains(PF_X)
    }))
}

/// Addresses of the executable sections, sorted; of the segments if the file has no table of sections. Read-only data may share a
/// segment with code.
pub(super) fn code_sections(elf: Content<'_>) -> Option<Vec<Range<u64>>> {
    let header = FileHeader64::<LittleEndian>::parse(elf).ok()?;
    let segments = code_segments(header, elf)?.filter_map(|segment| {
        let begin = segment.p_vaddr(LittleEndian);
        Some(begin..begin.checked_add(segment.p_filesz(LittleEndian))?)
    });
    let segments: Vec<_> = segments.take(MAX_SEGMENTS).collect();
    let table = header.sections(LittleEndian, elf).unwrap_or_default();
    let is_code = |section: &&SectionHeader64<LittleEndian>| {
        section.sh_type(LittleEndian) == SHT_PROGBITS
            && section.sh_flags(LittleEndian).contains(SHF_EXECINSTR)
    };
    let found = table.iter().filter(is_code).filter_map(|section| {
        let begin = section.sh_addr(LittleEndian);
        let end = begin.checked_add(section.sh_size(LittleEndian))?;
        segments.iter().any(|segment| segment.start <= begin && end <= segment.end).then_some(begin..end)
    });
    let mut sections: Vec<_> = found.take(MAX_SECTIONS).collect();
    if sections.is_empty() {
        sections = segments;
    }
    sections.sort_unstable_by_key(|section| section.start);
    Some(sections)
}

/// Adds the addresses of functions. Returns true if they are all.
fn symbols<'data>(table: &Sections<'data>, elf: Content<'data>, gaps: &Gaps, known: &mut Vec<u64>) -> bool {
    let mut has_all = false;
    for kind in [SHT_SYMTAB, SHT_DYNSYM] {
        let Ok(symbols) = table.symbols(LittleEndian, elf, kind) else { continue };
        has_all |= kind == SHT_SYMTAB && !symbols.is_empty();
        let functions = symbols
            .iter()
            .take(MAX_ENTRIES)
            .filter(|symbol| symbol.st_type() == STT_FUNC && !symbol.is_undefined(LittleEndian));
        let addresses = functions.map(|symbol| symbol.st_value(LittleEndian));
        known.extend(addresses.filter(|address| gaps.contains(*address)).take(MAX_FUNCTIONS));
    }
    has_all
}

/// The words that the loader makes of relative addresses: some are functions in tables.
fn relocated<'data>(table: &Sections<'data>, elf: Content<'data>, gaps: &Gaps) -> HashSet<u64> {
    let mut left = MAX_ENTRIES;
    let mut words = HashSet::new();
    for section in table.iter() {
        let Ok(Some((relocations, _))) = section.rela(LittleEndian, elf) else { continue };
        let relocations = &relocations[..relocations.len().min(left)];
        left -= relocations.len();
        let relative = relocations.iter().filter(|it| it.r_type(LittleEndian, false) == R_X86_64_RELATIVE);
        let addresses = relative.map(|it| it.r_addend(LittleEndian).cast_unsigned());
        words.extend(addresses.filter(|address| gaps.contains(*address)).take(MAX_FUNCTIONS));
    }
    words
}

/// Adds the functions in gaps that code with call frame information calls, or takes the address of. Such code has no data in it:
/// instructions are decoded one after the other.
fn search(address: u64, bytes: &[u8], code: &Code<'_>, starts: &mut BTreeSet<u64>) {
    let mut decoder = Decoder::with_ip(u64::BITS, bytes, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() && starts.len() < MAX_FUNCTIONS {
        let at = decoder.ip();
        decoder.decode_out(&mut instruction);
        let target = named(&instruction).map(Name::address).filter(|target| code.gaps.contains(*target));
        if let Some(target) = target.filter(|_| !code.gaps.contains(at)) {
            starts.insert(target);
        }
    }
}
