//! Compares rows with the code that they describe, before they are used.
//!
//! Rows that are a page off are still valid rows, and stacks unwound with them can look complete. Code cannot be misread in this
//! way: from a function's first instruction on, each push and each subtraction moves the canonical frame address by a known
//! distance. Therefore functions of each executable segment are followed to the end of their prologues, in the bytes that a
//! mapping of that segment shows at these addresses. Symbols are located through the section table, which is independent of
//! segments. Rows become [`VerifiedRows`] only if both agree, and only for the compared segments: addresses computed from file
//! offsets with another addend have no rows.

use std::ops::Range;

use jjleak_common::unwind::{Row, RowKind, SavedFp};
use object::elf::{
    FileHeader64, PF_X, PT_LOAD, SHF_EXECINSTR, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, SectionHeader64, Sym64,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{LittleEndian, ReadRef};

use super::{Error, ModuleRows, prologue};

/// Maximum number of functions followed per segment. An off-by-one shows in the first, and all files of a process are compared
/// while it waits.
const FUNCTIONS: usize = 96;
/// Maximum number of symbols compared per segment.
const SYMBOLS: usize = 96;
/// Maximum number of segments compared: linkers generate one, sometimes two or three. Code in further segments counts as without
/// rows.
const MAX_SEGMENTS: usize = 16;
/// Maximum length of a name; longer ones are not examined.
const MAX_NAME_BYTES: u64 = 4096;
/// Size of a page of memory, in which whole files are mapped.
const PAGE_BYTES: u64 = 4096;
/// Minimum share that must agree, in percent. In the programs of a Debian system, 99.9 % of the functions agree; in one that is
/// off by a page, hardly any.
const ENOUGH_PERCENT: u64 = 80;
/// Number of disagreements that can be coincidences, such as hand-written functions.
const COINCIDENCES: u32 = 2;

/// Rows that were compared with the module's code, and the parts of the code that they are right for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedRows {
    rows: ModuleRows,
    parts: Vec<VerifiedPart>,
    verification: Verification,
}

/// A part of a file's code whose rows were compared: segments with the same addend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedPart {
    /// File offsets of its pages.
    pub offsets: Range<u64>,
    /// Turns these offsets into addresses of the rows, with wrapping.
    pub addend: u64,
}

/// Result of a comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verification {
    /// Functions with a followed prologue.
    pub functions: Agreement,
    /// Symbols of functions. At their first instruction the canonical frame address must be 8 bytes above the stack pointer.
    pub symbols: Agreement,
    /// Calls in these prologues with a row at the return address that agrees with the code.
    pub calls: u32,
}

/// Number of compared items, and of those that agree with the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Number compared.
    pub compared: u32,
    /// Number of these that agree.
    pub agreeing: u32,
}

impl Agreement {
    fn add(&mut self, agrees: bool) {
        self.compared += 1;
        self.agreeing += u32::from(agrees);
    }

    /// Returns true if too few agree for rows and code to belong together.
    fn is_refuted(self) -> bool {
        let enough = u64::from(self.agreeing) * 100 >= u64::from(self.compared) * ENOUGH_PERCENT;
        !enough && self.compared - self.agreeing > COINCIDENCES
    }
}

impl Verification {
    fn is_refuted(&self) -> bool {
        let agreeing = self.functions.agreeing + self.symbols.agreeing;
        let no_agreement = !self.is_empty() && agreeing == 0;
        no_agreement || self.functions.is_refuted() || self.symbols.is_refuted()
    }

    /// Returns true if nothing could be compared.
    const fn is_empty(&self) -> bool {
        self.functions.compared + self.symbols.compared == 0
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.functions, other.functions), (&mut self.symbols, other.symbols)] {
            sum.compared += more.compared;
            sum.agreeing += more.agreeing;
        }
        self.calls += other.calls;
    }
}

impl VerifiedRows {
    /// The rows.
    #[must_use]
    pub fn rows(&self) -> &ModuleRows {
        &self.rows
    }

    /// Result of the comparison with the code.
    #[must_use]
    pub fn verification(&self) -> &Verification {
        &self.verification
    }

    /// The parts of the code that the rows are right for, by file offset.
    #[must_use]
    pub fn parts(&self) -> &[VerifiedPart] {
        &self.parts
    }
}

/// Compares the rows of an ELF file with its code, in all executable segments.
pub(super) fn verify<'data>(rows: ModuleRows, elf: impl ReadRef<'data>) -> Result<VerifiedRows, Error> {
    let symbols = Symbols::of(elf);
    let (mut verification, mut compared) = (Verification::default(), Vec::new());
    let mut segments = code(elf)?;
    segments.sort_by_key(|(_, offsets)| offsets.start);
    // Code without prologues or symbols to compare is code of the other segments' layout, or its layout is uncertain.
    let is_uniform = segments.windows(2).all(|pair| pair[0].0 == pair[1].0);
    for (addend, offsets) in segments {
        let found = compare(&rows, elf, &symbols, addend, &offsets);
        if found.is_refuted() {
            return Err(Error::Refuted(found));
        }
        verification.add(&found);
        compared.push((addend, offsets, is_uniform || !found.is_empty()));
    }
    Ok(VerifiedRows { rows, parts: parts(compared), verification })
}

/// Joins verified segments with the same addend, if no other segment is between them.
fn parts(compared: Vec<(u64, Range<u64>, bool)>) -> Vec<VerifiedPart> {
    let mut parts = Vec::<VerifiedPart>::new();
    let mut previous = None;
    for (addend, offsets, is_verified) in compared {
        if !is_verified {
            previous = None;
            continue;
        }
        let begin = offsets.start & !(PAGE_BYTES - 1);
        let end = offsets.end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        match parts.last_mut() {
            Some(part) if previous == Some(addend) => part.offsets.end = end,
            _ => parts.push(VerifiedPart { offsets: begin..end, addend }),
        }
        previous = Some(addend);
    }
    parts
}

/// The addend and the file offsets of each executable segment.
fn code<'data>(elf: impl ReadRef<'data>) -> Result<Vec<(u64, Range<u64>)>, Error> {
    let header = FileHeader64::<LittleEndian>::parse(elf).map_err(Error::Parse)?;
    let segments =
        header.program_headers(LittleEndian, elf).map_err(Error::Parse)?.iter().filter(|segment| {
            segment.p_type(LittleEndian) == PT_LOAD && segment.p_flags(LittleEndian).contains(PF_X)
        });
    let place = |segment: &object::elf::ProgramHeader64<LittleEndian>| {
        let offset = segment.p_offset(LittleEndian);
        let end = offset.checked_add(segment.p_filesz(LittleEndian))?;
        Some((segment.p_vaddr(LittleEndian).wrapping_sub(offset), offset..end))
    };
    Ok(segments.filter_map(place).take(MAX_SEGMENTS).collect())
}

/// Compares rows with the content at these file offsets, with the kernel's search for rows of code mapped from there.
fn compare<'data, R: ReadRef<'data>>(
    rows: &ModuleRows,
    elf: R,
    symbols: &Symbols<'data, R>,
    addend: u64,
    offsets: &Range<u64>,
) -> Verification {
    let mut found = Verification::default();
    for index in sample(&functions(rows, addend, offsets), FUNCTIONS) {
        let offset = address(rows, index).wrapping_sub(addend);
        let length = offsets.end.saturating_sub(offset).min(prologue::MAX_BYTES);
        let Ok(code) = elf.read_bytes_at(offset, length) else { continue };
        let followed = prologue::follow(&rows.rows()[index..], code);
        if let Some(agrees) = followed.agrees {
            found.functions.add(agrees);
        }
        found.calls += followed.calls;
    }
    for symbol in symbols.sample() {
        let offset = symbol.offset;
        if !offsets.contains(&offset) {
            continue;
        }
        let row = rows.find(offset.wrapping_add(addend));
        let agrees = row.and_then(is_of_first_instruction);
        if let Some(agrees) = agrees
            && (agrees || !symbols.is_part_of_function(&symbol))
        {
            found.symbols.add(agrees);
        }
    }
    found
}

/// Returns true if a row is the one of a function's first instruction; `None` if that cannot be decided: without call frame
/// information, or for code that is not a callable function.
fn is_of_first_instruction(row: Row) -> Option<bool> {
    let by_address = [RowKind::Sp as u64, RowKind::Fp as u64, RowKind::Deref as u64, RowKind::FarSp as u64];
    by_address.contains(&row.kind()).then(|| is_first(row))
}

fn is_first(row: Row) -> bool {
    row.kind() == RowKind::Sp as u64 && row.offset_bytes() == 8 && row.saved() == SavedFp::Register as u64
}

fn address(rows: &ModuleRows, index: usize) -> u64 {
    rows.text_start().wrapping_add(u64::from(rows.rows()[index].address()))
}

/// Indexes of rows at which functions begin, as far as rows show: those after code without rows.
fn functions(rows: &ModuleRows, addend: u64, offsets: &Range<u64>) -> Vec<usize> {
    let pairs = rows.rows().windows(2).zip(1..);
    let begins = pairs.filter(|(pair, index)| {
        pair[0].kind() == RowKind::None as u64
            && is_first(pair[1])
            && offsets.contains(&address(rows, *index).wrapping_sub(addend))
    });
    begins.map(|(_, index)| index).collect()
}

/// Up to `most` items, evenly spaced.
fn sample(all: &[usize], most: usize) -> impl Iterator<Item = usize> {
    let count = all.len().min(most);
    (0..count).map(move |index| all[index * all.len() / count])
}

/// A file's symbols, of which few are read.
struct Symbols<'data, R> {
    elf: R,
    sections: &'data [SectionHeader64<LittleEndian>],
    /// The symbol table: file offset, and number of symbols.
    table: Option<(u64, u64)>,
    /// File range of the names.
    names: Range<u64>,
}

/// A function's symbol.
struct Symbol {
    /// File offset of its first instruction.
    offset: u64,
    /// File offset of its name.
    name: u64,
}

impl<'data, R: ReadRef<'data>> Symbols<'data, R> {
    fn of(elf: R) -> Self {
        let sections = FileHeader64::<LittleEndian>::parse(elf)
            .and_then(|header| header.section_headers(LittleEndian, elf))
            .unwrap_or_default();
        let find = |kind| sections.iter().find(|section| section.sh_type(LittleEndian) == kind);
        let table = find(SHT_SYMTAB).or_else(|| find(SHT_DYNSYM));
        let place = |section: &SectionHeader64<LittleEndian>| {
            let (offset, bytes) = (section.sh_offset(LittleEndian), section.sh_size(LittleEndian));
            (offset, bytes)
        };
        let names = table.and_then(|table| sections.get(table.sh_link(LittleEndian) as usize)).map(place);
        let (begin, bytes) = names.unwrap_or_default();
        let count = |(offset, bytes): (u64, u64)| (offset, bytes / size_of::<Sym64<LittleEndian>>() as u64);
        Self { elf, sections, table: table.map(place).map(count), names: begin..begin.saturating_add(bytes) }
    }

    /// Some functions, evenly spaced. A symbol's section gives the position of its code in the file, independently of segments.
    fn sample(&self) -> impl Iterator<Item = Symbol> {
        let (at, count) = self.table.unwrap_or_default();
        let most = (SYMBOLS as u64).min(count);
        (0..most).filter_map(move |index| {
            let index = u128::from(index) * u128::from(count) / u128::from(most);
            let place = u64::try_from(index).ok()?.checked_mul(size_of::<Sym64<LittleEndian>>() as u64)?;
            let symbol = self.elf.read_at::<Sym64<LittleEndian>>(at.checked_add(place)?).ok()?;
            let is_function = symbol.st_type() == STT_FUNC && symbol.st_size(LittleEndian) > 0;
            let section = self
                .sections
                .get(usize::from(symbol.st_shndx(LittleEndian).0))
                .filter(|section| is_function && section.sh_flags(LittleEndian).contains(SHF_EXECINSTR))?;
            let distance = symbol.st_value(LittleEndian).checked_sub(section.sh_addr(LittleEndian))?;
            Some(Symbol {
                offset: section.sh_offset(LittleEndian).checked_add(distance)?,
                name: self.names.start.checked_add(u64::from(symbol.st_name(LittleEndian)))?,
            })
        })
    }

    /// Returns true for a part of a function that compilers have placed elsewhere: `main.cold`.
    fn is_part_of_function(&self, symbol: &Symbol) -> bool {
        let end = self.names.end.min(symbol.name.saturating_add(MAX_NAME_BYTES));
        let name = self.elf.read_bytes_at_until(symbol.name..end, 0).unwrap_or_default();
        name.windows(5).any(|part| part == b".cold") || name.windows(6).any(|part| part == b".part.")
    }
}

#[cfg(test)]
mod tests;
