//! Reads the entries of call frame information: the frame description entries (FDEs) and the common information entries (CIEs)
//! that they share.
//!
//! All data comes from the profiled process's files. Work and memory are linear in their size: a CIE is parsed once, is short,
//! and must be one that the section itself lists; the number of rows is limited.

use std::{collections::HashMap, ops::Range};

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame, EndianSlice, FrameDescriptionEntry,
    LittleEndian, UnwindContext, UnwindOffset, UnwindSection,
};
use jjleak_common::unwind::{Row, RowKind};

use super::{
    Error, MAX_ROWS,
    assemble::push,
    rule::{self, Bytes, Room, Unsupported},
    sections::{ADDRESS_BYTES, Section, Text},
    start,
};

/// Maximum size of a CIE, which is evaluated for each FDE that shares it. Compilers write 24 bytes; with rules for all registers,
/// as for a signal frame, it has about 200.
const MAX_COMMON_BYTES: usize = 256;

/// Maximum number of described functions, 40 bytes each with their rows; Chromium has 800,000.
pub(super) const MAX_FUNCTIONS: usize = 1 << 20;

/// Maximum number of CIEs; `.debug_frame` has one for each compilation unit, some 30,000 in browsers.
const MAX_COMMON: usize = 1 << 17;

type Cie<'data> = CommonInformationEntry<Bytes<'data>>;
type Fde<'data> = FrameDescriptionEntry<Bytes<'data>>;

/// Counts of entries, and of rules that rows cannot express.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Entries that describe code of the module.
    pub entries: u32,
    /// Entries that describe no code of the module: mostly functions that the linker dropped.
    pub outside: u32,
    /// Entries that share addresses with another.
    pub overlapping: u32,
    /// Entries that could not be parsed.
    pub malformed: u32,
    /// Rules that rows cannot express, by [`Unsupported`].
    pub unsupported: [u32; Unsupported::ALL.len()],
}

impl Statistics {
    /// Number of rules that rows cannot express for one reason.
    #[must_use]
    pub fn unsupported(&self, reason: Unsupported) -> u32 {
        self.unsupported[reason as usize]
    }
}

/// The code that an entry describes.
#[derive(Debug, Clone)]
pub(super) struct Span {
    /// Its addresses, relative to the start of the text; never empty.
    pub(super) addresses: Range<u32>,
    /// Its rows in [`Entries::rows`]. The first is at the first address, the last before the end.
    rows: Range<u32>,
}

impl Span {
    pub(super) fn new(addresses: Range<u32>, rows: Range<usize>) -> Self {
        // A hostile module can have millions of entries.
        let [start, end] = [rows.start, rows.end].map(|row| u32::try_from(row).unwrap_or(u32::MAX));
        Self { addresses, rows: start..end }
    }

    /// Its rows in [`Entries::rows`].
    pub(super) const fn rows(&self) -> Range<usize> {
        self.rows.start as usize..self.rows.end as usize
    }
}

/// All entries, in the order of reading.
pub(super) struct Entries<'text> {
    pub(super) text: &'text Text,
    pub(super) spans: Vec<Span>,
    pub(super) rows: Vec<Row>,
    pub(super) statistics: Statistics,
}

/// A section, with the state needed to evaluate its entries.
struct Table<'data, S> {
    section: S,
    bases: BaseAddresses,
    common: HashMap<usize, Cie<'data>>,
    context: UnwindContext<usize, Room>,
}

impl<'text> Entries<'text> {
    pub(super) fn new(text: &'text Text) -> Self {
        Self { text, spans: Vec::new(), rows: Vec::new(), statistics: Statistics::default() }
    }

    /// Adds the entries of `.eh_frame`.
    pub(super) fn read_eh_frame(&mut self, section: &Section<'_>) -> Result<(), Error> {
        let bases = BaseAddresses::default().set_eh_frame(section.address);
        let mut eh_frame = EhFrame::from(EndianSlice::new(&section.bytes, LittleEndian));
        eh_frame.set_address_size(ADDRESS_BYTES);
        self.read(Table::new(eh_frame, bases))
    }

    /// Adds the entries of `.debug_frame`.
    pub(super) fn read_debug_frame(&mut self, section: &Section<'_>) -> Result<(), Error> {
        let mut debug_frame = DebugFrame::from(EndianSlice::new(&section.bytes, LittleEndian));
        debug_frame.set_address_size(ADDRESS_BYTES);
        self.read(Table::new(debug_frame, BaseAddresses::default()))
    }

    /// Adds the code in which fibres begin. Its first byte belongs to what lies before it: nothing that returns.
    pub(super) fn add_fibres(&mut self, fibres: &[Range<u64>]) {
        for fibre in fibres {
            for part in [fibre.start..fibre.start + 1, fibre.start + 1..fibre.end] {
                let Some(addresses) = self.text.relative(part.start, part.end - part.start) else { return };
                self.rows.push(Row::plain(addresses.start, RowKind::End));
                self.spans.push(Span::new(addresses, self.rows.len() - 1..self.rows.len()));
            }
        }
    }

    /// Adds the code at the entry point, up to the next code with an entry. Adds nothing to a module without any entries.
    pub(super) fn add_start(&mut self, code: &Section<'_>) {
        if self.spans.is_empty() {
            return;
        }
        let Some(found) = start::startup(&code.bytes, code.address) else { return };
        let Some(mut addresses) = self.text.relative(found.start, found.end - found.start) else { return };
        for described in self.spans.iter().map(|span| &span.addresses) {
            if described.contains(&addresses.start) {
                return;
            }
            if addresses.contains(&described.start) {
                addresses.end = described.start;
            }
        }
        self.rows.push(Row::plain(addresses.start, RowKind::End));
        self.spans.push(Span::new(addresses, self.rows.len() - 1..self.rows.len()));
    }

    fn read<'data, S: UnwindSection<Bytes<'data>>>(
        &mut self,
        mut table: Table<'data, S>,
    ) -> Result<(), Error> {
        let (section, bases) = (table.section.clone(), table.bases.clone());
        let mut entries = section.entries(&bases);
        loop {
            match entries.next() {
                Ok(Some(CieOrFde::Cie(cie))) => table.add(cie),
                Ok(Some(CieOrFde::Fde(partial))) => {
                    let common = |_: &S, _: &BaseAddresses, offset| table.common(offset);
                    match partial.parse(common) {
                        Ok(fde) => self.add(&mut table, &fde)?,
                        Err(_) => self.statistics.malformed += 1,
                    }
                }
                Ok(None) => return Ok(()),
                // The beginning of the next entry is unknown.
                Err(_) => {
                    self.statistics.malformed += 1;
                    return Ok(());
                }
            }
        }
    }

    fn add<'data, S: UnwindSection<Bytes<'data>>>(
        &mut self,
        table: &mut Table<'data, S>,
        fde: &Fde<'data>,
    ) -> Result<(), Error> {
        let addresses = self.text.relative(fde.initial_address(), fde.len());
        let Some(addresses) = addresses.filter(|addresses| !addresses.is_empty()) else {
            self.statistics.outside += 1;
            return Ok(());
        };
        if self.spans.len() >= MAX_FUNCTIONS {
            return Err(Error::TooManyFunctions);
        }
        let first_row = self.rows.len();
        if self.evaluate(table, fde, addresses.start).is_err() {
            self.rows.truncate(first_row);
            self.rows.push(Row::plain(addresses.start, RowKind::Unsupported));
            self.statistics.unsupported[Unsupported::Malformed as usize] += 1;
        }
        if self.rows.len() > MAX_ROWS {
            return Err(Error::TooManyRows);
        }
        self.statistics.entries += 1;
        self.spans.push(Span::new(addresses, first_row..self.rows.len()));
        Ok(())
    }

    /// Adds the rows of an entry with its code at `begin`.
    fn evaluate<'data, S: UnwindSection<Bytes<'data>>>(
        &mut self,
        table: &mut Table<'data, S>,
        fde: &Fde<'data>,
        begin: u32,
    ) -> gimli::Result<()> {
        let Table { section, bases, context, .. } = table;
        let first_row = self.rows.len();
        let mut table_rows = fde.rows(section, bases, context)?;
        while let Some(table_row) = table_rows.next_row()? {
            let (start, end) = (table_row.start_address(), table_row.end_address());
            let distance = u32::try_from(start - fde.initial_address()).unwrap_or(u32::MAX);
            let address = begin.saturating_add(distance);
            let encoding = fde.cie().encoding();
            let row = if fde.is_signal_trampoline() {
                rule::express_signal_frame(section, encoding, table_row, address)
            } else {
                rule::express(section, encoding, table_row, address)
            };
            let row = row.unwrap_or_else(|reason| {
                self.statistics.unsupported[reason as usize] += 1;
                Row::plain(address, RowKind::Unsupported)
            });
            push(&mut self.rows, first_row, row);
            // Instructions beyond the end of the code have no meaning. The caller refuses a module with too many rows.
            if end >= fde.end_address() || self.rows.len() > MAX_ROWS {
                break;
            }
        }
        Ok(())
    }
}

impl<'data, S: UnwindSection<Bytes<'data>>> Table<'data, S> {
    fn new(section: S, bases: BaseAddresses) -> Self {
        Self { section, bases, common: HashMap::new(), context: UnwindContext::new_in() }
    }

    fn add(&mut self, cie: Cie<'data>) {
        let is_usable = cie.entry_len() <= MAX_COMMON_BYTES && cie.address_size() == ADDRESS_BYTES;
        if is_usable && self.common.len() < MAX_COMMON {
            self.common.insert(cie.offset(), cie);
        }
    }

    fn common(&self, offset: S::Offset) -> gimli::Result<Cie<'data>> {
        let offset = UnwindOffset::into(offset);
        self.common.get(&offset).cloned().ok_or(gimli::Error::NotCieId(offset as u64))
    }
}
