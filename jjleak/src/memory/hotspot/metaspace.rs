//! Metaspace (`src/hotspot/share/memory/metaspace` in the JDK), by the library's symbols, otherwise by counters that the JVM updates
//! at collections.

use std::ops::Range;

use super::{Metaspace, Reader, Reading, Space, Unknown};
use crate::jvm::{METASPACE_VARIABLES, Memory};

const WORD: u64 = 8;
/// Offsets in `MetaspaceContext`: its list, and since JDK 25 the number of used words.
const LIST: u64 = 8;
const CONTEXT_USED: u64 = 24;
/// Offsets in `VirtualSpaceList`: its first node, and numbers of reserved and committed words.
const FIRST_NODE: u64 = 16;
const RESERVED: u64 = 40;
const COMMITTED: u64 = 48;
/// Words of a node read.
const NODE_WORDS: usize = 4;
/// Maximum number of nodes, of 64 MiB each.
const MAX_NODES: usize = 4096;

struct List {
    space: Space,
    ranges: Reading<Vec<Range<u64>>>,
}

pub(super) fn read<M: Memory>(
    reader: &Reader<'_, M>,
    symbol: &impl Fn(&str) -> Option<u64>,
    number: &impl Fn(&str) -> Reading<u64>,
) -> Metaspace {
    let [class, other, class_used, other_used, old_used, old_capacity] = METASPACE_VARIABLES;
    let list = |context, used| list(reader, symbol(context).ok_or(Unknown::Undescribed)?, symbol(used));
    let (class, other) = (list(class, class_used), list(other, other_used));
    let counted = |name: &str| {
        let of = |what| number(&format!("sun.gc.{name}.{what}"));
        plausible(of("used")?, of("capacity")?, true)
    };
    // In JDK 11: words of class space, and of the rest.
    let old = |at: u64| {
        let word = |name| reader.word(symbol(name).ok_or(Unknown::Undescribed)?.wrapping_add(at));
        let space = plausible(bytes(word(old_used)?)?, bytes(word(old_capacity)?)?, false)?;
        Ok(Space { committed: Err(Unknown::Undescribed), ..space })
    };
    let current = class.as_ref().map(|list| list.space).map_err(|why| *why);
    let rest = other.as_ref().map(|list| list.space).map_err(|why| *why);
    let class_space = current.or_else(|_| old(0));
    let all = class_space.and_then(|class| together(class, rest.or_else(|_| old(WORD))?));
    let class_range = class.and_then(|list| {
        let ranges = list.ranges?;
        ranges.into_iter().next().ok_or(Unknown::Unreadable)
    });
    Metaspace {
        all: all.or_else(|_| counted("metaspace")),
        class_space: class_space.or_else(|_| counted("compressedclassspace")),
        class_range,
        ranges: other.and_then(|list| list.ranges),
    }
}

fn bytes(words: u64) -> Reading<u64> {
    words.checked_mul(WORD).ok_or(Unknown::Implausible)
}

fn plausible(used: u64, committed: u64, is_of_last_collection: bool) -> Reading<Space> {
    let is_plausible = used <= committed && committed < 1 << 47;
    is_plausible
        .then_some(Space { used, committed: Ok(committed), is_of_last_collection })
        .ok_or(Unknown::Implausible)
}

fn together(one: Space, other: Space) -> Reading<Space> {
    let sum = |one: u64, other: u64| one.checked_add(other).ok_or(Unknown::Implausible);
    let committed = one.committed.and_then(|one| sum(one, other.committed?));
    Ok(Space { used: sum(one.used, other.used)?, committed, is_of_last_collection: false })
}

/// The list of a context, whose address is in the variable at `context`.
fn list<M: Memory>(reader: &Reader<'_, M>, context: u64, used: Option<u64>) -> Reading<List> {
    let context = reader.word(context)?;
    let list = reader.word(context.wrapping_add(LIST))?;
    let word = |at: u64| reader.word(list.wrapping_add(at));
    let used = reader.word(used.unwrap_or_else(|| context.wrapping_add(CONTEXT_USED)))?;
    let (reserved, committed) = (bytes(word(RESERVED)?)?, bytes(word(COMMITTED)?)?);
    if committed > reserved {
        return Err(Unknown::Implausible);
    }
    let space = plausible(bytes(used)?, committed, false)?;
    let ranges = word(FIRST_NODE).and_then(|first| nodes(reader, first, reserved));
    Ok(List { space, ranges })
}

/// Address ranges of all nodes, whose sizes must add up. A node has a pointer to the next one, base and size, with a virtual table
/// before them or not.
fn nodes<M: Memory>(reader: &Reader<'_, M>, first: u64, reserved: u64) -> Reading<Vec<Range<u64>>> {
    let walk = |before: usize| {
        let (mut ranges, mut node, mut sum) = (Vec::new(), first, 0u64);
        while node != 0 && ranges.len() < MAX_NODES {
            let copy = reader.memory.bytes(node, NODE_WORDS * 8).ok_or(Unknown::Unreadable)?;
            let words = copy.as_chunks::<8>().0;
            let word = |at: usize| words.get(before + at).map(|word| u64::from_le_bytes(*word));
            let (next, base, size) = (word(0), word(1), word(2));
            let (Some(next), Some(base), Some(size)) = (next, base, size) else {
                return Err(Unknown::Unreadable);
            };
            let end = base.checked_add(size).ok_or(Unknown::Implausible)?;
            ranges.push(reader.mapped(base..end)?);
            sum = sum.checked_add(size).ok_or(Unknown::Implausible)?;
            node = next;
        }
        (sum == reserved).then_some(ranges).ok_or(Unknown::Implausible)
    };
    walk(0).or_else(|_| walk(1))
}
