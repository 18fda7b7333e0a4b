//! `jjleak doctor`.

use std::io::{self, Write};
use std::path::Path;

use super::Failure;
use super::failure::{OTHER, PREFLIGHT};
use crate::doctor::{Examination, Packages, advise, text};
use crate::processes::Pid;

/// Report what a profile of a process on this host will show, and how to make it show more
///
/// Attaches nothing and changes nothing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 the process can be profiled, 1 it cannot, 2 usage, 3 missing privilege or kernel \
    feature, 4 no such process."
)]
pub(super) struct DoctorArgs {
    /// Process to examine; without it, only the host is examined
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
}

/// Examines the process that the arguments name.
pub(super) fn examine(args: &DoctorArgs) -> Result<(), Failure> {
    let examination = Examination::new(args.pid.and_then(Pid::new))?;
    let modules = examination.process.iter().flat_map(|process| &process.modules);
    let packages = Packages::of(Path::new("/"), modules.map(|module| module.path.as_path()));
    let advice = examination.process.as_ref().map(|process| advise(process, &packages)).unwrap_or_default();
    let report = text(&examination, &advice, packages.archive());
    // If the reader has gone away, nobody needs the rest.
    let _ = io::stdout().write_all(report.as_bytes());
    if let Some(missing) = examination.missing() {
        return Err(Failure::new(PREFLIGHT, missing.to_string(), missing.remedy()));
    }
    match &examination.process {
        Some(process) if !process.has_allocator() => {
            let what = format!("process {} maps no allocator that jjleak knows", process.process.pid);
            Err(Failure::new(
                OTHER,
                what,
                "if the executable is static, it needs its symbol table: do not strip it",
            ))
        }
        _ => Ok(()),
    }
}
