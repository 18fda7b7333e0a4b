//! Whether control comes into a function by its entry only.
//!
//! What could lead elsewhere into it: a branch in code outside of the flow, near or short; the address of an instruction in
//! its middle, in memory or computed by code; an entry of a table of relative addresses, as compilers make them for `switch`;
//! an exception that it catches. Where instructions begin is known of functions that the file's call frame information
//! describes; of all other code nearby, every byte is taken for the beginning of one. What cannot be known counts as a way in.

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, OpKind};

use super::{
    effect::is_call,
    flow::{Flow, Node},
};
use crate::allocators::symbols::{Described, Image};

/// How far a short branch reaches, with its own length.
const REACH: u64 = 130;
/// Longest function near by of which instructions are looked at one by one.
const MAX_FUNCTION_BYTES: u64 = 64 << 10;
/// Most entries of one table of addresses: of as many cases are the largest switches.
const MAX_TABLE_ENTRIES: usize = 4096;

/// The file around a function.
pub(super) struct Surroundings<'a, 'data> {
    image: &'a Image<'data>,
    pub(super) described: Vec<Described>,
}

impl<'a, 'data> Surroundings<'a, 'data> {
    pub(super) fn of(image: &'a Image<'data>) -> Self {
        Self { image, described: image.described() }
    }

    /// Whether nothing leads into the function at these addresses but by its entry, and nothing out of it but by returning.
    pub(super) fn seal(&self, flow: &Flow, addresses: &Range<u64>) -> bool {
        let function = Function { flow, addresses };
        function.holds_flow()
            && self.is_one_function(addresses)
            && !self.branches_into(&function)
            && !self.short_branches_into(&function)
            && !self.holds_address_in(&function)
    }

    /// Whether the file's call frame information agrees about where the function begins and ends, and no exception is caught
    /// in it.
    fn is_one_function(&self, addresses: &Range<u64>) -> bool {
        let overlaps =
            |it: &&Described| it.addresses.start < addresses.end && addresses.start < it.addresses.end;
        self.described.iter().filter(overlaps).all(|it| it.addresses == *addresses && !it.catches_exceptions)
    }

    /// Whether anything in the file's code that could be a branch with 32 bits, or compute an address, leads into its middle.
    fn branches_into(&self, function: &Function<'_>) -> bool {
        self.image.code().any(|(address, bytes)| {
            // Few words lead there, so that it is asked last of what they are the operand.
            bytes.windows(4).enumerate().any(|(at, word)| {
                let distance = word.first_chunk().map_or(0, |word| i32::from_le_bytes(*word));
                let begin = address.wrapping_add(at as u64);
                let target = begin.wrapping_add(4).wrapping_add_signed(distance.into());
                function.is_middle(target)
                    && match bytes[..at] {
                        [.., 0xe8 | 0xe9] => function.is_entered_by(begin.wrapping_sub(1), target),
                        // A conditional one, and the beginning of a transaction, which leads there when it fails.
                        [.., 0x0f, 0x80..=0x8f] | [.., 0xc7, 0xf8] => {
                            function.is_entered_by(begin.wrapping_sub(2), target)
                        }
                        [.., LEA, operands] => is_relative(operands),
                        _ => false,
                    }
            })
        })
    }

    /// The same of short branches, in what is near enough.
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
        for neighbour in self.described.iter().filter(is_near) {
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

    /// The instructions of a function, and where each branches to; `None` where some are no instructions.
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

    /// Whether an address in the middle of the function is a word of the file, or in a table.
    fn holds_address_in(&self, function: &Function<'_>) -> bool {
        let is_middle = |address: u64| function.is_middle(address);
        let words = |(address, bytes): (u64, &[u8])| {
            let skipped = usize::try_from(address.wrapping_neg() % 8).unwrap_or_default();
            let words = bytes.get(skipped..).unwrap_or_default().as_chunks().0.iter();
            words.copied().map(u64::from_le_bytes).any(is_middle)
        };
        if self.image.loaded().any(words) {
            return true;
        }
        self.image.code().any(|(address, bytes)| {
            let is_immediate = |window: &[u8]| {
                window.first_chunk().is_some_and(|it| is_middle(u32::from_le_bytes(*it).into()))
            };
            self.image.is_fixed() && bytes.windows(4).any(is_immediate)
                || computed(address, bytes).any(|computed| self.is_table_into(computed, function))
        })
    }

    /// Whether there is a table of addresses relative to its own, of which one is in the function.
    fn is_table_into(&self, table: u64, function: &Function<'_>) -> bool {
        let Some(bytes) = self.image.loaded_from(table) else { return false };
        let targets = bytes.as_chunks().0.iter().map(|entry| {
            let distance = i32::from_le_bytes(*entry);
            table.wrapping_add_signed(distance.into())
        });
        targets
            .take(MAX_TABLE_ENTRIES)
            .take_while(|target| !self.image.code_from(*target).is_empty())
            .any(|target| function.is_middle(target))
    }
}

/// The function, and how it is run.
struct Function<'a> {
    flow: &'a Flow,
    addresses: &'a Range<u64>,
}

impl Function<'_> {
    /// Whether all of the flow is in the function, no instruction overlaps another one, and none calls a part of it.
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

    /// Whether an address is in the function, and not its entry.
    fn is_middle(&self, address: u64) -> bool {
        self.addresses.contains(&address) && address != self.flow.entry
    }

    /// Whether what could be a branch at `position` leads into it from elsewhere. Code of its own that is not a part of the
    /// flow is never run.
    fn is_entered_by(&self, position: u64, target: u64) -> bool {
        !self.addresses.contains(&position) && self.is_middle(target)
    }
}

/// Where a short branch would lead, if these bytes were one.
fn short_target(address: u64, bytes: &[u8]) -> Option<u64> {
    match *bytes {
        [0x70..=0x7f | 0xe0..=0xe3 | 0xeb, distance, ..] => {
            Some(address.wrapping_add(2).wrapping_add_signed(i64::from(distance.cast_signed())))
        }
        _ => None,
    }
}

/// The operation that computes an address.
const LEA: u8 = 0x8d;

/// Whether the byte with the operands says: an address relative to the next instruction, whatever the register.
const fn is_relative(operands: u8) -> bool {
    operands & 0b1100_0111 == 0b0000_0101
}

/// Every address that code could compute from its own.
fn computed(address: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    let leas = bytes.iter().enumerate().filter(|(_, byte)| **byte == LEA);
    leas.filter_map(move |(at, _)| {
        let &[_, operands, a, b, c, d] = bytes[at..].first_chunk()?;
        let next = address.wrapping_add(at as u64).wrapping_add(6);
        is_relative(operands).then(|| next.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into()))
    })
}
