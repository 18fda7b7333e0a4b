//! One profiling run: from the arguments to the final report.

use std::ffi::OsString;
use std::time::Duration;

use jiff::Timestamp;
use jjleak_common::counter::Counter;
use jjleak_common::process::ImageId;
use tokio::sync::Notify;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::Failure;
use super::args::{Args, Subject};
use super::failure::{LOSS, OTHER};
use super::notices::tell;
use super::outputs::{Outputs, Written};
use super::signals;
use super::target::Allocators;
use crate::attach::{self, Attachment, Capacity, FIRST_IMAGE, Misses, Programs, SizeFilter};
use crate::collect::{self, Collector};
use crate::processes::{
    self, ExitWatch, Launch, Mapping, Pid, Process, Progress, Running, is_alive, living_thread,
};
use crate::profile::{ProcessInfo, ProcessKind, Profile};

/// How often jjleak looks at what the process maps, so that its files stay known when it ends.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// From `-vv` on, the kernel side's messages are shown.
const KERNEL_LOG_VERBOSITY: u8 = 2;
/// Name of the mapping in which the kernel keeps its return-probe trampoline.
const UPROBES: &str = "[uprobes]";

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
    /// The thread that the kernel finds the process by, how often it has ended, and how often another one has taken its
    /// place by `exec`.
    bound_to: Pid,
    times_unbound: u64,
    times_replaced: u64,
    started_at: Timestamp,
    ended: Option<String>,
    last: Option<Profile>,
}

impl Session {
    /// Attaches to a running process.
    fn attach(args: &Args, pid: u32, filter: SizeFilter) -> Result<Self, Failure> {
        let known = Pid::new(pid).ok_or_else(|| Failure::usage("PID 0 is no process".to_owned()))?;
        let process = Process::open(known)?;
        let exit = ExitWatch::new(known)?;
        let thread = living_thread(known).ok_or(processes::Error::Gone(known))?;
        let outputs = Outputs::open(args, pid)?;
        let mut attachment = load(args)?;
        let mut allocators = Allocators::none(known);
        allocators.attach_new(FIRST_IMAGE, thread, &Mapping::all(thread)?, &mut attachment)?;
        allocators.check()?;
        attachment.arm(known, filter)?;
        Self::begin(process, thread, None, attachment, allocators, outputs, exit)
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
            allocators.attach_new(FIRST_IMAGE, pid, &Mapping::all(pid)?, &mut attachment)?;
            if launch.advance()? == Progress::Loaded {
                break;
            }
        }
        allocators.check()?;
        let process = Process::open(pid)?;
        let command = launch.release()?;
        Self::begin(process, pid, Some(command), attachment, allocators, outputs, exit)
    }

    fn begin(
        process: Process,
        thread: Pid,
        command: Option<Running>,
        mut attachment: Attachment,
        allocators: Allocators,
        outputs: Outputs,
        exit: ExitWatch,
    ) -> Result<Self, Failure> {
        tell(&format!(
            "attached to {} (pid {}): {}; Ctrl-C for the final report",
            process.comm,
            process.pid,
            allocators.describe(),
        ));
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
            bound_to: thread,
            times_unbound: 0,
            times_replaced: 0,
            ended: None,
            started_at,
            last,
        })
    }

    /// Reports at every interval until something ends the run.
    async fn run(&mut self, args: &Args, interrupt: &Notify) -> Result<(), Failure> {
        let mut reports = every(args.interval);
        let mut housekeeping = every(HOUSEKEEPING);
        let mut left = args.count.unwrap_or(u64::MAX);
        loop {
            tokio::select! {
                biased;
                () = interrupt.notified() => break,
                () = self.exit.wait() => {
                    self.ended = Some(self.ending());
                    break;
                }
                () = self.misses.wait() => {
                    if self.keep_up()? {
                        self.misses.was_right();
                    } else {
                        self.misses.was_wrong();
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
                    self.outputs.report(&profile);
                    if !self.outputs.is_wanted() {
                        break;
                    }
                }
            }
        }
        let profile = self.take()?;
        self.outputs.report(&profile);
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
                tell(&format!("{} (pid {}) has ended: {ended}", process.comm, process.pid));
            }
            (None, Some(_)) => tell(&format!("{} runs on as process {}", process.comm, process.pid)),
            (None, None) => {}
        }
        let Written { files, failures } = outputs.finish(&profile);
        for path in files {
            tell(&format!("wrote {}", path.display()));
        }
        Failure::all(failures)?;
        if args.strict { check_losses(&profile) } else { Ok(()) }
    }

    /// How the process ended, as far as it can be known.
    fn ending(&mut self) -> String {
        let status = self.command.as_mut().and_then(Running::status);
        status.map_or_else(|| "exit status unknown".to_owned(), |status| status.to_string())
    }

    /// Takes a profile. An `exec` in between would leave stacks of the new program to the names of the old one's files:
    /// then it is taken again.
    fn take(&mut self) -> Result<Profile, Failure> {
        const ATTEMPTS: u32 = 3;
        self.keep_up()?;
        let mut snapshot = self.collector.snapshot(&self.attachment)?;
        for _ in 1..ATTEMPTS {
            if snapshot.image == self.image {
                break;
            }
            self.keep_up()?;
            snapshot = self.collector.snapshot(&self.attachment)?;
        }
        *snapshot.counters.entry(Counter::ProbesUnbound).or_default() += self.times_unbound;
        let Self { allocators, collector, .. } = self;
        let span = (self.started_at, Timestamp::now());
        let mut profile =
            Profile::build(&snapshot, info(&self.process), span, |row| allocators.name_stack(row, collector));
        profile.ended.clone_from(&self.ended);
        Ok(profile)
    }

    /// Keeps in step with what the process maps, and with the programs it runs; whether anything was new.
    fn keep_up(&mut self) -> Result<bool, Failure> {
        // Once it has ended its PID can be another process's.
        if self.ended.is_some() {
            return Ok(false);
        }
        let Some(thread) = living_thread(self.process.pid) else { return Ok(false) };
        let image = self.attachment.image()?;
        // A process that is about to end has no mappings any more: what is known stays.
        let Ok(mappings) = Mapping::all(thread) else { return Ok(false) };
        self.keep_bound(thread)?;
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
        if let Err(failure) = self.allocators.attach_new(image, thread, &mappings, &mut self.attachment) {
            tracing::warn!("what the process has loaded since is not counted: {failure}");
        }
        if let Some(mapping) = mappings.iter().find(|mapping| mapping.path.as_os_str() == UPROBES) {
            self.attachment.set_trampoline(image, mapping.addresses.start)?;
        }
        Ok(true)
    }

    /// Binds the probes to `thread` if the one they are bound to is gone: it has ended while others run on, or another
    /// one has called `exec`, which ends all others.
    fn keep_bound(&mut self, thread: Pid) -> Result<(), Failure> {
        let counters = collect::counters(&self.attachment)?;
        let replaced = counters.get(&Counter::ProbesUnbound).copied().unwrap_or_default();
        let ended = !is_alive(self.process.pid, self.bound_to);
        if replaced == self.times_replaced && !ended {
            return Ok(());
        }
        self.times_replaced = replaced;
        self.times_unbound += u64::from(ended);
        self.bound_to = thread;
        self.attachment.rebind(thread)?;
        let pid = self.process.pid;
        tracing::warn!(
            "the probed thread of process {pid} is gone: the probes are bound to thread {thread} now"
        );
        Ok(())
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
