//! Tables of names in classes and of interned strings (`src/hotspot/share/classfile/{symbolTable,stringTable}.cpp` in the JDK).

use super::{Reader, Reading, Unknown};
use crate::jvm::{Memory, TABLE_VARIABLES, Table};

/// Offsets in JDK 11's table of strings.
const OLD_STRING_BUCKETS: u64 = 8;
const OLD_STRING_ITEMS: u64 = 32;
/// Offsets in JDK 11's table of symbols, from the number of buckets on, and the size of an entry there.
const OLD_ENTRY_SIZE: u64 = 40;
const OLD_ITEMS: u64 = 44;
const OLD_ENTRY_BYTES: u64 = 24;
/// Maximum number of items: `-XX:StringTableSize` ends at 2^24 buckets, and tables grow before chains get long.
const MAX_ITEMS: u64 = 1 << 32;

/// Items of a table, and its buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableSize {
    /// Items; those of a CDS archive are not in it.
    pub items: u64,
    /// Buckets.
    pub buckets: u64,
}

/// Tables of a JVM; part of malloc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    /// Names in classes.
    pub symbols: TableSize,
    /// Interned strings; the strings themselves are in the Java heap.
    pub strings: TableSize,
}

pub(super) fn read<M: Memory>(
    reader: &Reader<'_, M>,
    symbol: &impl Fn(&str) -> Option<u64>,
) -> Reading<Tables> {
    let [old_symbols, old_strings] = TABLE_VARIABLES;
    let current = |table: Table| {
        let at = symbol(table.items()).ok_or(Unknown::Undescribed)?;
        let (items, buckets) = (reader.word(at)?, reader.word(at.wrapping_add(8))?);
        let is_plausible = buckets.is_power_of_two() && items < MAX_ITEMS;
        is_plausible.then_some(TableSize { items, buckets }).ok_or(Unknown::Implausible)
    };
    let old = |name: &str| reader.word(symbol(name).ok_or(Unknown::Undescribed)?);
    let symbols = current(Table::Symbols).or_else(|_| old_symbols_at(reader, old(old_symbols)?))?;
    let strings = current(Table::Strings).or_else(|_| old_strings_at(reader, old(old_strings)?))?;
    Ok(Tables { symbols, strings })
}

fn old_symbols_at<M: Memory>(reader: &Reader<'_, M>, table: u64) -> Reading<TableSize> {
    let half = |at: u64| reader.number(table.wrapping_add(at), 4);
    let (buckets, items) = (half(0)?, half(OLD_ITEMS)?);
    let is_known = half(OLD_ENTRY_SIZE)? == OLD_ENTRY_BYTES && buckets > 0;
    is_known.then_some(TableSize { items, buckets }).ok_or(Unknown::Implausible)
}

fn old_strings_at<M: Memory>(reader: &Reader<'_, M>, table: u64) -> Reading<TableSize> {
    let word = |at: u64| reader.word(table.wrapping_add(at));
    let (buckets, items) = (word(OLD_STRING_BUCKETS)?, word(OLD_STRING_ITEMS)?);
    let is_plausible = buckets.is_power_of_two() && items < MAX_ITEMS;
    is_plausible.then_some(TableSize { items, buckets }).ok_or(Unknown::Implausible)
}
