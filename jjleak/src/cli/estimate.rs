//! `jjleak --estimate`: predicts the cost of exact profiling for a process.

use std::io::{self, Write};

use serde::Serialize;

use super::Failure;
use super::allocator_tables;
use super::args::Args;
use crate::cost::{Advice, Estimate};
use crate::notices::print;
use crate::processes::{Pid, Process};
use crate::render::{Format, TOOL, duration, grouped, share_in_words};
use crate::session;

/// Counts calls for a while and reports the predicted cost.
pub(super) fn estimate(args: &Args) -> Result<(), Failure> {
    let [pid] = args.pid[..] else {
        return Err(Failure::usage("--estimate supports one process only: give one -p".to_owned()));
    };
    let pid = Pid::new(pid).ok_or_else(|| Failure::usage("PID 0 is not a process".to_owned()))?;
    args.coverage()?;
    let allocators = allocator_tables::choice(args)?;
    let begun = || print(&format!("counting calls of process {pid} for {}", duration(args.interval)));
    let (process, estimate) = session::estimate::estimate(pid, allocators, args.interval, begun)?;
    let text = if args.outputs.format.contains(&Format::Json) {
        json(&process, &estimate)
    } else {
        words(&process, &estimate)
    };
    // If the reader has gone away, nobody needs the rest.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn words(process: &Process, estimate: &Estimate) -> String {
    let (allocations, frees) = estimate.calls_per_second();
    let [allocations, frees] = [allocations, frees].map(|number| grouped(whole(number)));
    let prices = estimate.prices;
    let [allocation_ns, free_ns] =
        [prices.allocation_ns, prices.free_ns].map(|number| grouped(whole(number)));
    let of_core = share_in_words(estimate.of_core());
    let now = estimate.without().map_or_else(|| "unknown".to_owned(), share_in_words);
    let of_cpu = estimate.of_cpu().map_or_else(|| "unknown".to_owned(), share_in_words);
    let advice = match estimate.advice() {
        Advice::Exact => "profile it exactly: the cost is low",
        Advice::Bounded => {
            "use --max-overhead PERCENT, which limits the cost and yields estimates; sampling (-s) saves little, because \
             the breakpoints remain"
        }
        Advice::Elsewhere => {
            "breakpoints would take nearly all of its CPU time: use --max-overhead PERCENT, or, if it can be restarted, \
             heaptrack or the profiler of its allocator (docs/overhead.md)"
        }
    };
    format!(
        "{} (pid {}), counted for {}: {allocations} allocations/s, {frees} frees/s\n\
         exact profiling would cost about {allocation_ns} ns per allocation and {free_ns} ns per free on this machine: \
         {of_core} of a core\n\
         the process uses {now} of a core; profiling would take {of_cpu} of its CPU\n\
         to do: {advice}\n",
        process.comm,
        process.pid,
        duration(estimate.over),
    )
}

#[derive(Serialize)]
struct Document {
    schema: u32,
    tool: &'static str,
    estimate: bool,
    pid: u32,
    over_s: f64,
    allocations_per_s: f64,
    frees_per_s: f64,
    breakpoints_per_s: f64,
    ns_per_allocation: f64,
    ns_per_free: f64,
    of_core: f64,
    cpu_without: Option<f64>,
    of_cpu: Option<f64>,
    advice: &'static str,
}

fn json(process: &Process, estimate: &Estimate) -> String {
    let (allocations_per_s, frees_per_s) = estimate.calls_per_second();
    let document = Document {
        schema: crate::render::json::SCHEMA,
        tool: TOOL,
        estimate: true,
        pid: process.pid.number().get(),
        over_s: estimate.over.as_secs_f64(),
        allocations_per_s,
        frees_per_s,
        breakpoints_per_s: estimate.hits_per_second(),
        ns_per_allocation: estimate.prices.allocation_ns,
        ns_per_free: estimate.prices.free_ns,
        of_core: estimate.of_core(),
        cpu_without: estimate.without(),
        of_cpu: estimate.of_cpu(),
        advice: match estimate.advice() {
            Advice::Exact => "exact",
            Advice::Bounded => "max_overhead",
            Advice::Elsewhere => "other_tool",
        },
    };
    // Serializing numbers and plain strings cannot fail.
    serde_json::to_string(&document).unwrap_or_default() + "\n"
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}
