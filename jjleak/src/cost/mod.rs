//! Estimates of the overhead that profiling adds to a process, before and during a run.
//!
//! In: the cost of a breakpoint on this machine and the kernel's statistics of the BPF programs ([`crate::attach`]), hit
//! counts, and the CPU time of the process. Out: [`Prices`] of calls, and a [`Cost`] for each profile. All of them are
//! estimates.

mod bound;
mod budget;
mod correction;
mod estimate;
mod meter;
mod object_bound;
mod prices;
mod schedule;

pub use crate::profile::Cost;
pub use bound::Bound;
pub use budget::{Budget, Load, Plan, Stretch};
pub use estimate::{Advice, Estimate};
pub use meter::{Meter, Spending};
pub use object_bound::{Change, ObjectBound};
pub use prices::Prices;

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
const fn float(number: u64) -> f64 {
    number as f64
}
