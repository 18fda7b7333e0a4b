//! Sources of profiles.

use super::Error;
use crate::analyze::Pace;
use crate::profile::Profile;

/// Yields stacks and blocks with their weights, losses and events, as profiles of an instant: one for each process.
///
/// The stages after it treat all sources alike. A new source is a module that implements this, and an arm where a run begins.
pub trait Source {
    /// The profiles of this instant. `pace` says which verdicts have to be up to date.
    fn profiles(&mut self, pace: Pace) -> Result<Vec<Profile>, Error>;
}
