//! Finds the exits of a function.
//!
//! In: the code of a file, and the entry of a function in it. Out: every instruction with which a call of the function can
//! return, and the known functions that it calls or jumps to.
//!
//! The search follows all code reachable from the entry: branches, and jumps into code without a name (compilers split functions,
//! and end them with jumps to shared code). Calls are assumed to return, except those of functions that never do. Code after a
//! call that does not return belongs to another function: a probe there causes hits without use, but no exit is missed. The
//! search ends without a result at code that cannot be followed. It does not reach the landing pads of exceptions: a call that
//! ends in one has failed.

use std::collections::{BTreeSet, HashMap, HashSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

use super::symbols::{Callee, Image};

/// Maximum number of instructions followed. `operator new` of the known allocators has about 300 with all code that it shares;
/// ten times that is not an allocation function, or is code mistaken for one.
const MAX_INSTRUCTIONS: usize = 4096;
/// Maximum number of exits of one function: each needs a probe. The known allocators have up to 8.
const MAX_EXITS: usize = 24;

/// Functions that never return.
pub(super) const NO_RETURN: &[&str] = &[
    "abort",
    "_exit",
    "exit",
    "__assert_fail",
    "__chk_fail",
    "__fortify_fail",
    "__libc_fatal",
    "__stack_chk_fail",
    "__cxa_bad_cast",
    "__cxa_call_unexpected",
    "__cxa_rethrow",
    "__cxa_throw",
    "__cxa_throw_bad_array_new_length",
    "_Unwind_Resume",
    "_ZSt9terminatev",
    "_ZSt17__throw_bad_allocv",
    "_ZSt20__throw_system_errori",
    "_ZSt28__throw_bad_array_new_lengthv",
];

/// Exits of a function.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FunctionExits {
    /// Addresses of return instructions.
    pub(super) returns: BTreeSet<u64>,
    /// Addresses of known functions that it jumps to or calls.
    pub(super) known: BTreeSet<u64>,
    /// True if it may end with a tail call into another file.
    pub(super) leaves_file: bool,
}

/// Reason why the exits of a function are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// The function jumps to a computed address.
    #[error("its code jumps to a computed address at {0:#x}")]
    ComputedJump(u64),
    /// The function runs into bytes that are not an instruction, or out of the file's code.
    #[error("its code runs into bytes that are not code at {0:#x}")]
    NoCode(u64),
    /// The function ends with a tail call into another file.
    #[error("it ends with a tail call into another file")]
    LeavesFile,
    /// The function is larger than functions of allocators are.
    #[error("it has too much code")]
    TooLarge,
}

/// Follows the code of one file.
pub(super) struct Follower<'image, 'data> {
    image: &'image Image<'data>,
    linkage: HashMap<u64, Callee>,
    no_return: HashSet<u64>,
}

/// Target of a jump or call.
pub(super) enum Target<'a> {
    Address(u64),
    OtherFile(&'a str),
}

impl<'image, 'data> Follower<'image, 'data> {
    pub(super) fn new(image: &'image Image<'data>) -> Self {
        let no_return = NO_RETURN.iter().flat_map(|name| image.definitions(name));
        let no_return = no_return.map(|symbol| symbol.address()).collect();
        Self { image, linkage: image.linkage(), no_return }
    }

    /// The instruction at an address, and the bytes from there on.
    pub(super) fn instruction(&self, address: u64) -> (Instruction, &'data [u8]) {
        (self.decoder(address).decode(), self.image.code_from(address))
    }

    /// Returns true if the function at an address is known never to return.
    pub(super) fn never_returns(&self, address: u64) -> bool {
        self.no_return.contains(&address)
    }

    /// Returns true if a function of this name never returns.
    pub(super) fn is_no_return(name: &str) -> bool {
        NO_RETURN.contains(&name)
    }

    /// Exits of the function at `entry`. Other `known` functions are not followed.
    pub(super) fn exits(&self, entry: u64, known: &HashSet<u64>) -> Result<FunctionExits, Unproven> {
        let mut exits = FunctionExits::default();
        let mut seen = HashSet::new();
        let mut waiting = vec![entry];
        while let Some(start) = waiting.pop() {
            if start != entry && known.contains(&start) {
                exits.known.insert(start);
                continue;
            }
            self.follow(start, &mut seen, &mut waiting, &mut exits, known)?;
            if seen.len() > MAX_INSTRUCTIONS || exits.returns.len() > MAX_EXITS {
                return Err(Unproven::TooLarge);
            }
        }
        Ok(exits)
    }

    /// Target of a function that consists of a single jump.
    pub(super) fn alias_of(&self, entry: u64) -> Option<u64> {
        let mut decoder = self.decoder(entry);
        let mut first = decoder.decode();
        if first.mnemonic() == Mnemonic::Endbr64 {
            first = decoder.decode();
        }
        if !matches!(first.flow_control(), FlowControl::UnconditionalBranch | FlowControl::IndirectBranch) {
            return None;
        }
        match self.target(&first)? {
            Target::Address(address) => Some(address),
            Target::OtherFile(_) => None,
        }
    }

    /// Follows instructions up to the next jump.
    fn follow(
        &self,
        start: u64,
        seen: &mut HashSet<u64>,
        waiting: &mut Vec<u64>,
        exits: &mut FunctionExits,
        known: &HashSet<u64>,
    ) -> Result<(), Unproven> {
        for instruction in self.decoder(start) {
            let at = instruction.ip();
            if at != start && known.contains(&at) {
                // The code after a call that does not return.
                return Ok(());
            }
            if !seen.insert(at) || seen.len() > MAX_INSTRUCTIONS {
                return Ok(());
            }
            match instruction.flow_control() {
                FlowControl::Next => {}
                FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => {
                    exits.returns.insert(at);
                    return Ok(());
                }
                FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 => return Ok(()),
                FlowControl::Exception if !instruction.is_invalid() => return Ok(()),
                FlowControl::Call | FlowControl::IndirectCall => {
                    if !self.comes_back(&instruction, exits, known) {
                        return Ok(());
                    }
                }
                FlowControl::ConditionalBranch => waiting.push(instruction.near_branch_target()),
                FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => {
                    return self.jump(&instruction, waiting, exits);
                }
                _ => return Err(Unproven::NoCode(at)),
            }
        }
        Err(Unproven::NoCode(start))
    }

    fn jump(
        &self,
        jump: &Instruction,
        waiting: &mut Vec<u64>,
        exits: &mut FunctionExits,
    ) -> Result<(), Unproven> {
        match self.target(jump).ok_or(Unproven::ComputedJump(jump.ip()))? {
            Target::Address(address) if self.no_return.contains(&address) => {}
            Target::Address(address) => waiting.push(address),
            Target::OtherFile(name) if NO_RETURN.contains(&name) => {}
            Target::OtherFile(_) => exits.leaves_file = true,
        }
        Ok(())
    }

    /// Returns true unless the call is known not to return. Adds a call of a known function to `exits`.
    fn comes_back(&self, call: &Instruction, exits: &mut FunctionExits, known: &HashSet<u64>) -> bool {
        match self.target(call) {
            Some(Target::Address(address)) => {
                if known.contains(&address) {
                    exits.known.insert(address);
                }
                !self.no_return.contains(&address)
            }
            Some(Target::OtherFile(name)) => !NO_RETURN.contains(&name),
            None => true,
        }
    }

    /// Target of a jump or call, through a linker stub if there is one; `None` if the target is computed.
    pub(super) fn target(&self, branch: &Instruction) -> Option<Target<'_>> {
        if branch.op0_kind() != OpKind::NearBranch64 {
            return self.linked(branch);
        }
        let address = branch.near_branch_target();
        let mut decoder = self.decoder(address);
        let mut first = decoder.decode();
        if first.mnemonic() == Mnemonic::Endbr64 {
            first = decoder.decode();
        }
        let stub =
            (first.flow_control() == FlowControl::IndirectBranch).then(|| self.linked(&first)).flatten();
        Some(stub.unwrap_or(Target::Address(address)))
    }

    /// Target of a jump or call through a fixed place in memory.
    fn linked(&self, branch: &Instruction) -> Option<Target<'_>> {
        if !branch.is_ip_rel_memory_operand() {
            return None;
        }
        match self.linkage.get(&branch.ip_rel_memory_address())? {
            Callee::Own(address) => Some(Target::Address(*address)),
            Callee::Other(name) => Some(Target::OtherFile(name)),
        }
    }

    fn decoder(&self, address: u64) -> Decoder<'data> {
        Decoder::with_ip(64, self.image.code_from(address), address, DecoderOptions::NONE)
    }
}

#[cfg(test)]
mod tests;
