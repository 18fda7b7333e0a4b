//! Control flow of a function: its instructions, the known state before each, and the successors of each.

use std::collections::{BTreeMap, HashMap, HashSet};

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, Register};

use super::{
    effect::{Effect, is_call, number},
    state::{State, Value},
    understood::is_understood,
};
use crate::allocators::{
    exits::{Follower, Target},
    placement::stepping,
    site::Stepping,
};

/// Maximum number of instructions followed in one function: glibc's malloc has 200.
const MAX_INSTRUCTIONS: usize = 2048;
/// Maximum depth of calls followed to find out if they return: `malloc_printerr`, `__libc_message`, `abort`.
const MAX_DEPTH: u32 = 4;

/// Reason why a function cannot be probed inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::allocators) enum NoCut {
    #[error("its code jumps to a computed address, or leaves the file")]
    Leaves,
    #[error("its code runs into bytes that are not an instruction")]
    NoCode,
    #[error("it has too much code")]
    TooLarge,
    #[error("it calls another allocation function, or one that may be one")]
    Allocates,
    #[error("it has an instruction that the analysis does not support")]
    NotUnderstood,
    #[error("its use of the stack is not understood")]
    Frame,
    #[error("other code jumps into it")]
    NotSealed,
    #[error("no set of instructions is executed exactly once by every call")]
    NoSites,
    #[error("it would take as many probe hits as probing entry and return")]
    NoGain,
}

/// The reachable code of a function.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) entry: u64,
    pub(super) nodes: BTreeMap<u64, Node>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) instruction: Instruction,
    /// The kernel's method of stepping over it under a probe.
    pub(super) stepping: Stepping,
    /// State before it that holds on every path.
    pub(super) state: State,
    /// Successors, with the state at each.
    pub(super) next: Vec<(u64, State)>,
}

impl Node {
    pub(super) fn returns(&self) -> bool {
        self.instruction.flow_control() == FlowControl::Return
    }
}

/// Follows functions of a file.
pub(super) struct Explorer<'a, 'image, 'data> {
    follower: &'a Follower<'image, 'data>,
    /// Entries of the allocation functions with probes of their own.
    accounted: &'a HashSet<u64>,
    info: InstructionInfoFactory,
    /// Results for functions called with a first argument: true if they return.
    known: HashMap<(u64, Option<u64>), bool>,
}

/// Reason for following a function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To explore all of it.
    Flow,
    /// To find any path that returns.
    Return,
}

impl<'a, 'image, 'data> Explorer<'a, 'image, 'data> {
    pub(super) fn new(follower: &'a Follower<'image, 'data>, accounted: &'a HashSet<u64>) -> Self {
        Self { follower, accounted, info: InstructionInfoFactory::new(), known: HashMap::new() }
    }

    /// All paths through an allocation function.
    pub(super) fn flow(&mut self, entry: u64, size: Register) -> Result<Flow, NoCut> {
        let nodes = self.explore(entry, &State::entry(Some(size)), Purpose::Flow, 0)?;
        Ok(Flow { entry, nodes })
    }

    fn explore(
        &mut self,
        entry: u64,
        state: &State,
        purpose: Purpose,
        depth: u32,
    ) -> Result<BTreeMap<u64, Node>, NoCut> {
        let mut nodes: BTreeMap<u64, Node> = BTreeMap::new();
        let mut waiting = vec![(entry, state.clone())];
        while let Some((at, state)) = waiting.pop() {
            let (instruction, stepping, state) = if let Some(node) = nodes.get_mut(&at) {
                if !node.state.join(&state) {
                    continue;
                }
                (node.instruction, node.stepping, node.state.clone())
            } else {
                let (instruction, bytes) = self.follower.instruction(at);
                let stepping = stepping(bytes.get(..instruction.len()).unwrap_or_default());
                (instruction, stepping, state)
            };
            let next = self.next(&instruction, &state, purpose, depth)?;
            waiting.extend(next.iter().cloned());
            let node = Node { instruction, stepping, state, next };
            let found = purpose == Purpose::Return && node.returns();
            nodes.insert(at, node);
            if found {
                break;
            }
            if nodes.len() > MAX_INSTRUCTIONS {
                return Err(NoCut::TooLarge);
            }
        }
        Ok(nodes)
    }

    /// Successors of an instruction.
    fn next(
        &mut self,
        instruction: &Instruction,
        state: &State,
        purpose: Purpose,
        depth: u32,
    ) -> Result<Vec<(u64, State)>, NoCut> {
        let after = |info: &mut InstructionInfoFactory| state.after(instruction, info);
        match instruction.flow_control() {
            _ if instruction.is_invalid() => Err(NoCut::NoCode),
            _ if purpose == Purpose::Flow && !is_understood(instruction) => Err(NoCut::NotUnderstood),
            _ if purpose == Purpose::Flow && self.confuses_frame(instruction, state) => Err(NoCut::Frame),
            _ if is_call(instruction) => {
                if !self.comes_back(instruction, state, purpose, depth)? {
                    return Ok(Vec::new());
                }
                Ok(vec![(instruction.next_ip(), after(&mut self.info))])
            }
            FlowControl::Next | FlowControl::Call => Ok(vec![(instruction.next_ip(), after(&mut self.info))]),
            FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => {
                if purpose == Purpose::Flow && state.stack_pointer() != Some(-super::state::WORD) {
                    return Err(NoCut::Frame);
                }
                Ok(Vec::new())
            }
            FlowControl::ConditionalBranch => {
                let ways = [(instruction.near_branch_target(), true), (instruction.next_ip(), false)];
                let ways = ways
                    .into_iter()
                    .filter_map(|(to, taken)| Some((to, state.on_branch(instruction, taken)?)));
                Ok(ways.collect())
            }
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => {
                match self.follower.target(instruction).ok_or(NoCut::Leaves)? {
                    Target::Address(address) if self.follower.never_returns(address) => Ok(Vec::new()),
                    Target::Address(address) if self.accounted.contains(&address) => Err(NoCut::Allocates),
                    Target::Address(address) => Ok(vec![(address, state.clone())]),
                    Target::OtherFile(name) if Follower::is_no_return(name) => Ok(Vec::new()),
                    Target::OtherFile(_) => Err(NoCut::Leaves),
                }
            }
            FlowControl::Exception => Ok(Vec::new()),
            FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 => Ok(Vec::new()),
            _ => Err(NoCut::NoCode),
        }
    }

    /// Returns true if the position of the frame becomes unknown, or the instruction may change the return address.
    fn confuses_frame(&mut self, instruction: &Instruction, state: &State) -> bool {
        state.stack_pointer().is_none() || Effect::of(instruction, state, &mut self.info).leaves_frame()
    }

    /// Returns true unless the call provably never returns.
    fn comes_back(
        &mut self,
        call: &Instruction,
        state: &State,
        purpose: Purpose,
        depth: u32,
    ) -> Result<bool, NoCut> {
        let address = match self.follower.target(call) {
            Some(Target::Address(address)) => address,
            Some(Target::OtherFile(name)) if Follower::is_no_return(name) => return Ok(false),
            // The function may be one with probes of its own.
            Some(Target::OtherFile(_)) | None if purpose == Purpose::Flow => return Err(NoCut::Allocates),
            Some(Target::OtherFile(_)) | None => return Ok(true),
        };
        if purpose == Purpose::Flow && self.accounted.contains(&address) {
            return Err(NoCut::Allocates);
        }
        if self.follower.never_returns(address) {
            return Ok(false);
        }
        if depth >= MAX_DEPTH {
            return Ok(true);
        }
        let first = match state.register(number(Register::RDI)) {
            Value::Constant(first) => Some(first),
            _ => None,
        };
        if let Some(known) = self.known.get(&(address, first)) {
            return Ok(*known);
        }
        // Assume that a recursive function returns.
        self.known.insert((address, first), true);
        let explored = self.explore(address, &State::called_with(first), Purpose::Return, depth + 1);
        let comes_back = explored.map_or(true, |nodes| nodes.values().any(Node::returns));
        self.known.insert((address, first), comes_back);
        Ok(comes_back)
    }
}
