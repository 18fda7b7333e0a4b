//! Arguments as a plan.

use std::ffi::OsString;

use super::args::{Args, Subject};
use super::{Failure, allocator_tables, baseline, sampler};
use crate::attach::{Following, Programs, Settings};
use crate::processes::{Pid, Streams};
use crate::profile::SourceKind;
use crate::render::Format;
use crate::session::{CostBound, Listing, Plan, Schedule, Target};

/// From `-vv` on, the kernel side's messages are shown.
const KERNEL_LOG_VERBOSITY: u8 = 2;

/// The run that the arguments describe. A command gets these standard streams.
pub(super) fn plan(args: &Args, streams: Streams) -> Result<Plan, Failure> {
    let subject = args.subject()?;
    let settings = settings(args, &subject)?;
    let variables = sampler::variables(args, &subject)?;
    let agent = sampler::agent(args)?;
    let allocators = allocator_tables::choice(args)?;
    if args.max_overhead.is_some() && args.pid.len() > 1 {
        let what = "--max-overhead supports one process only: give one -p";
        return Err(Failure::usage(what.to_owned()));
    }
    let bound = |percent: f64| CostBound { share: percent / 100., is_patient: false };
    Ok(Plan {
        target: target(subject, streams, variables)?,
        settings,
        allocators,
        baseline: baseline::baseline(args)?,
        listing: listing(args),
        coverage: args.coverage()?,
        cost_bound: args.max_overhead.map(bound),
        agent,
        asks_for_perf_maps: args.refresh_perf_map,
        schedule: Schedule {
            interval: args.interval,
            reports: args.count,
            has_verdicts: args.wants_verdicts(),
            settle: args.settle,
            only_events: args.trace,
            begins_early: false,
        },
    })
}

/// Only JSON and pprof have stacks without live blocks. A baseline is subtracted stack by stack.
fn listing(args: &Args) -> Listing {
    let formats = &args.outputs.format;
    if formats.contains(&Format::Json) || args.baseline.is_some() {
        Listing::Always
    } else if formats.contains(&Format::Pprof) {
        Listing::AtEnd
    } else {
        Listing::Never
    }
}

fn target(
    subject: Subject,
    streams: Streams,
    variables: Vec<(&'static str, OsString)>,
) -> Result<Target, Failure> {
    let known = |pid: &u32| Pid::new(*pid).ok_or_else(|| Failure::usage("PID 0 is not a process".to_owned()));
    Ok(match subject {
        Subject::Pids(pids) => Target::Pids(pids.iter().map(known).collect::<Result<_, _>>()?),
        Subject::Named(name) => Target::Named(name),
        Subject::Everything => Target::Everything,
        Subject::Command(words) => Target::Command { words, streams, variables },
    })
}

fn settings(args: &Args, subject: &Subject) -> Result<Settings, Failure> {
    let mut settings = Settings::new(match args.source {
        SourceKind::JavaHeap => Programs::JavaHeap,
        SourceKind::Sampled => Programs::Samples,
        _ => Programs::Accounting,
    });
    settings.sizes = args.size_filter()?;
    settings.kernel_log = args.verbose >= KERNEL_LOG_VERBOSITY;
    settings.mappings = args.mmap;
    settings.following = match subject {
        Subject::Named(_) | Subject::Everything => Following::Everyone,
        Subject::Pids(_) | Subject::Command(_) if args.follow => Following::Children,
        Subject::Pids(_) | Subject::Command(_) => Following::Nobody,
    };
    settings.capacity.processes = match subject {
        Subject::Pids(pids) if !args.follow => u32::try_from(pids.len()).unwrap_or(u32::MAX),
        Subject::Command(_) if !args.follow => 1,
        _ => args.max_processes,
    };
    args.apply(&mut settings);
    settings.faults = args.source == SourceKind::Growth;
    if !args.source.is_judged() {
        settings.capacity.blocks = 1;
    }
    Ok(settings)
}
