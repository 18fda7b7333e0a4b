//! Proves that an allocation function can be followed without a return probe.
//!
//! In: the code of a function. Out: instructions inside it to probe. Every call that allocates passes exactly one at which both
//! the block and the requested size are in registers; where the size is lost before the block is known, the call passes one that
//! notes it and then one that settles it. Without a proof there are no such instructions, and entry and return are probed.
//!
//! The proof follows all paths through the function (`flow`), with the known content of registers and of the function's own stack
//! frame (`state`, `effect`): forwards for the location of the size, backwards for the location of the return value (`returned`).
//! A call that fails need not pass any of the instructions. Control must enter the function only at its entry (`sealed`), and the
//! semantics of every instruction must be fully known (`understood`).
//!
//! Assumptions: called functions follow the psABI, and therefore preserve callee-saved registers and the caller's frame, as long
//! as the address of the frame has not escaped; no pointer points into a frame by chance; and the target of a computed jump in
//! another function is in that function, at a function's entry, or in a table in the file.

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
use sites::KnownValues;
pub(super) use sites::Step;

use super::{exits::Follower, placement::ARGUMENTS, site::Stepping, symbols::Image};

/// An instruction to probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) step: Step,
    pub(super) inside: Inside,
    pub(super) cfa_words: u16,
    pub(super) stepping: Stepping,
}

/// Searches functions of one file for instructions to probe.
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

    /// The instructions to probe instead of the entry and return of a function. `addresses` covers all its code.
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
        // Attach the sites that settle calls before those that note them.
        sites.sort_by_key(|site| (site.step != Step::Settle, site.inside.distance));
        Ok(sites)
    }
}

/// Values for the probe; `None` if the instruction is too far from the function's first.
fn site(distance: u64, step: Step, view: KnownValues) -> Option<Site> {
    let KnownValues { size, frame_pointer_words, cfa_words, stepping, .. } = view;
    let distance = i32::try_from(distance.cast_signed()).ok()?;
    if distance.abs() > Inside::MAX_DISTANCE {
        return None;
    }
    let unused = 0;
    let inside = Inside { size: size.unwrap_or(unused), frame_pointer_words, distance };
    Some(Site { step, inside, cfa_words, stepping })
}

/// The register that contains the requested size; `None` if the size is a product, or if the block is not the return value or
/// replaces another.
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
