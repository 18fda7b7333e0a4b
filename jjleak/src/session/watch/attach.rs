//! Ways in which processes become profiled: by PID, as a command, or because the kernel side started to account for
//! them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jjleak_common::process::{ImageId, ProcessSlot};

use super::Watch;
use super::process::Watched;
use super::search_ahead::FoundAhead;
use crate::attach::{self, Following, Scope, Tracked};
use crate::error_chain::chain;
use crate::processes::{
    self, ExitWatch, Launch, Mapping, ModuleTable, Narrow, Pid, Process, Progress, living_thread,
};
use crate::session::{Error, Probed};

/// Maximum time of attaching before other work gets a turn: reports, and hints of new processes.
const ATTACHING: Duration = Duration::from_millis(500);
/// Image of a process that is not armed.
const NO_IMAGE: ImageId = ImageId(0);

/// Warns if the program is not 64-bit.
pub(super) fn warn_narrow(watched: &Watched) {
    let (pid, comm) = (watched.pid(), &watched.process.comm);
    if let Some(program) = Narrow::of(pid) {
        tracing::warn!("process {pid} ({comm}) runs a {program}: it is not profiled");
    }
}

/// Fails if the program is not 64-bit.
fn refuse_narrow(pid: Pid) -> Result<(), processes::Error> {
    Narrow::of(pid).map_or(Ok(()), |program| Err(processes::Error::Narrow { pid, program }))
}

impl Watch {
    /// Attaches to running processes.
    pub(in crate::session) fn attach(&mut self, pids: &[Pid]) -> Result<(), Error> {
        let ahead = self.files.ahead.finish();
        self.know(ahead);
        let outcome = pids.iter().try_for_each(|pid| self.attach_to(*pid));
        // Results for files that are no longer mapped are not needed.
        self.know(FoundAhead::default());
        outcome
    }

    fn know(&mut self, FoundAhead { allocators, rows, symbols, .. }: FoundAhead) {
        self.files.allocators.know(allocators);
        self.stacks.code.know(rows);
        self.stacks.jvm_libraries.know(symbols);
    }

    fn attach_to(&mut self, pid: Pid) -> Result<(), Error> {
        let process = Process::open(pid)?;
        attach::preflight_process(pid)?;
        refuse_narrow(pid)?;
        self.try_returns(pid)?;
        let exit = ExitWatch::new(pid)?;
        let thread = living_thread(pid).ok_or(processes::Error::Gone(pid))?;
        // If the kernel side has added the process already, `adopt_new` finds it.
        let Some((slot, mut watched)) = self.enter(process, exit)? else { return Ok(()) };
        let outcome = self.attach_running(&mut watched, thread);
        watched.begin_counting();
        self.processes.insert(slot, watched);
        if let Err(error) = outcome {
            self.let_go(slot)?;
            return Err(error);
        }
        Ok(())
    }

    fn attach_running(&mut self, watched: &mut Watched, thread: Pid) -> Result<(), Error> {
        let scan = self.scan(watched.slot(), thread)?;
        self.keep_code(watched, thread, &scan)?;
        self.keep_allocators(watched, thread)?;
        let needs_allocator =
            self.lifecycle.following != Following::Everyone && !self.files.allocators.are_none();
        if needs_allocator && !self.is_counted(watched) {
            return Err(watched.is_not_counted(self.files.allocators.choice()));
        }
        self.attachment.processes().arm(watched.image)?;
        // Afterwards: pages that are touched in between have a fault.
        self.accounting.touched.begin(watched.image, watched.pid());
        Ok(())
    }

    /// Lists all running processes that are wanted, for [`Self::attach_some`].
    pub(in crate::session) fn begin_attaching(&mut self) -> Result<(), Error> {
        self.attach_to_own_allocators();
        let mut running: Vec<_> = self.lifecycle.wanted.running().collect();
        // Those that run for long come first: they take the reserved slots.
        running.sort_by_key(|process| process.start_time);
        self.lifecycle.to_attach = running.into();
        self.share_reserved()
    }

    /// Once all processes have been attached to, the slots that are left are for new ones.
    fn share_reserved(&mut self) -> Result<(), Error> {
        if self.has_to_attach() {
            return Ok(());
        }
        Ok(self.attachment.processes_mut().share_reserved()?)
    }

    /// Returns true if there are processes left to attach to.
    pub(in crate::session) fn has_to_attach(&self) -> bool {
        !self.lifecycle.to_attach.is_empty()
    }

    /// Attaches to some of the listed processes, for at most [`ATTACHING`] before other work. Skips those that have
    /// ended, and warns of those that cannot be attached to.
    pub(in crate::session) fn attach_some(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        while begin.elapsed() < ATTACHING
            && let Some(process) = self.lifecycle.to_attach.pop_front()
        {
            // The PID may have been reused; the kernel side reports the new process.
            if Process::open(process.pid).is_ok_and(|now| now.start_time == process.start_time) {
                self.attach_if_it_runs(process.pid);
            }
        }
        self.share_reserved()
    }

    fn attach_if_it_runs(&mut self, pid: Pid) {
        if let Err(error) = self.attach_to(pid)
            && !error.is_missing_process()
        {
            tracing::warn!("process {pid} is not profiled: {}", chain(&error));
        }
    }

    /// Attaches to the allocators that jjleak itself maps: the host's C library, which the next wanted process will
    /// most likely use.
    fn attach_to_own_allocators(&mut self) {
        let Some(pid) = Pid::new(std::process::id()) else { return };
        let mut modules = ModuleTable::default();
        modules.refresh(&mut self.files.open, pid, &Mapping::all(pid).unwrap_or_default());
        for (_, module) in modules.iter() {
            let attached = self.files.allocators.attach(
                module,
                Scope::File,
                &mut self.stacks.names,
                &mut self.attachment,
            );
            if let Err(error) = attached {
                tracing::warn!("cannot probe {}: {error}", module.path.display());
            }
        }
    }

    /// Attaches to a command before its allocator runs. The command stays stopped once everything is loaded, until
    /// [`Self::release`].
    pub(in crate::session) fn launch(&mut self, launch: &mut Launch) -> Result<(), Error> {
        let pid = launch.pid();
        refuse_narrow(pid)?;
        self.try_returns(pid)?;
        let exit = ExitWatch::new(pid)?;
        let Some((slot, mut watched)) = self.enter(Process::open(pid)?, exit)? else { return Ok(()) };
        self.attachment.processes().arm(watched.image)?;
        loop {
            let scan = self.scan(slot, pid)?;
            self.keep_code(&mut watched, pid, &scan)?;
            self.keep_allocators(&mut watched, pid)?;
            if launch.advance()? == Progress::Loaded {
                break;
            }
        }
        // The java command loads the JVM later.
        let needs_allocator = self.lifecycle.following == Following::Nobody
            && matches!(self.files.allocators.choice().probed, Probed::Allocators | Probed::NamedOnly);
        if needs_allocator && !self.is_counted(&watched) {
            return Err(watched.is_not_counted(self.files.allocators.choice()));
        }
        if self.files.allocators.choice().probed == Probed::Samples && !self.is_counted(&watched) {
            warn_of_no_sampler(&mut watched);
        }
        watched.process = Process::open(pid)?;
        watched.started = watched.program();
        self.lifecycle.started.clone_from(&watched.started);
        let named = self.named_by(launch);
        watched.prepared_as =
            watched.started.iter().chain(named.iter().map(|(program, _)| program)).cloned().collect();
        self.expect_code(&mut watched);
        self.prepare_programs(&watched, &named);
        watched.begin_counting();
        self.processes.insert(slot, watched);
        Ok(())
    }

    /// Lets an attached command run.
    pub(in crate::session) fn release(&mut self, launch: Launch) -> Result<(), Error> {
        let pid = launch.pid();
        let command = launch.release()?;
        if let Some(watched) = self.processes.values_mut().find(|watched| watched.pid() == pid) {
            watched.command = Some(command);
        }
        Ok(())
    }

    /// Tests return probes if the process has a system call filter: some kernels let it kill the process at a return
    /// probe.
    fn try_returns(&mut self, pid: Pid) -> Result<(), Error> {
        if processes::has_call_filter(pid) {
            self.attachment.try_returns()?;
        }
        Ok(())
    }

    /// Reserves a slot for a process.
    fn enter(&mut self, process: Process, exit: ExitWatch) -> Result<Option<(ProcessSlot, Watched)>, Error> {
        let table = self.attachment.processes_mut();
        let Some(slot) = table.reserve()? else {
            return Err(Error::TooManyProcesses(process.pid));
        };
        let Some(image) = table.assign(slot, process.pid)? else {
            table.release(slot)?;
            return Ok(None);
        };
        let mut watched = Watched::new(process, image);
        watched.exit = Some(self.watch_exit(slot, exit));
        Ok(Some((slot, watched)))
    }

    fn watch_exit(&self, slot: ProcessSlot, exit: ExitWatch) -> Arc<ExitWatch> {
        let exit = Arc::new(exit);
        let (sender, watch) = (self.lifecycle.endings.0.clone(), Arc::clone(&exit));
        tokio::spawn(async move {
            watch.wait().await;
            // There is no receiver while jjleak itself ends.
            let _ = sender.send(slot);
        });
        exit
    }

    /// Adds the processes that the kernel side has begun to account for. Returns true if there were any.
    pub(super) fn adopt_new(&mut self) -> Result<bool, Error> {
        if self.lifecycle.following == Following::Nobody {
            return Ok(false);
        }
        let known = |tracked: &Tracked| {
            self.processes.contains_key(&tracked.slot)
                || self.lifecycle.dead.has(tracked.slot)
                || tracked.image == NO_IMAGE
        };
        let new: Vec<_> = self.attachment.processes().iter().filter(|tracked| !known(tracked)).collect();
        for tracked in &new {
            self.adopt(tracked)?;
        }
        Ok(!new.is_empty())
    }

    fn adopt(&mut self, tracked: &Tracked) -> Result<(), Error> {
        let (slot, pid) = (tracked.slot, tracked.pid);
        let exit = ExitWatch::new(pid);
        let process = Process::open(pid);
        // The PID cannot be reused while the process runs.
        let runs = self.attachment.processes().tracked(slot).is_some_and(|tracked| !tracked.ended);
        let (process, exit) = match (process, exit) {
            (Ok(process), Ok(exit)) if runs => (process, Some(exit)),
            _ => (self.unknown(tracked), None),
        };
        if !self.lifecycle.wanted.is_wanted(&process) {
            // Unwanted processes get no preparation: on a busy host that would use up all room and time. If this one
            // has run another program meanwhile, it is new again.
            if self.attachment.processes_mut().disarm_image(tracked.image)? {
                self.lifecycle.dead.add_process(slot);
            }
            return Ok(());
        }
        let mut watched = Watched::new(process, tracked.image);
        warn_narrow(&watched);
        watched.forked_from = tracked.forked_from;
        (watched.image_since_ns, watched.known_ns) = (tracked.since_ns, tracked.since_ns);
        watched.is_armed = true;
        if let Some(parent) = self.parent(tracked) {
            watched.modules = parent.modules.of_child();
            // Pages of a fork are its parent's.
            self.accounting.touched.begin(watched.image, watched.pid());
        }
        match exit {
            Some(exit) => watched.exit = Some(self.watch_exit(slot, exit)),
            None => watched.ended = Some(watched.ending()),
        }
        self.processes.insert(slot, watched);
        self.update_one(slot)?;
        Ok(())
    }

    /// Describes a process that was over before it could be opened. Its program's path is known if it was its
    /// parent's.
    fn unknown(&self, tracked: &Tracked) -> Process {
        let exe = self.parent(tracked).map(|parent| parent.process.exe.clone()).unwrap_or_default();
        Process { pid: tracked.pid, start_time: 0, comm: tracked.name(), exe, container_pid: None }
    }

    /// The process of which this one's memory is a copy.
    fn parent(&self, tracked: &Tracked) -> Option<&Watched> {
        self.processes.values().find(|watched| Some(watched.pid()) == tracked.forked_from)
    }
}

/// A command that is to draw samples has loaded nothing that does. What it runs in its place, or loads later, may.
fn warn_of_no_sampler(watched: &mut Watched) {
    tracing::warn!(
        "{}: nothing is sampled yet: it has loaded no library that draws samples. A program that is linked statically, or that has more \
         privileges than its caller, ignores LD_PRELOAD (to do: omit --sampled)",
        watched.process.comm
    );
    let program = watched.modules.iter().map(|(_, module)| module.version).next();
    if let Some(program) = program {
        watched.unfollowed.add(watched.image, program);
    }
}
