//! Finds the locations of a call's return value before the call returns.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{InstructionInfoFactory, Register};

use super::{
    effect::{Effect, number},
    flow::{Flow, NoCut, Node},
    state::{Place, State, Value},
};

/// Location of the return value before an instruction that holds on every path from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Returned {
    /// No path returns.
    Never,
    /// The value is null.
    Null,
    /// All of these places contain it.
    In(BTreeSet<Place>),
}

/// Maximum number of rounds per instruction: the analysis takes as many rounds to converge as loops are nested.
const ROUNDS: usize = 4;

/// The location of the return value before each instruction.
pub(super) fn returned(
    flow: &Flow,
    info: &mut InstructionInfoFactory,
) -> Result<BTreeMap<u64, Returned>, NoCut> {
    let mut known: BTreeMap<u64, Returned> = flow.nodes.keys().map(|&at| (at, Returned::Never)).collect();
    for _ in 0..ROUNDS * flow.nodes.len() {
        let mut changed = false;
        // Backwards, in the direction of the analysis.
        for (&at, node) in flow.nodes.iter().rev() {
            let before = before(node, &known, info);
            if known[&at] != before {
                known.insert(at, before);
                changed = true;
            }
        }
        if !changed {
            return Ok(known);
        }
    }
    Err(NoCut::TooLarge)
}

fn before(node: &Node, known: &BTreeMap<u64, Returned>, info: &mut InstructionInfoFactory) -> Returned {
    let result = Place::Register(number(Register::RAX));
    if node.returns() {
        let is_null = node.state.get(result) == Value::Constant(0);
        return if is_null { Returned::Null } else { Returned::In(BTreeSet::from([result])) };
    }
    let ways = node.next.iter().map(|(to, state)| (&known[to], state));
    let after = ways.fold(None, |all, (returned, state)| Some(meet(all, returned, state)));
    match after {
        None => Returned::Never,
        Some(Met { returned: Returned::In(places), .. }) => {
            let is_null =
                |place: &Place| node.next.iter().all(|(_, state)| state.get(*place) == Value::Constant(0));
            if places.iter().any(is_null) {
                return Returned::Null;
            }
            Returned::In(undone(node, &places, info))
        }
        Some(Met { returned, .. }) => returned,
    }
}

/// The common result of all paths so far, and the places that are zero on those that return null.
struct Met {
    returned: Returned,
    zeros: BTreeSet<Place>,
}

fn meet(all: Option<Met>, returned: &Returned, state: &State) -> Met {
    let zeros: BTreeSet<_> = state.zeros().collect();
    let Some(all) = all else { return Met { returned: returned.clone(), zeros } };
    let both = |one: &BTreeSet<Place>, other: &BTreeSet<Place>| one.intersection(other).copied().collect();
    let (returned, zeros) = match (&all.returned, returned) {
        (Returned::Never, other) => (other.clone(), zeros),
        (_, Returned::Never) => (all.returned, all.zeros),
        (Returned::Null, Returned::Null) => (Returned::Null, both(&all.zeros, &zeros)),
        // On a path that returns null, every place that is zero contains the result.
        (Returned::Null, Returned::In(places)) => (Returned::In(both(&all.zeros, places)), zeros),
        (Returned::In(places), Returned::Null) => (Returned::In(both(places, &zeros)), all.zeros),
        (Returned::In(one), Returned::In(other)) => (Returned::In(both(one, other)), zeros),
    };
    Met { returned, zeros }
}

/// Location of the result before the instruction that left it in these places.
fn undone(node: &Node, places: &BTreeSet<Place>, info: &mut InstructionInfoFactory) -> BTreeSet<Place> {
    let effect = Effect::of(&node.instruction, &node.state, info);
    let origins = places.iter().filter_map(|&place| effect.origin(place));
    let kept =
        places.iter().copied().filter(|&place| effect.origin(place).is_none() && !effect.changes(place));
    // A place that others may overwrite at any time is not usable.
    let is_safe = |place: &Place| matches!(place, Place::Register(_)) || !node.state.exposed;
    origins.chain(kept).filter(is_safe).collect()
}
