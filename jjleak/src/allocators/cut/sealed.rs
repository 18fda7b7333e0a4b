//! Proves that control enters a function only at its entry.
//!
//! Other entry points could be: the target of a near or short branch in code outside the flow; the address of an instruction in
//! its middle, in memory or computed by code; an entry in a table of relative addresses, which compilers generate for `switch`; a
//! landing pad of an exception. Instruction boundaries are known for functions with call frame information; in all other code
//! nearby, every byte is treated as the beginning of an instruction. Anything that cannot be excluded counts as an entry point.
//!
//! The work is linear in the size of the file: beyond any program's number of neighbours, candidates for tables, or entries of
//! tables, nothing is excluded.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, OpKind};

use super::{
    effect::is_call,
    flow::{Flow, Node},
};
use crate::allocators::symbols::{Described, Image};

/// Range of a short branch, including its own length.
const REACH: u64 = 130;
/// Maximum size of a function nearby that is disassembled.
const MAX_FUNCTION_BYTES: u64 = 64 << 10;
/// Maximum number of functions nearby: each has at least one byte, and all but a few have 16.
const MAX_NEIGHBOURS: usize = 256;
/// Maximum number of entries of one table of addresses: the largest switches have as many cases.
const MAX_TABLE_ENTRIES: usize = 4096;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 4;
/// Maximum number of addresses that code may compute; programs of 100 MiB have 500,000.
const MAX_COMPUTED: usize = 1 << 20;
/// Maximum number of entries of all tables. glibc has 13,000: few of the computed addresses are of tables.
const MAX_ENTRIES: usize = 1 << 22;

/// The file around a function.
pub(super) struct Surroundings<'a, 'data> {
    image: &'a Image<'data>,
    /// `None` if unknown.
    pub(super) described: Option<Vec<Described>>,
}

impl<'a, 'data> Surroundings<'a, 'data> {
    pub(super) fn of(image: &'a Image<'data>) -> Self {
        Self { image, described: image.described() }
    }

    /// Returns true if control enters the function at these addresses only at its entry, and leaves it only by returning.
    pub(super) fn seal(&self, flow: &Flow, addresses: &Range<u64>) -> bool {
        let function = Function { flow, addresses };
        function.holds_flow()
            && self.is_one_function(addresses)
            && !self.branches_into(&function)
            && !self.short_branches_into(&function)
            && !self.holds_address_in(&function)
    }

    /// Returns true if the file's call frame information has the same bounds for the function, and the function catches no
    /// exceptions.
    fn is_one_function(&self, addresses: &Range<u64>) -> bool {
        let overlaps =
            |it: &&Described| it.addresses.start < addresses.end && addresses.start < it.addresses.end;
        let is_same = |it: &Described| it.addresses == *addresses && !it.catches_exceptions;
        self.described.as_ref().is_some_and(|all| all.iter().filter(overlaps).all(is_same))
    }

    /// Returns true if any bytes of the file's code that could be a branch with a 32-bit displacement, or compute an address,
    /// have a target in the function's middle.
    fn branches_into(&self, function: &Function<'_>) -> bool {
        let mut is_entered = false;
        let is_read = self.image.visit_code(|address, bytes| {
            // Check the opcode last: few words have such a target.
            is_entered |= bytes.windows(4).enumerate().any(|(at, word)| {
                let distance = word.first_chunk().map_or(0, |word| i32::from_le_bytes(*word));
                let begin = address.wrapping_add(at as u64);
                let target = begin.wrapping_add(4).wrapping_add_signed(distance.into());
                function.is_middle(target)
                    && match bytes[..at] {
                        [.., 0xe8 | 0xe9] => function.is_entered_by(begin.wrapping_sub(1), target),
                        // A conditional branch, or the beginning of a transaction, which branches there on failure.
                        [.., 0x0f, 0x80..=0x8f] | [.., 0xc7, 0xf8] => {
                            function.is_entered_by(begin.wrapping_sub(2), target)
                        }
                        [.., LEA, operands] => is_relative(operands),
                        _ => false,
                    }
            });
        });
        is_entered || !is_read
    }

    /// Returns true if any bytes nearby that could be a short branch have a target in the function's middle.
    fn short_branches_into(&self, function: &Function<'_>) -> bool {
        let own = function.addresses;
        let near = own.start.saturating_sub(REACH)..own.end.saturating_add(REACH);
        let mut known = BTreeMap::from([(own.start, own.end)]);
        let is_near = |it: &&Described| {
            it.addresses != *own
                && it.addresses.start < near.end
                && near.start < it.addresses.end
                && it.addresses.end - it.addresses.start <= MAX_FUNCTION_BYTES
        };
        let neighbours = || self.described.iter().flatten().filter(is_near);
        if neighbours().nth(MAX_NEIGHBOURS).is_some() {
            return true;
        }
        for neighbour in neighbours() {
            let Some(instructions) = self.instructions(&neighbour.addresses) else { continue };
            for (range, target) in instructions {
                if target.is_some_and(|target| function.is_entered_by(range.start, target)) {
                    return true;
                }
                known.insert(range.start, range.end);
            }
        }
        near.filter(|at| {
            !known.range(..=*at).next_back().is_some_and(|(start, end)| (*start..*end).contains(at))
        })
        .any(|at| {
            short_target(at, self.image.code_from(at))
                .is_some_and(|target| function.is_entered_by(at, target))
        })
    }

    /// The instructions of a function, each with its branch target; `None` if some bytes are not an instruction.
    fn instructions(&self, addresses: &Range<u64>) -> Option<Vec<(Range<u64>, Option<u64>)>> {
        let length = usize::try_from(addresses.end - addresses.start).ok()?;
        let code = self.image.code_from(addresses.start).get(..length)?;
        let decoder = Decoder::with_ip(64, code, addresses.start, DecoderOptions::NONE);
        let instructions = decoder.into_iter().map(|it| {
            let target = (it.op0_kind() == OpKind::NearBranch64).then(|| it.near_branch_target());
            (!it.is_invalid()).then_some((it.ip()..it.next_ip(), target))
        });
        instructions.collect()
    }

    /// Returns true if an address in the function's middle is a word of the file, or in a table.
    fn holds_address_in(&self, function: &Function<'_>) -> bool {
        let is_middle = |address: u64| function.is_middle(address);
        let mut is_held = false;
        let is_loaded = self.image.visit_loaded(size_of::<u64>(), |address, bytes| {
            let skipped = usize::try_from(address.wrapping_neg() % 8).unwrap_or_default();
            let words = bytes.get(skipped..).unwrap_or_default().as_chunks().0.iter();
            is_held |= words.copied().map(u64::from_le_bytes).any(is_middle);
        });
        let mut tables = BTreeSet::new();
        let is_read = self.image.visit_code(|address, bytes| {
            let is_immediate = |window: &[u8]| {
                window.first_chunk().is_some_and(|it| is_middle(u32::from_le_bytes(*it).into()))
            };
            is_held |= self.image.is_fixed() && bytes.windows(4).any(is_immediate);
            tables.extend(computed(address, bytes).take(MAX_COMPUTED.saturating_sub(tables.len())));
        });
        is_held
            || !is_loaded
            || !is_read
            || tables.len() >= MAX_COMPUTED
            || self.are_tables_into(&tables, function)
    }

    /// Returns true if one of these tables of offsets relative to its own address has a target in the function's middle.
    fn are_tables_into(&self, tables: &BTreeSet<u64>, function: &Function<'_>) -> bool {
        let mut window = self.image.window();
        let mut room = MAX_ENTRIES;
        tables.iter().any(|table| {
            let Some(range) = self.image.loaded_from(*table) else { return false };
            let most = (MAX_TABLE_ENTRIES * ENTRY_BYTES) as u64;
            let range = range.start..range.end.min(range.start.saturating_add(most));
            let Some(bytes) = window.bytes(range) else { return true };
            let targets = bytes.as_chunks().0.iter().map(|entry| {
                let distance = i32::from_le_bytes(*entry);
                table.wrapping_add_signed(distance.into())
            });
            let mut targets = targets.take_while(|target| self.image.is_code(*target));
            targets.any(|target| {
                room = room.saturating_sub(1);
                room == 0 || function.is_middle(target)
            })
        })
    }
}

/// The function and its control flow.
struct Function<'a> {
    flow: &'a Flow,
    addresses: &'a Range<u64>,
}

impl Function<'_> {
    /// Returns true if the whole flow is in the function, no two instructions overlap, and no instruction calls a part of the
    /// function.
    fn holds_flow(&self) -> bool {
        let nodes = || self.flow.nodes.values();
        let is_in = |node: &Node| {
            self.addresses.contains(&node.instruction.ip())
                && node.instruction.next_ip() <= self.addresses.end
        };
        let ends = nodes().map(|node| node.instruction.next_ip());
        let mut next = nodes().map(|node| node.instruction.ip()).skip(1);
        let is_apart = ends.zip(next.by_ref()).all(|(end, next)| end <= next);
        let is_recursive = |node: &Node| {
            is_call(&node.instruction)
                && node.instruction.op0_kind() == OpKind::NearBranch64
                && self.addresses.contains(&node.instruction.near_branch_target())
        };
        is_apart && nodes().all(is_in) && !nodes().any(is_recursive)
    }

    /// Returns true if an address is in the function, but not its entry.
    fn is_middle(&self, address: u64) -> bool {
        self.addresses.contains(&address) && address != self.flow.entry
    }

    /// Returns true if bytes at `position` that could be a branch lead into the function from outside. Code of the function that
    /// is not part of the flow never runs.
    fn is_entered_by(&self, position: u64, target: u64) -> bool {
        !self.addresses.contains(&position) && self.is_middle(target)
    }
}

/// Target of a short branch, if these bytes are one.
fn short_target(address: u64, bytes: &[u8]) -> Option<u64> {
    match *bytes {
        [0x70..=0x7f | 0xe0..=0xe3 | 0xeb, distance, ..] => {
            Some(address.wrapping_add(2).wrapping_add_signed(i64::from(distance.cast_signed())))
        }
        _ => None,
    }
}

/// Opcode of the instruction that computes an address.
const LEA: u8 = 0x8d;

/// Returns true if the operand byte encodes an address relative to the next instruction, with any register.
const fn is_relative(operands: u8) -> bool {
    operands & 0b1100_0111 == 0b0000_0101
}

/// All addresses that code could compute relative to its own.
fn computed(address: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    let leas = bytes.iter().enumerate().filter(|(_, byte)| **byte == LEA);
    leas.filter_map(move |(at, _)| {
        let &[_, operands, a, b, c, d] = bytes[at..].first_chunk()?;
        let next = address.wrapping_add(at as u64).wrapping_add(6);
        is_relative(operands).then(|| next.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into()))
    })
}
