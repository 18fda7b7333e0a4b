//! `jjleak --estimate`: predicts the cost of exact profiling for a process.

use std::io::{self, Write};
use std::time::Instant;

use serde::Serialize;

use super::Failure;
use super::args::Args;
use super::choice::Choice;
use super::failure::{OTHER, PREFLIGHT};
use super::notices::tell;
use super::watch::{Wanted, Watch};
use crate::attach::{self, Measuring, Programs, Settings};
use crate::cost::{Advice, Estimate};
use crate::processes::{self, Pid, Process, cpu_time};
use crate::render::{Format, TOOL, duration, grouped, share_in_words};

/// Counts calls for a while and reports the predicted cost.
pub(super) fn estimate(args: &Args) -> Result<(), Failure> {
    let [pid] = args.pid[..] else {
        return Err(Failure::usage("--estimate looks at one process: give one -p".to_owned()));
    };
    let pid = Pid::new(pid).ok_or_else(|| Failure::usage("PID 0 is no process".to_owned()))?;
    attach::preflight().map_err(attach::Error::from)?;
    let process = Process::open(pid)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(OTHER, format!("starting the runtime failed: {error}"), "check ulimit -a")
    })?;
    let estimate = runtime.block_on(count(args, pid))?;
    let text = if args.format.contains(&Format::Json) {
        json(&process, &estimate)
    } else {
        words(&process, &estimate)
    };
    // If the reader has gone away, nobody needs the rest.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

async fn count(args: &Args, pid: Pid) -> Result<Estimate, Failure> {
    let settings = Settings::new(Programs::Counting);
    let mut watch = Watch::new(settings, args.coverage()?, Wanted::All, Choice::of(args)?, &[pid])?;
    watch.attach(&[pid])?;
    let unmeasured = || {
        Failure::new(
            PREFLIGHT,
            "this kernel cannot count calls: --estimate needs uprobe-multi links and run time statistics of BPF programs",
            "use Linux 6.6 or newer; or profile the process for a moment: reports say what it costs",
        )
    };
    let _measuring = Measuring::begin().map_err(|_| unmeasured())?;
    let attachment = watch.attachment_mut();
    let calibration = attachment.calibrate().ok_or_else(unmeasured)?;
    let traps = calibration.outcome().ok_or_else(|| {
        let what = "the cost of a breakpoint on this machine cannot be measured: probes on jjleak itself are not hit";
        Failure::new(OTHER, what, "try again; or profile the process for a moment: reports say what it costs")
    })?;
    let (before, begin, cpu_before) = (attachment.runs(), Instant::now(), cpu_time(pid));
    // Printed after the start of counting: a reader may rely on all later calls being counted.
    tell(&format!("counting the calls of process {pid} for {}", duration(args.interval)));
    tokio::select! {
        () = tokio::time::sleep(args.interval) => {}
        // The calls counted so far suffice.
        _ = tokio::signal::ctrl_c() => {}
    }
    let counted = attachment.runs().since(before);
    let (over, cpu) = (begin.elapsed(), cpu_time(pid));
    let cpu = cpu.zip(cpu_before).map(|(now, before)| now.saturating_sub(before));
    if cpu.is_none() {
        return Err(processes::Error::Gone(pid).into());
    }
    Ok(Estimate::of(over, counted, cpu, traps, attachment.steppings()))
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
        Advice::Exact => "profile it exactly: that is cheap",
        Advice::Bounded => {
            "use --max-overhead PERCENT, which keeps the cost below a bound by estimates; sampling (-s) saves little, since \
             the breakpoints remain"
        }
        Advice::Elsewhere => {
            "nearly all of its time would go into breakpoints: use --max-overhead PERCENT, or, if it can be restarted, \
             heaptrack or the profiler of its allocator (docs/overhead.md)"
        }
    };
    format!(
        "{} (pid {}), counted for {}: {allocations} allocations/s, {frees} frees/s\n\
         exact profiling would take about {allocation_ns} ns an allocation and {free_ns} ns a free on this machine: \
         {of_core} of a core\n\
         the process takes {now} of a core without; {of_cpu} of its CPU time would be the probes'\n\
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
