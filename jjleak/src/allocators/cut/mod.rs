//! Proves that an allocation function can be followed without a probe at its return.
//!
//! In: the code of a function. Out: instructions inside of it, such that every call that gives a block passes exactly one
//! at which both the block and the size that was asked for are in registers; where the size is lost before the block is
//! known, one at which the call is noted and then one at which it is settled. Where that cannot be proven, none: entry and
//! return are probed then.
//!
//! All ways through the function are followed (`flow`), with what is known of registers and of the function's own stack
//! frame (`state`, `effect`): forwards, where the size is; backwards, where what will be returned is (`returned`). Functions
//! that are called keep to the psABI: they leave alone callee-saved registers and the caller's frame, as far as nobody has
//! told them its address. A call that fails need not pass any of the instructions.

mod effect;
mod flow;
mod returned;
mod sites;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use jjleak_common::cookie::{Arg, Inside, ResultIn, Signature};

pub(super) use flow::NoCut;
use flow::{Explorer, Flow};
pub(super) use sites::Step;
use sites::View;
use state::Sized;

use super::{exits::Follower, placement, placement::ARGUMENTS, site::Stepping};

/// An instruction to probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) step: Step,
    pub(super) inside: Inside,
    pub(super) cfa_words: u16,
    pub(super) stepping: Stepping,
}

/// The instructions of the function at `entry` to probe in the place of its entry and return. `code` is all code of the
/// file: none of it may jump into the function. `accounted` are the entries of allocation functions.
pub(super) fn find<'data>(
    follower: &Follower<'_, 'data>,
    code: impl IntoIterator<Item = (u64, &'data [u8])>,
    accounted: &HashSet<u64>,
    entry: u64,
    signature: Signature,
) -> Result<Vec<Site>, NoCut> {
    let sized = sized(signature).ok_or(NoCut::NoSites)?;
    let flow = Explorer::new(follower, accounted).flow(entry, sized)?;
    let sites = sites::choose(&flow)?;
    if !is_sealed(code, &flow) {
        return Err(NoCut::NotSealed);
    }
    let sites =
        sites.into_iter().map(|(address, (step, view))| site(address.wrapping_sub(entry), step, view));
    let mut sites = sites.collect::<Option<Vec<_>>>().ok_or(NoCut::TooLarge)?;
    // Those that settle calls are in place before any call is noted.
    sites.sort_by_key(|site| (site.step != Step::Settle, site.inside.distance));
    Ok(sites)
}

/// What a probe has to know; `None` when the instruction is too far from the function's first.
fn site(distance: u64, step: Step, view: View) -> Option<Site> {
    let View { size, frame_pointer_words, cfa_words, stepping, .. } = view;
    let distance = i32::try_from(distance.cast_signed()).ok()?;
    if distance.abs() > Inside::MAX_DISTANCE {
        return None;
    }
    let unused = 0;
    let inside = Inside { size: size.unwrap_or(unused), frame_pointer_words, distance };
    Some(Site { step, inside, cfa_words, stepping })
}

/// How the size comes in; `None` where the block is not what the function returns, or replaces another one.
fn sized(signature: Signature) -> Option<Sized> {
    let register = |arg: Arg| ARGUMENTS[usize::from(arg.index())];
    match signature {
        Signature {
            size: Some(size), count, pointer: None, extra: None, result: ResultIn::Return, ..
        } => {
            let size = register(size);
            Some(count.map_or(Sized::In(size), |count| Sized::Product(register(count), size)))
        }
        _ => None,
    }
}

/// Whether control reaches the function's instructions from its entry only.
fn is_sealed<'data>(code: impl IntoIterator<Item = (u64, &'data [u8])>, flow: &Flow) -> bool {
    let is_inside = |address: &u64| *address != flow.entry && flow.nodes.contains_key(address);
    code.into_iter().all(|(address, bytes)| {
        placement::far_targets(address, bytes)
            .all(|(position, target)| !is_inside(&target) || flow.nodes.contains_key(&position))
    })
}
