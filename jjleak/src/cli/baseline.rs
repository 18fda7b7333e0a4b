//! Baselines: saved profiles that reports subtract.

use super::Failure;
use super::args::Args;
use super::failure::USAGE;
use crate::analyze::{Baseline, Matching};
use crate::processes::{Pid, Process};
use crate::session::{Error, Naming, SavedFiles};

/// Reads the baseline that reports subtract.
pub(super) fn baseline(args: &Args) -> Result<Option<Baseline>, Failure> {
    let Some(file) = &args.baseline else { return Ok(None) };
    let baseline =
        Baseline::of(&SavedFiles::read(file, &Naming::default()).map_err(Error::from)?, Matching::default());
    for pid in args.pid.iter().filter_map(|pid| Pid::new(*pid)) {
        let process = Process::open(pid)?;
        if baseline.is_of(pid.number().get(), process.start_time) {
            let what = format!(
                "--baseline: {} is a profile of this same process, of which only allocations from now on are counted",
                file.display()
            );
            let remedy = "omit --baseline: the baseline must come from another run of the program";
            return Err(Failure::new(USAGE, what, remedy));
        }
    }
    Ok(Some(baseline))
}
