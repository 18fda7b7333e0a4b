//! Metaspace (`src/hotspot/share/memory/metaspace` in the JDK), by the library's symbols, otherwise by counters that the JVM updates
//! at collections.

use std::ops::Range;

use super::{Metaspace, Reader, Reading, Space, Unknown};
use crate::jvm::{METASPACE_VARIABLES, Memory};

const WORD: u64 = 8;
/// Offsets in `MetaspaceContext`: its list, and since JDK 25 the number of used words.
const LIST: u64 = 8;
const CONTEXT_USED: u64 = 24;
/// Offsets in `VirtualSpaceList`: its first node, and the number of reserved words, which the number of committed ones follows.
const LAYOUT: ListLayout = ListLayout { first: 16, reserved: 40 };
/// The same in JDK 11.
const OLD_LAYOUT: ListLayout = ListLayout { first: 0, reserved: 24 };
/// Words of a node read.
const NODE_WORDS: usize = 4;
/// Maximum number of nodes, of 64 MiB each.
const MAX_NODES: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct ListLayout {
    first: u64,
    reserved: u64,
}

struct List {
    space: Space,
    ranges: Reading<Vec<Range<u64>>>,
}

pub(super) fn read<M: Memory>(
    reader: &Reader<'_, M>,
    symbol: &impl Fn(&str) -> Option<u64>,
    number: &impl Fn(&str) -> Reading<u64>,
) -> Metaspace {
    let [class_name, other, class_used, other_used, old_used, old_class, old_other] = METASPACE_VARIABLES;
    let known = |name| symbol(name).ok_or(Unknown::Undescribed);
    let current = |context, used| of_context(reader, known(context)?, symbol(used));
    // JDK 11 has two numbers of used words in an array.
    let old = |at, name| {
        list(reader, reader.word(known(name)?)?, reader.word(known(old_used)?.wrapping_add(at))?, OLD_LAYOUT)
    };
    let class = current(class_name, class_used).or_else(|_| old(0, old_class));
    let other = current(other, other_used).or_else(|_| old(WORD, old_other));
    let counted = |name: &str| {
        let of = |what| number(&format!("sun.gc.{name}.{what}"));
        plausible(of("used")?, of("capacity")?, true)
    };
    let class_space = class.as_ref().map(|list| list.space).map_err(|why| *why);
    let rest = other.as_ref().map(|list| list.space).map_err(|why| *why);
    // Without compressed class pointers there is no class space.
    let is_null = |name| known(name).and_then(|at| reader.word(at)) == Ok(0);
    let all = if is_null(class_name) || is_null(old_class) {
        rest
    } else {
        class_space.and_then(|class| together(class, rest?))
    };
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
    is_plausible.then_some(Space { used, committed, is_of_last_collection }).ok_or(Unknown::Implausible)
}

fn together(one: Space, other: Space) -> Reading<Space> {
    let sum = |one: u64, other: u64| one.checked_add(other).ok_or(Unknown::Implausible);
    let (used, committed) = (sum(one.used, other.used)?, sum(one.committed, other.committed)?);
    Ok(Space { used, committed, is_of_last_collection: false })
}

/// The list of a context, whose address is in the variable at `context`.
fn of_context<M: Memory>(reader: &Reader<'_, M>, context: u64, used: Option<u64>) -> Reading<List> {
    let context = reader.word(context)?;
    let at = reader.word(context.wrapping_add(LIST))?;
    let used = reader.word(used.unwrap_or_else(|| context.wrapping_add(CONTEXT_USED)))?;
    list(reader, at, used, LAYOUT)
}

/// The list at an address, with so many used words.
fn list<M: Memory>(reader: &Reader<'_, M>, list: u64, used: u64, layout: ListLayout) -> Reading<List> {
    let word = |at: u64| reader.word(list.wrapping_add(at));
    let (reserved, committed) = (bytes(word(layout.reserved)?)?, bytes(word(layout.reserved + WORD)?)?);
    if committed > reserved {
        return Err(Unknown::Implausible);
    }
    let space = plausible(bytes(used)?, committed, false)?;
    let ranges = word(layout.first).and_then(|first| nodes(reader, first, reserved));
    Ok(List { space, ranges })
}

/// Address ranges of all nodes, whose sizes must add up. A node has a pointer to the next one, base and size, with a virtual table
/// before them or not; in JDK 11, a word lies between.
fn nodes<M: Memory>(reader: &Reader<'_, M>, first: u64, reserved: u64) -> Reading<Vec<Range<u64>>> {
    let walk = |[next, base, size]: [usize; 3]| {
        let (mut ranges, mut node, mut sum) = (Vec::new(), first, 0u64);
        while node != 0 && ranges.len() < MAX_NODES {
            let copy = reader.memory.bytes(node, NODE_WORDS * 8).ok_or(Unknown::Unreadable)?;
            let words = copy.as_chunks::<8>().0;
            let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
            let (Some(next), Some(base), Some(size)) = (word(next), word(base), word(size)) else {
                return Err(Unknown::Unreadable);
            };
            let end = base.checked_add(size).ok_or(Unknown::Implausible)?;
            ranges.push(reader.mapped(base..end)?);
            sum = sum.checked_add(size).ok_or(Unknown::Implausible)?;
            node = next;
        }
        (sum == reserved).then_some(ranges).ok_or(Unknown::Implausible)
    };
    walk([0, 1, 2]).or_else(|_| walk([1, 2, 3])).or_else(|_| walk([0, 2, 3]))
}
