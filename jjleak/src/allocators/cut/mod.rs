//! Proves that an allocation function can be followed without a probe at its return.
//!
//! In: the code of a function. Out: instructions inside of it, such that every call that gives a block passes exactly one
//! at which both the block and the size that was asked for are in registers; where the size is lost before the block is
//! known, one at which the call is noted and then one at which it is settled. Where that cannot be proven, none: entry and
//! return are probed then.
//!
//! All ways through the function are followed (`flow`), with what is known of registers and of the function's own stack
//! frame (`state`, `effect`): forwards, where the size is; backwards, where what will be returned is (`returned`). A call that
//! fails need not pass any of the instructions. Nobody may come into the function but by its entry (`sealed`), and there may be
//! no instruction in it but such as are understood to the last bit (`understood`).
//!
//! What is taken for granted: functions that are called keep to the psABI, so that they leave alone callee-saved registers and
//! the caller's frame, as long as its address has not got anywhere; no pointer leads into a frame by chance; and a computed
//! jump of another function leads into that function, to a function's entry, or to where a table says that the file holds.

mod effect;
mod flow;
mod returned;
mod sealed;
mod sites;
mod state;
#[cfg(test)]
mod tests;
mod understood;

use std::collections::HashSet;
use std::ops::Range;

use jjleak_common::cookie::{Inside, ResultIn, Signature};

use flow::Explorer;
pub(super) use flow::NoCut;
use iced_x86::Register;
use sealed::Surroundings;
pub(super) use sites::Step;
use sites::View;

use super::{exits::Follower, placement::ARGUMENTS, site::Stepping, symbols::Image};

/// An instruction to probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) step: Step,
    pub(super) inside: Inside,
    pub(super) cfa_words: u16,
    pub(super) stepping: Stepping,
}

/// Looks for cuts in functions of one file.
pub(super) struct Prover<'a, 'data> {
    follower: &'a Follower<'a, 'data>,
    surroundings: Surroundings<'a, 'data>,
    /// Entries of the allocation functions.
    accounted: &'a HashSet<u64>,
}

impl<'a, 'data> Prover<'a, 'data> {
    pub(super) fn new(
        image: &'a Image<'data>,
        follower: &'a Follower<'a, 'data>,
        accounted: &'a HashSet<u64>,
    ) -> Self {
        Self { follower, surroundings: Surroundings::of(image), accounted }
    }

    /// The instructions of a function to probe in the place of its entry and return. `addresses` are those of all its code.
    pub(super) fn find(&self, addresses: &Range<u64>, signature: Signature) -> Result<Vec<Site>, NoCut> {
        let entry = addresses.start;
        let size = size(signature).ok_or(NoCut::NoSites)?;
        let flow = Explorer::new(self.follower, self.accounted).flow(entry, size)?;
        let sites = sites::choose(&flow)?;
        if !self.surroundings.seal(&flow, addresses) {
            return Err(NoCut::NotSealed);
        }
        let sites =
            sites.into_iter().map(|(address, (step, view))| site(address.wrapping_sub(entry), step, view));
        let mut sites = sites.collect::<Option<Vec<_>>>().ok_or(NoCut::TooLarge)?;
        // Those that settle calls are in place before any call is noted.
        sites.sort_by_key(|site| (site.step != Step::Settle, site.inside.distance));
        Ok(sites)
    }
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

/// The register in which the size comes in; `None` where it is a product, or where the block is not what the function returns,
/// or replaces another one.
fn size(signature: Signature) -> Option<Register> {
    match signature {
        Signature {
            size: Some(size),
            count: None,
            pointer: None,
            extra: None,
            result: ResultIn::Return,
            ..
        } => Some(ARGUMENTS[usize::from(size.index())]),
        _ => None,
    }
}
