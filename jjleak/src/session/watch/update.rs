//! Keeps the state of a process up to date with its mappings and its program.

use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use jjleak_common::counter::Counter;
use jjleak_common::process::{MAX_ALLOCATORS, ProcessSlot};

use super::attach::warn_narrow;
use super::process::Watched;
use super::{Scan, Watch, executable};
use crate::attach::{Following, Scope, now_ns};
use crate::error_chain::chain;
use crate::processes::{self, Mapping, Module, Pid, is_alive, living_thread};
use crate::session::Error;

/// Maximum time of searching for allocators without another scan of the mappings. A library is loaded in some
/// milliseconds.
const BETWEEN_SCANS: Duration = Duration::from_millis(3);
/// Minimum time between such scans, as a multiple of the time that the last one took: with thousands of libraries, a scan takes tens of
/// milliseconds.
const LEAST_PAUSE: u32 = 4;

/// Warns once of a process that has more mappings than jjleak reads: its new code stays unknown.
fn report_mappings(watched: &mut Watched, error: &Error) {
    let is_too_long = matches!(error, Error::Process(processes::Error::TooLong { .. }));
    if is_too_long && !mem::replace(&mut watched.warned.of_mappings, true) {
        tracing::warn!("process {}: what it has mapped since is unknown: {}", watched.pid(), chain(error));
    }
}

impl Watch {
    /// Updates a process from its mappings and its current program. Returns true if anything was new.
    pub(super) fn update_one(&mut self, slot: ProcessSlot) -> Result<bool, Error> {
        let Some(mut watched) = self.processes.remove(&slot) else { return Ok(false) };
        let news = self.update_until_stable(&mut watched);
        let (is_wanted, image) = (self.lifecycle.wanted.is_wanted(&watched.process), watched.image);
        self.processes.insert(slot, watched);
        // If the process has run another program meanwhile, it is examined again.
        if !is_wanted && self.attachment.processes_mut().disarm_image(image)? {
            self.let_go(slot)?;
        }
        news
    }

    /// Scans again if the result was outdated meanwhile, a bounded number of times. Code comes before allocators: the
    /// process runs on, and searching for allocators takes longer.
    fn update_until_stable(&mut self, watched: &mut Watched) -> Result<bool, Error> {
        const ATTEMPTS: u32 = 3;
        let mut news = false;
        for _ in 0..ATTEMPTS {
            let is_new = self.update_once(watched)?;
            news |= is_new;
            if !is_new || self.attachment.holds_code(watched.slot())? {
                break;
            }
        }
        self.finish_stacks_of_jvm(watched);
        if news
            && let Some(thread) = living_thread(watched.pid())
            && let Err(error) = self.keep_allocators(watched, thread)
        {
            tracing::warn!(
                "allocators that process {} has loaded since attaching are not counted: {}",
                watched.pid(),
                chain(&error)
            );
        }
        self.finish_stacks_of_jvm(watched);
        if !watched.runs() {
            self.close_image(watched);
        }
        if news && watched.started.is_some() {
            self.expect_code(watched);
        }
        Ok(news)
    }

    fn update_once(&mut self, watched: &mut Watched) -> Result<bool, Error> {
        let Some(tracked) = self.attachment.processes().tracked(watched.slot()) else { return Ok(false) };
        let thread = living_thread(watched.pid());
        // A process that is about to end has no mappings left: keep the known ones.
        let scan = thread.and_then(|thread| match self.scan(watched.slot(), thread) {
            Ok(scan) => Some(scan),
            Err(error) => {
                report_mappings(watched, &error);
                None
            }
        });
        let runs = watched.runs();
        let is_new = tracked.image != watched.image;
        if is_new {
            self.lifecycle.dead.add_image();
            self.close_image(watched);
            self.note_mapped(watched);
            watched.begin_image(&tracked);
            self.attachment.forget_generated(watched.slot());
        }
        if is_new && !self.lifecycle.wanted.is_wanted(&watched.process) {
            return Ok(false);
        }
        if is_new {
            warn_narrow(watched);
        }
        self.learn(watched);
        let (Some(thread), Some(scan), true) = (thread, scan, runs) else { return Ok(is_new) };
        if !self.attachment.processes().images().is_current(watched.image) {
            // The mappings belong to the next image already, or belonged to the last one. A hint for another scan
            // exists.
            return Ok(is_new);
        }
        watched.note_seen();
        if is_new {
            // If another thread called `exec`, the new program's allocations are missed until this is done.
            self.keep_bound(watched);
        }
        let is_same = executable(&scan.mappings).eq(&watched.code);
        let news = if !is_new && is_same && self.attachment.holds_code(watched.slot())? {
            // The code was complete until this scan: stacks taken before it can be finished.
            watched.scanned_ns = scan.at_ns;
            self.keep_generated(watched, thread, &scan)?
        } else {
            self.apply_scan(watched, thread, &scan)?;
            true
        };
        // Binding comes after the scan: it can take a second, for which stacks would have no unwind tables. Probes
        // whose main thread is gone may still fire.
        self.keep_bound(watched);
        Ok(news)
    }

    /// Applies a scan of a process's mappings.
    fn apply_scan(&mut self, watched: &mut Watched, thread: Pid, scan: &Scan) -> Result<(), Error> {
        let mut kept = self.keep_code(watched, thread, scan);
        if !is_alive(watched.pid(), thread)
            && let Some(other) = living_thread(watched.pid())
        {
            // Mapped files are opened through a living thread of the process.
            kept = self.keep_code(watched, other, scan);
        }
        if let Err(error) = kept {
            tracing::warn!(
                "stacks of process {} may end early, because some of its code is not registered: {}",
                watched.pid(),
                chain(&error)
            );
        }
        if let Some(mapping) = scan.mappings.iter().find(|mapping| mapping.is_of_uprobes()) {
            self.attachment.processes().set_trampoline(watched.image, mapping.addresses.start)?;
        }
        Ok(())
    }

    /// Scans the mappings of a process.
    pub(super) fn scan(&self, slot: ProcessSlot, thread: Pid) -> Result<Scan, Error> {
        let (seen, at, at_ns) = (self.attachment.begin_scan(slot)?, Instant::now(), now_ns());
        Ok(Scan { mappings: Mapping::all(thread)?, seen, at, at_ns })
    }

    /// Applies a scan: everything that stacks need.
    pub(super) fn keep_code(&mut self, watched: &mut Watched, thread: Pid, scan: &Scan) -> Result<(), Error> {
        watched.code = executable(&scan.mappings).cloned().collect();
        watched.perf_map.hold(&watched.process, &watched.code);
        self.keep_stacks(watched, thread, scan)
    }

    /// Attaches to the allocators in the mapped files.
    pub(super) fn keep_allocators(&mut self, watched: &mut Watched, thread: Pid) -> Result<(), Error> {
        let scope = match self.lifecycle.following {
            // All probes are bound to one thread, whose end is watched.
            Following::Nobody => {
                let bound_to = watched.bound_to.filter(|bound_to| is_alive(watched.pid(), *bound_to));
                Scope::Process { slot: watched.slot(), thread: bound_to.unwrap_or(thread) }
            }
            Following::Children | Following::Everyone => Scope::File,
        };
        if let Scope::Process { thread, .. } = scope {
            watched.bound_to.get_or_insert(thread);
        }
        let scanned_ns = watched.scanned_ns;
        let modules: Vec<_> = watched.modules.iter().map(|(_, module)| Rc::clone(module)).collect();
        let (mut scanned_at, mut took) = (watched.scanned_at, Duration::ZERO);
        for module in modules {
            let is_new = !self.files.allocators.knows(&module);
            if is_new {
                self.files.allocators.search(&module);
                if self.files.allocators.is_profiled(&module) {
                    self.keep_allocator_text(watched)?;
                }
            }
            self.attach_allocator(watched, &module, scope)?;
            // Attaching can take some time, and a starting program loads one library after another.
            if is_new
                && scanned_at.elapsed() >= BETWEEN_SCANS.max(LEAST_PAUSE * took)
                && let Ok(scan) = self.scan(watched.slot(), thread)
            {
                self.keep_stacks(watched, thread, &scan)?;
                (scanned_at, took) = (Instant::now(), scan.at.elapsed());
            }
        }
        watched.known_ns = scanned_ns;
        self.note_unfollowed(watched);
        Ok(())
    }

    /// Passes the addresses of the allocators' code to the kernel side. This must precede their probes and the code mappings: a
    /// call from known code outside of these addresses is taken for the program's own.
    fn keep_allocator_text(&self, watched: &Watched) -> Result<(), Error> {
        let text_of = |is_wanted: &dyn Fn(&Module) -> bool| -> Vec<_> {
            let modules = watched.modules.iter().filter(|(_, module)| is_wanted(module));
            modules.filter_map(|(id, _)| watched.modules.text(id)).collect()
        };
        let mut text = text_of(&|module| self.files.allocators.is_profiled(module));
        let loader =
            text_of(&|module| is_dynamic_loader(module) && !self.files.allocators.is_profiled(module));
        if text.len() + loader.len() <= MAX_ALLOCATORS {
            text.extend(loader);
        }
        Ok(self.attachment.processes().set_allocator_text(watched.image, &text)?)
    }

    /// Updates everything that stacks need.
    fn keep_stacks(&mut self, watched: &mut Watched, thread: Pid, scan: &Scan) -> Result<(), Error> {
        (watched.scanned_at, watched.scanned_ns) = (scan.at, scan.at_ns);
        watched.modules.refresh(&mut self.files.open, thread, &scan.mappings);
        watched.jvm.notice(&scan.mappings, &watched.modules);
        self.keep_allocator_text(watched)?;
        self.stacks.code.follow(watched, thread, scan, &mut self.attachment)?;
        self.keep_generated(watched, thread, scan)?;
        Ok(())
    }

    /// Binds a process's own probes to another thread if the one that they are bound to is gone: it has ended while
    /// others run on, or another one has called `exec`, which ends all others. If that fails, the next scan tries
    /// again.
    fn keep_bound(&mut self, watched: &mut Watched) {
        let Some(bound_to) = watched.bound_to else { return };
        let counters = self.accounting.collector.counters(watched.slot());
        let replaced = counters.get(&Counter::ProbesUnbound).copied().unwrap_or_default();
        let ended = !is_alive(watched.pid(), bound_to);
        let is_gone = replaced != watched.times_replaced || ended;
        if !is_gone && !watched.is_unbound {
            return;
        }
        // The process may have ended since the scan: then it makes no calls that the probes could miss.
        let Some(thread) = living_thread(watched.pid()) else { return };
        watched.times_replaced = replaced;
        watched.times_unbound += u64::from(ended && !watched.is_unbound);
        self.bind(watched, thread);
    }

    /// Binds a process's own probes to `thread`, or to another one if that has ended meanwhile: a link to a main
    /// thread that has ended puts in no probes, and the kernel reports no error (`uprobe_multi_link_filter` in
    /// `kernel/trace/bpf_trace.c`).
    fn bind(&mut self, watched: &mut Watched, mut thread: Pid) {
        /// Maximum number of threads to try. This many in a row end only where threads end all the time; the next
        /// scan tries again.
        const THREADS: u32 = 3;
        let pid = watched.pid();
        let mut why = String::new();
        for _ in 0..THREADS {
            watched.bound_to = Some(thread);
            let outcome = self.attachment.rebind(watched.slot(), thread);
            let Some(living) = living_thread(pid) else { return };
            why = match outcome {
                Ok(()) if is_alive(pid, thread) => {
                    watched.is_unbound = false;
                    tracing::warn!(
                        "the probed thread of process {pid} has ended: the probes are now bound to thread {thread}"
                    );
                    return;
                }
                Ok(()) => "its threads end too quickly".to_owned(),
                Err(error) => error.to_string(),
            };
            if living == thread {
                break;
            }
            thread = living;
        }
        // Warn once.
        if watched.is_unbound {
            tracing::debug!("process {pid} has no probes: {why}");
        } else {
            tracing::warn!("process {pid} is not counted until its probes can be bound again: {why}");
        }
        watched.is_unbound = true;
    }
}

/// Returns true for glibc's dynamic loader (`ld-linux-x86-64.so.2`, `ld-2.31.so`). It allocates on behalf of an allocator that uses
/// a thread-local variable for the first time, or looks up a symbol.
fn is_dynamic_loader(module: &Module) -> bool {
    let name = module.path.file_name().unwrap_or_default().as_encoded_bytes();
    name.starts_with(b"ld-linux") || name.starts_with(b"ld-2.")
}
