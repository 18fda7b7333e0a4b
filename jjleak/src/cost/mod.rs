//! What being profiled costs a process, before and while it pays.
//!
//! In: what a breakpoint takes on this machine and what the kernel has measured of the programs ([`crate::attach`]), how
//! often they were hit, and the CPU time of the process. Out: [`Prices`] of calls, and a [`Cost`] for each profile. All
//! of it are estimates.

mod bound;
mod budget;
mod correction;
mod course;
mod estimate;
mod meter;
mod prices;

pub use crate::profile::Cost;
pub use bound::Bound;
pub use budget::{Budget, Load, Plan, Stretch};
pub use estimate::{Advice, Estimate};
pub use meter::{Meter, Spending};
pub use prices::Prices;

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
const fn float(number: u64) -> f64 {
    number as f64
}
