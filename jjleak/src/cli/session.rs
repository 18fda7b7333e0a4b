//! One profiling run: from the arguments to the final report.

use std::ffi::OsString;
use std::time::Duration;

use jiff::Timestamp;
use jjleak_common::process::ImageId;
use tokio::sync::Notify;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::Failure;
use super::args::{Args, Subject};
use super::failure::{LOSS, OTHER};
use super::outputs::Outputs;
use super::signals;
use super::target::Allocators;
use crate::attach::{self, Attachment, Capacity, FIRST_IMAGE, Misses, Programs, SizeFilter};
use crate::collect::Collector;
use crate::processes::{ExitWatch, Launch, Mapping, Pid, Process, Progress, Running};
use crate::profile::{ProcessInfo, ProcessKind, Profile};

/// How often jjleak looks at what the process maps, so that its files stay known when it ends.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// From `-vv` on, the kernel side's messages are shown.
const KERNEL_LOG_VERBOSITY: u8 = 2;

/// Profiles what the arguments name.
pub(super) fn profile(args: &Args) -> Result<(), Failure> {
    let subject = args.subject()?;
    let filter = args.size_filter()?;
    attach::preflight().map_err(attach::Error::from)?;
    let interrupt = signals::watch().map_err(|error| cannot_start("taking over signals", &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| cannot_start("starting the runtime", &error))?;
    runtime.block_on(async {
        let mut session = match subject {
            Subject::Pid(pid) => Session::attach(args, pid, filter)?,
            Subject::Command(words) => Session::launch(args, &words, filter)?,
        };
        session.run(args, &interrupt).await?;
        session.finish(args)
    })
}

fn cannot_start(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(OTHER, format!("{what} failed: {error}"), "check the limits of this session (ulimit -a)")
}

/// A process being profiled.
struct Session {
    process: Process,
    image: ImageId,
    command: Option<Running>,
    attachment: Attachment,
    collector: Collector,
    allocators: Allocators,
    outputs: Outputs,
    exit: ExitWatch,
    misses: Misses,
    /// What the process mapped for execution when it was last looked at.
    code: Vec<Mapping>,
    started_at: Timestamp,
    last: Option<Profile>,
}

impl Session {
    /// Attaches to a running process.
    fn attach(args: &Args, pid: u32, filter: SizeFilter) -> Result<Self, Failure> {
        let known = Pid::new(pid).ok_or_else(|| Failure::usage("PID 0 is no process".to_owned()))?;
        let process = Process::open(known)?;
        let exit = ExitWatch::new(known)?;
        let outputs = Outputs::open(args, pid)?;
        let mut attachment = load(args)?;
        let mut allocators = Allocators::none(known);
        allocators.attach_new(FIRST_IMAGE, &Mapping::all(known)?, &mut attachment)?;
        allocators.check()?;
        attachment.arm(known, filter)?;
        Self::begin(process, None, attachment, allocators, outputs, exit)
    }

    /// Starts a command and attaches before its allocator runs.
    fn launch(args: &Args, words: &[OsString], filter: SizeFilter) -> Result<Self, Failure> {
        let mut attachment = load(args)?;
        let mut launch = Launch::start(words)?;
        let pid = launch.pid();
        let outputs = Outputs::open(args, pid.number().get())?;
        let exit = ExitWatch::new(pid)?;
        let mut allocators = Allocators::none(pid);
        attachment.arm(pid, filter)?;
        loop {
            allocators.attach_new(FIRST_IMAGE, &Mapping::all(pid)?, &mut attachment)?;
            if launch.advance()? == Progress::Loaded {
                break;
            }
        }
        allocators.check()?;
        let process = Process::open(pid)?;
        let command = launch.release()?;
        Self::begin(process, Some(command), attachment, allocators, outputs, exit)
    }

    fn begin(
        process: Process,
        command: Option<Running>,
        mut attachment: Attachment,
        allocators: Allocators,
        outputs: Outputs,
        exit: ExitWatch,
    ) -> Result<Self, Failure> {
        eprintln!(
            "jjleak: attached to {} (pid {}): {}; Ctrl-C for the final report",
            process.comm,
            process.pid,
            allocators.describe(),
        );
        let collector = Collector::new(&attachment)?;
        let misses = attachment.misses()?;
        let image = attachment.image()?;
        let started_at = Timestamp::now();
        let last = None;
        Ok(Self {
            process,
            image,
            command,
            attachment,
            collector,
            allocators,
            outputs,
            exit,
            misses,
            code: Vec::new(),
            started_at,
            last,
        })
    }

    /// Reports at every interval until something ends the run.
    async fn run(&mut self, args: &Args, interrupt: &Notify) -> Result<(), Failure> {
        let mut reports = every(args.interval);
        let mut housekeeping = every(HOUSEKEEPING);
        let mut left = args.count.unwrap_or(u64::MAX);
        let mut has_ended = false;
        loop {
            tokio::select! {
                biased;
                () = interrupt.notified() => break,
                () = self.exit.wait() => {
                    has_ended = true;
                    break;
                }
                () = self.misses.wait() => {
                    if !self.keep_up()? {
                        self.misses.pause();
                    }
                }
                _ = housekeeping.tick() => {
                    self.keep_up()?;
                }
                _ = reports.tick() => {
                    left -= 1;
                    if left == 0 {
                        break;
                    }
                    let profile = self.take()?;
                    self.outputs.report(&profile)?;
                }
            }
        }
        let mut profile = self.take()?;
        profile.ended = has_ended.then(|| self.ending());
        self.outputs.report(&profile)?;
        self.last = Some(profile);
        Ok(())
    }

    /// Writes the files and says how it ended. The probes, which cost next to nothing from now on, are detached
    /// last: nobody has to wait for the report until the kernel is done with that.
    fn finish(self, args: &Args) -> Result<(), Failure> {
        let Self { process, command, attachment, outputs, last, .. } = self;
        attachment.disarm()?;
        let Some(profile) = last else { return Ok(()) };
        match (&profile.ended, command) {
            (Some(ended), _) => {
                eprintln!("jjleak: {} (pid {}) has ended: {ended}", process.comm, process.pid);
            }
            (None, Some(_)) => eprintln!("jjleak: {} runs on as process {}", process.comm, process.pid),
            (None, None) => {}
        }
        for path in outputs.finish(&profile)? {
            eprintln!("jjleak: wrote {}", path.display());
        }
        if args.strict { check_losses(&profile) } else { Ok(()) }
    }

    /// How the process ended, as far as it can be known.
    fn ending(&mut self) -> String {
        let status = self.command.as_mut().and_then(Running::status);
        status.map_or_else(|| "exit status unknown".to_owned(), |status| status.to_string())
    }

    /// Takes a profile.
    fn take(&mut self) -> Result<Profile, Failure> {
        self.keep_up()?;
        let snapshot = self.collector.snapshot(&self.attachment)?;
        let Self { allocators, collector, .. } = self;
        let span = (self.started_at, Timestamp::now());
        Ok(Profile::build(&snapshot, info(&self.process), span, |row| allocators.name_stack(row, collector)))
    }

    /// Keeps in step with what the process maps, and with the programs it runs; whether anything was new.
    fn keep_up(&mut self) -> Result<bool, Failure> {
        let image = self.attachment.image()?;
        // A process that is about to end has no mappings any more: what is known stays.
        let Ok(mappings) = Mapping::all(self.process.pid) else { return Ok(false) };
        let code = executable(&mappings);
        if image == self.image && code == self.code {
            return Ok(false);
        }
        self.code = code;
        if image != self.image {
            self.image = image;
            self.allocators.forget_modules();
            self.process = Process::open(self.process.pid).unwrap_or_else(|_| self.process.clone());
        }
        if let Err(failure) = self.allocators.attach_new(image, &mappings, &mut self.attachment) {
            tracing::warn!("what the process has loaded since is not counted: {failure}");
        }
        let trampoline = mappings.iter().find(|mapping| mapping.path.as_os_str() == "[uprobes]");
        if let Some(mapping) = trampoline {
            self.attachment.set_trampoline(image, mapping.addresses.start)?;
        }
        Ok(true)
    }
}

fn load(args: &Args) -> Result<Attachment, Failure> {
    let kernel_log = args.verbose >= KERNEL_LOG_VERBOSITY;
    Ok(Attachment::load(Capacity::default(), Programs::Accounting, kernel_log)?)
}

/// For `--strict`.
fn check_losses(profile: &Profile) -> Result<(), Failure> {
    let lost: Vec<_> =
        profile.lost.iter().filter(|(_, count)| **count > 0).map(|(name, _)| name.as_str()).collect();
    if lost.is_empty() {
        return Ok(());
    }
    let what = format!("the figures are not exact: {}", lost.join(", "));
    Err(Failure::new(LOSS, what, "the report says what each loss means"))
}

fn executable(mappings: &[Mapping]) -> Vec<Mapping> {
    mappings.iter().filter(|mapping| mapping.executable).cloned().collect()
}

/// A timer whose first tick comes after one period.
fn every(period: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

fn info(process: &Process) -> ProcessInfo {
    ProcessInfo {
        pid: process.pid.number().get(),
        start_time: process.start_time,
        comm: process.comm.clone(),
        exe: process.exe.to_string_lossy().into_owned(),
        kind: ProcessKind::Native,
    }
}
