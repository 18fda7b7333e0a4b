//! All functions of a module, found from those that are known: what they call, and whose address they take.

use std::collections::{BTreeSet, HashSet, VecDeque};

use jjleak_common::unwind::{Row, RowKind};

use super::function::{self, Others};
use super::{Code, Known};

/// Maximum number of instructions followed in a module, twice: half a second, and 24 MiB for their rows. Code beyond has no rows.
const MAX_INSTRUCTIONS: usize = 1 << 20;
/// Maximum number of functions.
pub(super) const MAX_FUNCTIONS: usize = 1 << 17;

/// An instruction with its row.
pub(super) struct Described {
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) row: Row,
}

/// First instructions of functions, and what is known of them.
struct Found {
    starts: BTreeSet<u64>,
    /// Those that were followed.
    followed: Vec<u64>,
    /// Those that return.
    returning: HashSet<u64>,
    /// Those that never return.
    ending: HashSet<u64>,
}

/// Rows of the instructions in the gaps, sorted by address.
pub(super) fn describe(code: &Code<'_>, known: &Known<'_>) -> Vec<Described> {
    let found = Found::new(code, known);
    let others = Others { starts: &found.starts, returning: &found.returning, ending: &found.ending };
    let mut left = MAX_INSTRUCTIONS;
    let certain: HashSet<u64> = known.certain.iter().copied().collect();
    let mut described = Vec::new();
    for start in &found.followed {
        let seen = function::follow(code, *start, &others, &mut left);
        // A relocated word may be a place in a function to jump to.
        let is_certain = certain.contains(start) || !known.doubtful.contains(start);
        let leaving = function::leaving(&seen);
        let reached = if is_certain { function::certain(&seen, *start) } else { HashSet::new() };
        let proven = seen.iter().filter(|(at, _)| leaving.contains(at) || reached.contains(at));
        described.extend(proven.map(|(at, seen)| Described {
            address: *at,
            length: seen.length,
            row: seen.frame.row(0),
        }));
    }
    described.retain(|it| it.row.kind() != RowKind::None as u64);
    described.sort_unstable_by_key(|it| it.address);
    described
}

impl Found {
    fn new(code: &Code<'_>, known: &Known<'_>) -> Self {
        let starts = known.find(code);
        let mut open: VecDeque<u64> = starts.iter().copied().collect();
        let (returning, ending) = (HashSet::new(), HashSet::new());
        let mut found = Self { starts, followed: Vec::new(), returning, ending };
        let (mut left, none) = (MAX_INSTRUCTIONS, HashSet::new());
        while let Some(start) = open.pop_front().filter(|_| left > 0) {
            let others = Others { starts: &found.starts, returning: &none, ending: &none };
            let seen = function::follow(code, start, &others, &mut left);
            found.followed.push(start);
            if function::returns(&seen, start) {
                found.returning.insert(start);
            } else if function::ends(&seen, start) {
                found.ending.insert(start);
            }
            for name in seen.values().filter_map(|seen| seen.names).filter(|name| code.gaps.contains(*name)) {
                if found.starts.len() < MAX_FUNCTIONS && found.starts.insert(name) {
                    open.push_back(name);
                }
            }
        }
        found
    }
}
