//! Functions that are known from outside of the code that is to be described: symbols, the entry point, words that the loader
//! relocates, and calls from code with call frame information.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction};
use object::LittleEndian;
use object::elf::{
    FileHeader64, PF_X, PT_LOAD, ProgramHeader64, R_X86_64_RELATIVE, SHF_EXECINSTR, SHT_DYNSYM, SHT_PROGBITS,
    SHT_SYMTAB, STT_FUNC, SectionHeader64,
};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, SectionTable, Sym};

use super::{
    Code, Gaps, MAX_INSTRUCTION_BYTES,
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
const MAX_SEARCHED_BYTES: u64 = 32 << 20;

type Sections<'data> = SectionTable<'data, FileHeader64<LittleEndian>, Content<'data>>;

/// A section with code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) addresses: Range<u64>,
    /// Place of the first one in the file.
    offset: u64,
}

impl Section {
    /// Place of some of its addresses in the file.
    pub(super) fn range(&self, addresses: Range<u64>) -> Range<u64> {
        let begin = self.offset + (addresses.start - self.addresses.start);
        begin..begin + (addresses.end - addresses.start)
    }
}

/// Functions that are known from outside of the code in the gaps.
pub(super) struct Known<'data> {
    pub(super) elf: Content<'data>,
    pub(super) sections: Vec<Section>,
    /// Addresses of symbols of functions in the gaps, and the entry point.
    pub(super) certain: Vec<u64>,
    /// Relocated words that lead into the gaps: functions, or places in functions to jump to.
    pub(super) doubtful: HashSet<u64>,
    /// True if the file is not stripped: symbols are all functions.
    pub(super) has_all: bool,
}

impl<'data> Known<'data> {
    /// Reads what a file says. A damaged table counts as none.
    pub(super) fn locate(elf: Content<'data>, sections: Vec<Section>, gaps: &Gaps) -> Option<Self> {
        let header = FileHeader64::<LittleEndian>::parse(elf).ok()?;
        let table = header.sections(LittleEndian, elf).unwrap_or_default();
        let mut certain = vec![header.e_entry.get(LittleEndian)];
        let has_all = symbols(&table, elf, gaps, &mut certain);
        Some(Self { doubtful: relocated(&table, elf, gaps), elf, sections, certain, has_all })
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
        for Section { addresses, offset } in &self.sections {
            let length = (addresses.end - addresses.start).min(left);
            left -= length;
            search(self.elf, addresses.start, *offset..offset + length, code, &mut starts);
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

/// The executable sections, sorted by address; the segments if the file has no table of sections. Read-only data may share a segment
/// with code.
pub(super) fn code_sections(elf: Content<'_>) -> Option<Vec<Section>> {
    let header = FileHeader64::<LittleEndian>::parse(elf).ok()?;
    let segments = code_segments(header, elf)?.filter_map(|segment| {
        let (begin, length) = (segment.p_vaddr(LittleEndian), segment.p_filesz(LittleEndian));
        section(begin, segment.p_offset(LittleEndian), length)
    });
    let segments: Vec<_> = segments.take(MAX_SEGMENTS).collect();
    let table = header.sections(LittleEndian, elf).unwrap_or_default();
    let is_code = |section: &&SectionHeader64<LittleEndian>| {
        section.sh_type(LittleEndian) == SHT_PROGBITS
            && section.sh_flags(LittleEndian).contains(SHF_EXECINSTR)
    };
    let found = table.iter().filter(is_code).filter_map(|section| {
        let Section { addresses, .. } =
            self::section(section.sh_addr(LittleEndian), 0, section.sh_size(LittleEndian))?;
        let holds = |segment: &&Section| {
            segment.addresses.start <= addresses.start && addresses.end <= segment.addresses.end
        };
        let offset = segments.iter().find(holds)?.range(addresses.clone()).start;
        Some(Section { addresses, offset })
    });
    let mut sections: Vec<_> = found.take(MAX_SECTIONS).collect();
    if sections.is_empty() {
        sections = segments;
    }
    sections.sort_unstable_by_key(|section| section.addresses.start);
    Some(sections)
}

/// Some code; `None` if it reaches beyond all addresses.
fn section(begin: u64, offset: u64, length: u64) -> Option<Section> {
    offset.checked_add(length)?;
    Some(Section { addresses: begin..begin.checked_add(length)?, offset })
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
pub(super) fn search(
    elf: Content<'_>,
    address: u64,
    range: Range<u64>,
    code: &Code<'_>,
    starts: &mut BTreeSet<u64>,
) {
    let end = address + (range.end - range.start);
    let mut instruction = Instruction::default();
    // Address of the next instruction: the last one of a piece can end in the next piece.
    let mut next = address;
    // A section that cannot be read adds no functions.
    let _ = elf.visit(range, MAX_INSTRUCTION_BYTES, |offset, piece| {
        let begin = address + offset;
        let behind = begin + piece.len() as u64;
        let limit = if behind == end { end } else { behind - MAX_INSTRUCTION_BYTES as u64 };
        let skipped = usize::try_from(next.saturating_sub(begin)).unwrap_or(usize::MAX);
        let Some(bytes) = piece.get(skipped..) else { return };
        let mut decoder = Decoder::with_ip(u64::BITS, bytes, next, DecoderOptions::NONE);
        while decoder.can_decode() && decoder.ip() < limit && starts.len() < MAX_FUNCTIONS {
            let at = decoder.ip();
            decoder.decode_out(&mut instruction);
            let target = named(&instruction).map(Name::address).filter(|target| code.gaps.contains(*target));
            if let Some(target) = target.filter(|_| !code.gaps.contains(at)) {
                starts.insert(target);
            }
        }
        next = decoder.ip();
    });
}
