//! Compares rows with the code that they are about, before anybody unwinds by them.
//!
//! Rows that are a page off look like rows, and stacks that they lead through can look complete. Code cannot be misread in this way:
//! from a function's first instruction on, each push and each subtraction says where the canonical frame address is. So functions of
//! each executable segment are followed to the end of their prologues, in the bytes of the file that a mapping of that segment shows
//! at these addresses, and symbols are found by the section table, which knows nothing of segments. Rows become
//! [`VerifiedRows`] only where both agree with them, and hold only for what was compared: addresses that are made of offsets in the
//! file by another addend have none.

use std::ops::Range;

use jjleak_common::unwind::{Row, RowKind, SavedFp};
use object::elf::{
    FileHeader64, PF_X, PT_LOAD, SHF_EXECINSTR, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, SectionHeader64, Sym64,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{LittleEndian, ReadRef};

use super::{Error, ModuleRows, prologue};

/// Functions that are followed, of each segment: an off-by-one shows in the first, and all files of a process are compared
/// while it waits.
const FUNCTIONS: usize = 96;
/// Symbols that are looked up, of each segment.
const SYMBOLS: usize = 96;
/// Segments that are compared: linkers make one, sometimes two or three. Code of others is as good as without rows.
const MAX_SEGMENTS: usize = 16;
/// Least share that must agree, in percent. Of the programs of a Debian system, 99.9 % of the functions agree; of one that is
/// off by a page, hardly any.
const ENOUGH_PERCENT: u64 = 80;
/// Fewer than these disagree by a coincidence: a function written by hand.
const COINCIDENCES: u32 = 2;

/// Rows that were compared with the module's code, and the addends by which offsets in the file become the addresses that they
/// are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedRows {
    rows: ModuleRows,
    addends: Vec<u64>,
    verification: Verification,
}

/// What was compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verification {
    /// Functions whose prologues were followed.
    pub functions: Agreement,
    /// Symbols of functions, whose first instructions must have the canonical frame address 8 bytes above the stack pointer.
    pub symbols: Agreement,
    /// Calls in these prologues, at whose return addresses the row is what the code says.
    pub calls: u32,
}

/// How many there were, and how many agree with the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Compared.
    pub compared: u32,
    /// Of these, in agreement.
    pub agreeing: u32,
}

impl Agreement {
    fn add(&mut self, agrees: bool) {
        self.compared += 1;
        self.agreeing += u32::from(agrees);
    }

    /// Whether too few agree for rows and code to belong together.
    fn is_refuted(self) -> bool {
        let enough = u64::from(self.agreeing) * 100 >= u64::from(self.compared) * ENOUGH_PERCENT;
        !enough && self.compared - self.agreeing > COINCIDENCES
    }
}

impl Verification {
    fn is_refuted(&self) -> bool {
        self.functions.is_refuted() || self.symbols.is_refuted()
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

    /// What was compared.
    #[must_use]
    pub fn verification(&self) -> &Verification {
        &self.verification
    }

    /// What to add to offsets of code in the file to get the addresses that these rows are for, wrapping; one for each way in
    /// which segments are laid out.
    #[must_use]
    pub fn addends(&self) -> &[u64] {
        &self.addends
    }
}

/// Compares the rows of an ELF file with its code, in all executable segments.
pub(super) fn verify<'data>(rows: ModuleRows, elf: impl ReadRef<'data>) -> Result<VerifiedRows, Error> {
    let symbols = Symbols::of(elf);
    let (mut verification, mut addends) = (Verification::default(), Vec::new());
    for (addend, offsets) in code(elf)? {
        let found = compare(&rows, elf, &symbols, addend, &offsets);
        if found.is_refuted() {
            return Err(Error::Refuted(found));
        }
        verification.add(&found);
        if !addends.contains(&addend) {
            addends.push(addend);
        }
    }
    Ok(VerifiedRows { rows, addends, verification })
}

/// The addend and the offsets in the file of each executable segment.
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

/// Compares rows with what is at these offsets of the file, as the kernel side finds rows for what is mapped from there.
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

/// Whether a row is what a function's first instruction has; `None` where it says nothing of that: there is no call frame
/// information, or it is no function that anybody calls.
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

/// Indexes of rows at which functions begin, as far as rows tell: behind code that has none.
fn functions(rows: &ModuleRows, addend: u64, offsets: &Range<u64>) -> Vec<usize> {
    let pairs = rows.rows().windows(2).zip(1..);
    let begins = pairs.filter(|(pair, index)| {
        pair[0].kind() == RowKind::None as u64
            && is_first(pair[1])
            && offsets.contains(&address(rows, *index).wrapping_sub(addend))
    });
    begins.map(|(_, index)| index).collect()
}

/// So many of all, evenly.
fn sample(all: &[usize], most: usize) -> impl Iterator<Item = usize> {
    let count = all.len().min(most);
    (0..count).map(move |index| all[index * all.len() / count])
}

/// A file's symbols, of which few are read.
struct Symbols<'data, R> {
    elf: R,
    sections: &'data [SectionHeader64<LittleEndian>],
    /// The table of them: offset in the file, and how many.
    table: Option<(u64, u64)>,
    /// Where their names are.
    names: Range<u64>,
}

/// A function's symbol.
struct Symbol {
    /// Where its first instruction is in the file.
    offset: u64,
    /// Where its name is.
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

    /// Some functions, evenly. A symbol's section says where its code is in the file, whatever segments say.
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

    /// Whether it is no function, but a part of one that compilers have put elsewhere: `main.cold`.
    fn is_part_of_function(&self, symbol: &Symbol) -> bool {
        let name = self.elf.read_bytes_at_until(symbol.name..self.names.end, 0).unwrap_or_default();
        name.windows(5).any(|part| part == b".cold") || name.windows(6).any(|part| part == b".part.")
    }
}

#[cfg(test)]
mod tests;
