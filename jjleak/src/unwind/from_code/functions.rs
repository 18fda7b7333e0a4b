//! All functions of a module, found from those that are known: what they call, and whose address they take.

use std::collections::{BTreeSet, HashSet, VecDeque};

use jjleak_common::unwind::{Row, RowKind};

use super::function::{self, Name, Others};
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
#[derive(Default)]
struct Found {
    starts: BTreeSet<u64>,
    /// Those that were followed.
    followed: Vec<u64>,
    /// Those that return.
    returning: HashSet<u64>,
    /// Those that never return.
    ending: HashSet<u64>,
    /// Those whose address is taken by a function that jumps to unknown places in it.
    doubtful: HashSet<u64>,
    /// Those that are called.
    called: HashSet<u64>,
}

/// Rows of the instructions in the gaps, sorted by address.
pub(super) fn describe(code: &Code<'_>, known: &Known<'_>) -> Vec<Described> {
    let found = Found::new(code, known);
    let certain: HashSet<u64> = known.certain.iter().copied().collect();
    let others = Others { starts: &found.starts, returning: &found.returning, ending: &found.ending };
    let mut left = MAX_INSTRUCTIONS;
    let mut described = Vec::new();
    for start in &found.followed {
        let seen = function::follow(code, *start, &others, &mut left);
        // An address that is taken, or relocated, may be that of a place in a function to jump to.
        let is_named = certain.contains(start) || found.called.contains(start);
        let is_doubtful = known.doubtful.contains(start) || found.doubtful.contains(start);
        let returning = function::returning(&seen);
        let reached =
            if is_named || !is_doubtful { function::certain(&seen, *start) } else { HashSet::new() };
        let proven = seen.iter().filter(|(at, _)| returning.contains(at) || reached.contains(at));
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
        let mut found = Self { starts, ..Self::default() };
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
            let has_table = function::has_table(&seen);
            for name in seen.values().filter_map(|seen| seen.names) {
                let address = name.address();
                if !code.gaps.contains(address) {
                    continue;
                }
                match name {
                    Name::Call(_) => found.called.insert(address),
                    Name::Address(_) => has_table && found.doubtful.insert(address),
                };
                if found.starts.len() < MAX_FUNCTIONS && found.starts.insert(address) {
                    open.push_back(address);
                }
            }
        }
        found
    }
}
