//! Sorts the rows of a module's entries by address.

use jjleak_common::unwind::{Row, RowKind};

use super::{Error, ModuleRows, entries::Entries};

/// Sorts the entries, selects one where several describe the same address, and marks the gaps.
///
/// An entry is valid up to the beginning of the next. Among entries with the same beginning, the one read first is valid. The C++
/// runtime, which searches the entries' beginnings, selects the same one.
pub(super) fn assemble(entries: Entries<'_>) -> Result<ModuleRows, Error> {
    let Entries { text, mut spans, rows, mut statistics } = entries;
    if spans.is_empty() {
        return Err(Error::NoCallFrames);
    }
    // In the order of reading where addresses are equal, without the memory of a stable sort.
    spans.sort_unstable_by_key(|span| (span.addresses.start, span.rows().start));
    let count = spans.len();
    spans.dedup_by_key(|span| span.addresses.start);
    statistics.overlapping += u32::try_from(count - spans.len()).unwrap_or(u32::MAX);

    let mut assembled = Vec::with_capacity(rows.len() + 1);
    assembled.push(Row::plain(0, RowKind::None));
    for (index, span) in spans.iter().enumerate() {
        let next = spans.get(index + 1).map(|next| next.addresses.start);
        let end = next.map_or(span.addresses.end, |next| span.addresses.end.min(next));
        for row in rows[span.rows()].iter().take_while(|row| row.address() < end) {
            push(&mut assembled, 0, *row);
        }
        if end < span.addresses.end {
            statistics.overlapping += 1;
        }
        if next != Some(end) {
            push(&mut assembled, 0, Row::plain(end, RowKind::None));
        }
    }
    assembled.shrink_to_fit();
    ModuleRows::new(text.start(), assembled, statistics).ok_or(Error::TooManyRows)
}

/// Appends a row to those from `first` on. Its address must not be below that of the last row; a row with the same address is
/// replaced, and a row with the same rule as the one before it is dropped.
pub(super) fn push(rows: &mut Vec<Row>, first: usize, row: Row) {
    let last = |rows: &[Row]| rows[first..].last().copied();
    if last(rows).is_some_and(|last| last.address() == row.address()) {
        rows.pop();
    }
    if last(rows).is_none_or(|last| last.rule() != row.rule()) {
        rows.push(row);
    }
}
