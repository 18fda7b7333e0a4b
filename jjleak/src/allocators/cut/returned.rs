//! Where the result of a call is before it returns.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{InstructionInfoFactory, Register};

use super::{
    effect::{Effect, number},
    flow::{Flow, NoCut, Node},
    state::{Place, State, Value},
};

/// What is known of the result before an instruction, whichever way leads on from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Returned {
    /// Nothing: no way returns.
    Never,
    /// It is null.
    Null,
    /// All of these hold it.
    In(BTreeSet<Place>),
}

/// Most rounds for each instruction: knowledge takes as many to come round as loops are within each other.
const ROUNDS: usize = 4;

/// What is known of the result before each instruction.
pub(super) fn returned(
    flow: &Flow,
    info: &mut InstructionInfoFactory,
) -> Result<BTreeMap<u64, Returned>, NoCut> {
    let mut known: BTreeMap<u64, Returned> = flow.nodes.keys().map(|&at| (at, Returned::Never)).collect();
    for _ in 0..ROUNDS * flow.nodes.len() {
        let mut changed = false;
        // Backwards, as knowledge goes.
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

/// What all ways so far agree on, and which places are zero on those that return null.
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
        // Where the result is null, what is zero holds it.
        (Returned::Null, Returned::In(places)) => (Returned::In(both(&all.zeros, places)), zeros),
        (Returned::In(places), Returned::Null) => (Returned::In(both(places, &zeros)), all.zeros),
        (Returned::In(one), Returned::In(other)) => (Returned::In(both(one, other)), zeros),
    };
    Met { returned, zeros }
}

/// Where the result was before the instruction that left it in these places.
fn undone(node: &Node, places: &BTreeSet<Place>, info: &mut InstructionInfoFactory) -> BTreeSet<Place> {
    let effect = Effect::of(&node.instruction, &node.state, info);
    let origins = places.iter().filter_map(|&place| effect.origin(place));
    let kept =
        places.iter().copied().filter(|&place| effect.origin(place).is_none() && !effect.changes(place));
    // What others may write to at any time holds nothing.
    let is_safe = |place: &Place| matches!(place, Place::Register(_)) || !node.state.exposed;
    origins.chain(kept).filter(is_safe).collect()
}
