//! Predicts the cost of exact profiling, by counting the calls of a process.

use std::time::{Duration, Instant};

use super::watch::Watch;
use super::{AllocatorChoice, Error, Listing, runtime};
use crate::attach::{self, Measuring, Programs, Settings};
use crate::cost::Estimate;
use crate::processes::{self, Pid, Process, Wanted, cpu_time};
use crate::profile::Coverage;

/// Counts the calls of a process for a while, at most until Ctrl-C. `counting` is called when counting has begun. Blocks.
pub fn estimate(
    pid: Pid,
    allocators: AllocatorChoice,
    duration: Duration,
    counting: impl FnOnce(),
) -> Result<(Process, Estimate), Error> {
    attach::preflight().map_err(attach::Error::from)?;
    let process = Process::open(pid)?;
    let estimate = runtime()?.block_on(count(pid, allocators, duration, counting))?;
    Ok((process, estimate))
}

async fn count(
    pid: Pid,
    allocators: AllocatorChoice,
    duration: Duration,
    counting: impl FnOnce(),
) -> Result<Estimate, Error> {
    let settings = Settings::new(Programs::Counting);
    let mut watch =
        Watch::new(settings, Coverage::default(), Listing::Never, Wanted::All, allocators, &[pid])?;
    watch.attach(&[pid])?;
    let _measuring = Measuring::begin().map_err(|_| Error::CountCalls)?;
    let attachment = watch.attachment_mut();
    let calibration = attachment.calibrate().ok_or(Error::CountCalls)?;
    let traps = calibration.outcome().ok_or(Error::BreakpointCost)?;
    let (before, begin, cpu_before) = (attachment.runs(), Instant::now(), cpu_time(pid));
    // Called after the start of counting: a reader may rely on all later calls being counted.
    counting();
    tokio::select! {
        () = tokio::time::sleep(duration) => {}
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
