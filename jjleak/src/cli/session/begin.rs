//! Start of a run: settings of the kernel side, and processes to profile.

use std::collections::BTreeSet;

use super::{KERNEL_LOG_VERBOSITY, Session};
use crate::attach::{Following, Programs, Settings};
use crate::cli::Failure;
use crate::cli::args::{Args, Subject};
use crate::cli::audience::{self, Audience};
use crate::cli::choice::Choice;
use crate::cli::notices::tell;
use crate::cli::outputs::Outputs;
use crate::cli::progress::Progress;
use crate::cli::trace::Trace;
use crate::cli::watch::{Wanted, Watch};
use crate::processes::{Launch, Pid, Process};

pub(super) fn settings(args: &Args, subject: &Subject) -> Result<Settings, Failure> {
    let mut settings = Settings::new(Programs::Accounting);
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
    Ok(settings)
}

/// Checks that each PID is that of a process.
fn running(pids: &[u32]) -> Result<Vec<Pid>, Failure> {
    let known = |pid: &u32| Pid::new(*pid).ok_or_else(|| Failure::usage("PID 0 is no process".to_owned()));
    let known = pids.iter().map(known).collect::<Result<Vec<_>, _>>()?;
    for pid in &known {
        Process::open(*pid)?;
    }
    Ok(known)
}

impl Session {
    pub(super) fn begin(
        args: &Args,
        subject: Subject,
        settings: Settings,
        choice: Choice,
        shown: &audience::Wanted,
    ) -> Result<Self, Failure> {
        let wanted = match &subject {
            Subject::Named(name) => Wanted::Named(name.clone()),
            _ => Wanted::All,
        };
        let progress = Progress::start("attaching");
        let mut launched = None;
        let (mut watch, outputs) = match subject {
            Subject::Pids(pids) => {
                let pids = running(&pids)?;
                let mut watch = Watch::new(settings, args.coverage()?, wanted, choice, &pids)?;
                if args.max_overhead.is_some() {
                    shown.rest_at_first(&mut watch)?;
                }
                let only = <[Pid; 1]>::try_from(&*pids).ok().map(|[pid]| pid.number().get());
                let outputs = Outputs::open(&shown.asked(args), only)?;
                watch.attach(&pids)?;
                (watch, outputs)
            }
            Subject::Command(words) => {
                let mut watch = Watch::new(settings, args.coverage()?, wanted, choice, &[])?;
                let mut launch = Launch::start(&words, shown.streams())?;
                let outputs = Outputs::open(&shown.asked(args), Some(launch.pid().number().get()))?;
                watch.launch(&mut launch)?;
                launched = Some(launch);
                (watch, outputs)
            }
            Subject::Named(_) | Subject::Everything => {
                let outputs = Outputs::open(&shown.asked(args), None)?;
                let mut watch = Watch::new(settings, args.coverage()?, wanted, choice, &[])?;
                watch.begin_attaching();
                // A view shows the processes attached so far; reports cover all processes from the first on.
                while !shown.is_view() && watch.has_to_attach() {
                    watch.attach_some();
                }
                (watch, outputs)
            }
        };
        if let Some(percent) = args.max_overhead {
            shown.bound(&mut watch, percent / 100.)?;
        }
        // Only after the bound is set: otherwise the command pays for all that it does before.
        if let Some(launch) = launched {
            watch.release(launch)?;
        }
        if args.refresh_perf_map {
            watch.ask_for_perf_maps();
        }
        drop(progress);
        if watch.has_to_attach() {
            tell("attaching to all processes that are wanted; Ctrl-C for the final report");
        } else {
            tell(&format!("attached to {}; Ctrl-C for the final report", watch.describe()));
        }
        Self::with(watch, outputs, Audience::open(shown, args)?)
    }

    fn with(mut watch: Watch, outputs: Outputs, audience: Audience) -> Result<Self, Failure> {
        let hints = watch.attachment_mut().hints()?;
        let trace = Trace::new(watch.attachment_mut().events()?);
        Ok(Self {
            watch,
            outputs,
            audience,
            hints,
            trace,
            baseline: None,
            closed: Vec::new(),
            endings: Vec::new(),
            ended: 0,
            last: Vec::new(),
            losses: BTreeSet::new(),
        })
    }
}
