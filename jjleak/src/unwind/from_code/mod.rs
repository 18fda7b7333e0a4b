//! Rows of code without call frame information, from the code itself: musl and other libraries built without it, hand-written
//! assembly, parts of stripped static programs.
//!
//! A function is followed from its first instruction along all branches, with the canonical frame address (CFA) that each
//! instruction has. An instruction has a row if one of two things proves it:
//!
//! - Code behind it returns, and finds the return address and the caller's frame pointer there: going back from the return, the
//!   CFA is known, whatever function it is.
//! - It is reached from the first instruction of a function, over calls of functions that return. Behind a call that may not
//!   return can be another function's code; and an address that is taken can be that of a place in a function to jump to.
//!
//! All ways to an instruction have to agree.
//!
//! - `frame`: the CFA and the caller's frame pointer at an instruction, and what each instruction does to them.
//! - `function`: all instructions of one function.
//! - `functions`: all functions of a module, found from those that are known.
//! - `known`: functions that symbols, the entry point, and other code name.

mod frame;
mod function;
mod functions;
mod known;
#[cfg(test)]
mod tests;

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions};
use jjleak_common::unwind::{Row, RowKind};

use self::{
    frame::Frame,
    functions::Described,
    known::{Known, Section, code_sections},
};
use super::{
    Error, MAX_ROWS,
    assemble::push,
    entries::{Entries, MAX_FUNCTIONS, Span},
};
use crate::file_content::Content;

/// Code without call frame information below this size is the linker's and the compiler's own: tables of procedures, start and end
/// of the program. Nothing allocates in it.
const MIN_GAP_BYTES: u64 = 2048;
/// Code beyond this size is not read: it stays in memory meanwhile. Files with more are built without call frame information, such as
/// Debian's Chromium, and their stacks go on by frame pointers.
const MAX_GAP_BYTES: u64 = 24 << 20;
/// Alignment of functions: shorter gaps are padding. Large libraries have it everywhere, and all of their code would be read for it.
const ALIGNMENT: u64 = 16;
/// Length of the longest instruction, which can begin in a gap and end behind it.
const MAX_INSTRUCTION_BYTES: usize = 15;

/// The parts of a module's code that nothing else describes.
struct Code<'data> {
    /// Their addresses and bytes, sorted.
    bytes: Vec<(u64, &'data [u8])>,
    gaps: Gaps,
}

/// Addresses without call frame information, sorted.
struct Gaps(Vec<Range<u64>>);

impl Gaps {
    fn contains(&self, address: u64) -> bool {
        let following = self.0.partition_point(|gap| gap.start <= address);
        following.checked_sub(1).is_some_and(|index| self.0[index].contains(&address))
    }

    /// Number of addresses.
    fn bytes(&self) -> u64 {
        self.0.iter().map(|gap| gap.end - gap.start).sum()
    }
}

impl<'data> Code<'data> {
    /// Reads the code in gaps of these sections.
    fn read(elf: Content<'data>, sections: &[Section], gaps: Gaps) -> Self {
        let read = |gap: &Range<u64>| {
            let section = sections.iter().find(|section| section.addresses.contains(&gap.start))?;
            let end = gap.end.saturating_add(MAX_INSTRUCTION_BYTES as u64).min(section.addresses.end);
            Some((gap.start, elf.get(section.range(gap.start..end))?))
        };
        Self { bytes: gaps.0.iter().filter_map(read).collect(), gaps }
    }

    /// A decoder from an address on; `None` if there is no code.
    fn decoder(&self, address: u64) -> Option<Decoder<'data>> {
        let following = self.bytes.partition_point(|(begin, _)| *begin <= address);
        let (begin, bytes) = self.bytes.get(following.checked_sub(1)?)?;
        let bytes = bytes.get(usize::try_from(address - begin).ok()?..).filter(|bytes| !bytes.is_empty())?;
        Some(Decoder::with_ip(u64::BITS, bytes, address, DecoderOptions::NONE))
    }
}

impl Entries<'_> {
    /// Adds the functions that nothing else describes.
    pub(super) fn read_code(&mut self, elf: Content<'_>) -> Result<(), Error> {
        let Some(sections) = code_sections(elf) else { return Ok(()) };
        let gaps = self.gaps(&sections);
        // Code is read only if it has to be.
        if !(MIN_GAP_BYTES..=MAX_GAP_BYTES).contains(&gaps.bytes()) {
            return Ok(());
        }
        let Some(known) = Known::locate(elf, sections.clone(), &gaps) else { return Ok(()) };
        let code = Code::read(elf, &sections, gaps);
        self.add_described(&functions::describe(&code, &known))
    }

    /// Adds the rows of instructions, sorted by address. Where two functions disagree, there is no row.
    fn add_described(&mut self, described: &[Described]) -> Result<(), Error> {
        for run in described.chunk_by(|one, next| next.address <= one.address + one.length) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let length = last.address + last.length - first.address;
            let Some(addresses) = self.text.relative(first.address, length) else { continue };
            if self.spans.len() >= MAX_FUNCTIONS {
                return Err(Error::TooManyFunctions);
            }
            let first_row = self.rows.len();
            for same in run.chunk_by(|one, next| one.address == next.address) {
                let distance = u32::try_from(same[0].address - first.address).unwrap_or(u32::MAX);
                let address = addresses.start.saturating_add(distance);
                let agrees = same.iter().all(|other| other.row.rule() == same[0].row.rule());
                let row = if agrees { same[0].row.at(address) } else { Row::plain(address, RowKind::None) };
                push(&mut self.rows, first_row, row);
            }
            if self.rows.len() > MAX_ROWS {
                return Err(Error::TooManyRows);
            }
            self.spans.push(Span::new(addresses, first_row..self.rows.len()));
        }
        Ok(())
    }

    /// Addresses of code that no entry describes, in these sections.
    fn gaps(&self, sections: &[Section]) -> Gaps {
        let mut described: Vec<_> = self.spans.iter().map(|span| span.addresses.clone()).collect();
        described.sort_unstable_by_key(|addresses| addresses.start);
        let start = self.text.start();
        let described: Vec<_> =
            described.iter().map(|it| start + u64::from(it.start)..start + u64::from(it.end)).collect();
        let mut gaps = Vec::new();
        for Section { addresses: section, .. } in sections {
            let mut at = section.start;
            // Entries may overlap, but an entry before the section ends before it.
            let first = described.partition_point(|it| it.start < section.start).saturating_sub(1);
            for described in described[first..].iter().take_while(|it| it.start < section.end) {
                if described.start > at {
                    gaps.push(at..described.start);
                }
                at = at.max(described.end);
            }
            if at < section.end {
                gaps.push(at..section.end);
            }
        }
        gaps.retain(|gap| gap.end - gap.start >= ALIGNMENT);
        Gaps(gaps)
    }
}
