//! Compares the rows of a whole module with gimli's evaluation of its `.eh_frame`.

use std::ops::Range;

use gimli::{
    BaseAddresses, CieOrFde, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian, UnwindContext,
    UnwindSection,
};
use object::{Object, ObjectSection};

use super::oracle::{Frame, Machine, is_plain};
use crate::unwind::{ModuleRows, sections::CallFrames, start};

type Bytes<'data> = EndianSlice<'data, LittleEndian>;

/// The `.eh_frame` of a module.
pub(super) struct Evaluated<'data> {
    eh_frame: EhFrame<Bytes<'data>>,
    bases: BaseAddresses,
    /// Sorted by address.
    entries: Vec<FrameDescriptionEntry<Bytes<'data>>>,
    /// The start-up code, which may have no entry.
    start: Range<u64>,
    /// The code in which fibres begin, which has an entry that does not say so.
    fibres: Vec<Range<u64>>,
}

impl<'data> Evaluated<'data> {
    pub(super) fn new(elf: &'data [u8]) -> Self {
        let file = object::File::parse(elf).unwrap();
        let section = file.section_by_name(".eh_frame").unwrap();
        let eh_frame = EhFrame::new(section.data().unwrap(), LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(section.address());
        let mut entries = Vec::new();
        let mut all = eh_frame.entries(&bases);
        while let Some(entry) = all.next().unwrap() {
            if let CieOrFde::Fde(partial) = entry {
                entries.push(partial.parse(EhFrame::cie_from_offset).unwrap());
            }
        }
        entries.sort_by_key(FrameDescriptionEntry::initial_address);
        let start = file.entry()..file.entry() + start::MAX_BYTES as u64;
        let fibres = CallFrames::locate(elf.into()).unwrap().fibres;
        Self { eh_frame, bases, entries, start, fibres }
    }

    /// Asserts that every row agrees with gimli. Checks the first and last `edge` bytes of each range of code with the same
    /// rules, and of each gap. Returns the number of checked addresses, and of those among them that are unsupported.
    pub(super) fn assert_equal(&self, rows: &ModuleRows, edge: u64) -> (u64, u64) {
        let mut counts = (0, 0);
        let mut covered = rows.text_start();
        for entry in &self.entries {
            assert!(entry.initial_address() >= covered, "entries overlap at {covered:#x}");
            for address in edges(covered, entry.initial_address(), edge) {
                let found = frame(rows, address);
                let is_start = self.start.contains(&address) || self.begins_fibre(address);
                assert!(
                    is_start && found == Frame::Outermost || found == Frame::Unknown,
                    "{found:?} in the gap at {address:#x}"
                );
            }
            covered = entry.end_address();
            let (looked_at, unsupported) = self.assert_entry_equal(entry, rows, edge);
            counts = (counts.0 + looked_at, counts.1 + unsupported);
        }
        for address in edges(covered, covered + 5000, edge) {
            assert_eq!(frame(rows, address), Frame::Unknown, "behind the last entry at {address:#x}");
        }
        counts
    }

    fn begins_fibre(&self, address: u64) -> bool {
        self.fibres.iter().any(|fibre| fibre.contains(&address))
    }

    fn assert_entry_equal(
        &self,
        entry: &FrameDescriptionEntry<Bytes<'data>>,
        rows: &ModuleRows,
        edge: u64,
    ) -> (u64, u64) {
        let (mut looked_at, mut unsupported) = (0, 0);
        let mut context = UnwindContext::new();
        if !self.can_be_evaluated(entry) {
            for address in edges(entry.initial_address(), entry.end_address(), edge) {
                assert_eq!(frame(rows, address), Frame::Unsupported, "malformed at {address:#x}");
            }
            return (entry.len(), entry.len());
        }
        let mut table = entry.rows(&self.eh_frame, &self.bases, &mut context).unwrap();
        while let Ok(Some(rules)) = table.next_row() {
            let end = rules.end_address().min(entry.end_address());
            for address in edges(rules.start_address(), end, edge) {
                let machine = Machine { instruction_pointer: address };
                let expected = match machine.evaluate(&self.eh_frame, entry, rules) {
                    _ if self.begins_fibre(address) => Some(Frame::Outermost),
                    expected => expected,
                };
                looked_at += 1;
                match frame(rows, address) {
                    Frame::Unsupported => {
                        let is_expected = entry.is_signal_trampoline() || !is_plain(rules);
                        assert!(is_expected, "{rules:?} at {address:#x} is unsupported");
                        unsupported += 1;
                    }
                    found => assert_eq!(Some(found), expected, "{rules:?} at {address:#x}"),
                }
            }
        }
        (looked_at, unsupported)
    }

    /// Returns true if gimli can evaluate the rules up to the end of the code that they describe.
    fn can_be_evaluated(&self, entry: &FrameDescriptionEntry<Bytes<'data>>) -> bool {
        let mut context = UnwindContext::new();
        let Ok(mut table) = entry.rows(&self.eh_frame, &self.bases, &mut context) else { return false };
        loop {
            match table.next_row() {
                Ok(Some(rules)) if rules.end_address() < entry.end_address() => {}
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
    }
}

fn frame(rows: &ModuleRows, address: u64) -> Frame {
    Machine { instruction_pointer: address }.apply(rows.find(address))
}

/// The first and last `edge` addresses of a range.
fn edges(start: u64, end: u64, edge: u64) -> impl Iterator<Item = u64> {
    let first = start..end.min(start.saturating_add(edge));
    let last = end.saturating_sub(edge).max(first.end)..end;
    first.chain(last)
}
