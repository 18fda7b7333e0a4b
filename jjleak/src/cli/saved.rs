//! Saved profiles.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::Failure;
use super::args::Args;
use super::failure::{OTHER, USAGE, chain};
use super::notices::tell;
use super::progress::Progress;
use crate::analyze::{Baseline, Matching};
use crate::pprof::{self, Reading};
use crate::processes::{Pid, Process};
use crate::profile::Profile;

/// Maximum size of a file; a compressed profile is much smaller than its content.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// File name that means stdin.
const STDIN: &str = "-";

/// Reads a profile, and prints notes on its quality.
pub(super) fn open(path: &Path) -> Result<Profile, Failure> {
    let shown = path.display();
    let progress = Progress::start(&format!("reading {shown}"));
    let bytes = read(path).map_err(|error| {
        Failure::new(OTHER, format!("cannot read {shown}: {error}"), "name a readable file")
    })?;
    let Reading { mut profile, remarks } = pprof::read(&bytes).map_err(|error| {
        let remedy = "name a file that was written with --format pprof, or another tool's pprof heap profile";
        Failure::new(USAGE, format!("{shown}: {}", chain(&error)), remedy)
    })?;
    drop(progress);
    for remark in remarks {
        tell(&format!("{shown}: {remark}"));
    }
    if profile.process.comm.is_empty() {
        let name = path.file_name().unwrap_or_default();
        profile.process.comm = name.to_string_lossy().into_owned();
    }
    Ok(profile)
}

/// Reads the baseline that reports subtract.
pub(super) fn baseline(args: &Args) -> Result<Option<Baseline>, Failure> {
    let Some(file) = &args.baseline else { return Ok(None) };
    let baseline = Baseline::of(&open(file)?, Matching::default());
    for pid in args.pid.iter().filter_map(|pid| Pid::new(*pid)) {
        let process = Process::open(pid)?;
        if baseline.is_of(pid.number().get(), process.start_time) {
            let what = format!(
                "--baseline: {} is of this very process, of which only what comes from now on is accounted for",
                file.display()
            );
            let remedy = "leave --baseline out: it is for another run of the program";
            return Err(Failure::new(USAGE, what, remedy));
        }
    }
    Ok(Some(baseline))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let source: Box<dyn Read> =
        if path == Path::new(STDIN) { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}
