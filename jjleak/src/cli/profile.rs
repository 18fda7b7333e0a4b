//! Profiling, as reports or as a live view.

use super::args::Args;
use super::failure::LOSS;
use super::{Failure, plan, signals};
use crate::processes::Streams;
use crate::reports::Reports;
use crate::session::{self, Observer, Plan, Summary};

/// Profiles the processes that the arguments name, and writes reports.
pub(super) fn profile(args: &Args) -> Result<(), Failure> {
    profile_with(args, Reports::new(args.output_plan()))
}

/// The same with these reports.
pub(super) fn profile_with(args: &Args, mut reports: Reports) -> Result<(), Failure> {
    let plan = plan::plan(args, Streams::Inherited)?;
    run(args, plan, &mut reports)
}

/// Runs a plan until it is over, or until Ctrl-C.
pub(super) fn run<O>(args: &Args, plan: Plan, observer: &mut O) -> Result<(), Failure>
where
    O: Observer,
    Failure: From<O::Error>,
{
    let interrupt = signals::watch()
        .map_err(|source| session::Error::Setup { what: "taking control of signals", source })?;
    let summary = session::run(plan, observer, &interrupt)?;
    if args.strict { check(&summary) } else { Ok(()) }
}

/// Fails if anything was lost, for `--strict`.
fn check(summary: &Summary) -> Result<(), Failure> {
    if summary.losses.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = summary.losses.iter().map(String::as_str).collect();
    let what = format!("the figures are not exact: {}", names.join(", "));
    Err(Failure::new(LOSS, what, "see the report for what each loss means"))
}
