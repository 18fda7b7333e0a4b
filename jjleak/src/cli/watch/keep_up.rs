//! Keeps in step with what a process maps, and with the programs it runs.

use std::rc::Rc;
use std::time::{Duration, Instant};

use jjleak_common::counter::Counter;
use jjleak_common::process::ProcessSlot;

use super::entry::warn_narrow;
use super::process::Watched;
use super::{Look, Watch, executable};
use crate::attach::{Following, Scope, now_ns};
use crate::cli::Failure;
use crate::processes::{Mapping, Pid, is_alive, living_thread};

/// How long allocators are looked for without a look at what is mapped meanwhile. A library is loaded in some milliseconds.
const BETWEEN_LOOKS: Duration = Duration::from_millis(3);

impl Watch {
    /// Keeps in step with what a process maps, and with the programs it runs; whether anything was new.
    pub(super) fn keep_up(&mut self, slot: ProcessSlot) -> Result<bool, Failure> {
        let Some(mut watched) = self.processes.remove(&slot) else { return Ok(false) };
        let news = self.keep_up_with(&mut watched);
        let (is_wanted, image) = (self.wanted.is_wanted(&watched.process), watched.image);
        self.processes.insert(slot, watched);
        // One that has begun another program meanwhile is looked at again.
        if !is_wanted && self.attachment.processes_mut().disarm_image(image)? {
            self.let_go(slot)?;
        }
        news
    }

    /// Looks again if what was seen has been replaced meanwhile, but not without end. Stacks come first, for the process runs
    /// on, and looking for allocators takes longer.
    fn keep_up_with(&mut self, watched: &mut Watched) -> Result<bool, Failure> {
        const LOOKS: u32 = 3;
        let mut news = false;
        for _ in 0..LOOKS {
            let is_new = self.keep_up_once(watched)?;
            news |= is_new;
            if !is_new || self.attachment.holds_code(watched.slot())? {
                break;
            }
        }
        if news
            && let Some(thread) = living_thread(watched.pid())
            && let Err(failure) = self.keep_allocators(watched, thread)
        {
            tracing::warn!("what process {} has loaded since is not counted: {failure}", watched.pid());
        }
        if !watched.runs() {
            self.close_image(watched);
        }
        if news && watched.started.is_some() {
            self.expect_code(watched);
        }
        Ok(news)
    }

    fn keep_up_once(&mut self, watched: &mut Watched) -> Result<bool, Failure> {
        let Some(tracked) = self.attachment.processes().tracked(watched.slot()) else { return Ok(false) };
        let thread = living_thread(watched.pid());
        // A process that is about to end has no mappings any more: what is known stays.
        let look = thread.and_then(|thread| self.look(watched.slot(), thread).ok());
        let runs = watched.runs();
        let is_new = tracked.image != watched.image;
        if is_new {
            self.dead.add_image();
            self.close_image(watched);
            self.note_mapped(watched);
            watched.begin_image(&tracked);
            self.attachment.forget_generated(watched.slot());
        }
        if is_new && !self.wanted.is_wanted(&watched.process) {
            return Ok(false);
        }
        if is_new {
            warn_narrow(watched);
        }
        self.learn(watched);
        let (Some(thread), Some(look), true) = (thread, look, runs) else { return Ok(is_new) };
        if !self.attachment.processes().images().is_current(watched.image) {
            // These are another image's mappings already, or were the last one's: there is a hint to look again.
            return Ok(is_new);
        }
        watched.note_seen();
        if is_new {
            // What another thread's program allocates from its start on is missed until then.
            self.keep_bound(watched);
        }
        let is_same = executable(&look.mappings).eq(&watched.code);
        let news = if !is_new && is_same && self.attachment.holds_code(watched.slot())? {
            self.keep_generated(watched, thread, &look)?
        } else {
            self.keep_look(watched, thread, &look)?;
            true
        };
        // That can take a second, for which stacks would have nothing to go by. Probes that have lost their main thread may still
        // fire.
        self.keep_bound(watched);
        Ok(news)
    }

    /// Takes in a look at what a process maps.
    fn keep_look(&mut self, watched: &mut Watched, thread: Pid, look: &Look) -> Result<(), Failure> {
        let mut kept = self.keep_code(watched, thread, look);
        if !is_alive(watched.pid(), thread)
            && let Some(other) = living_thread(watched.pid())
        {
            // Files that a process maps are opened by way of a thread of it.
            kept = self.keep_code(watched, other, look);
        }
        if let Err(failure) = kept {
            tracing::warn!("stacks of process {} do not lead through all it maps: {failure}", watched.pid());
        }
        if let Some(mapping) = look.mappings.iter().find(|mapping| mapping.is_of_uprobes()) {
            self.attachment.processes().set_trampoline(watched.image, mapping.addresses.start)?;
        }
        Ok(())
    }

    /// What a process maps now.
    pub(super) fn look(&self, slot: ProcessSlot, thread: Pid) -> Result<Look, Failure> {
        let (seen, at, at_ns) = (self.attachment.begin_look(slot)?, Instant::now(), now_ns());
        Ok(Look { mappings: Mapping::all(thread)?, seen, at, at_ns })
    }

    /// Takes in what a process maps: what stacks need.
    pub(super) fn keep_code(
        &mut self,
        watched: &mut Watched,
        thread: Pid,
        look: &Look,
    ) -> Result<(), Failure> {
        watched.code = executable(&look.mappings).cloned().collect();
        watched.perf_map.hold(&watched.process, &watched.code);
        self.keep_stacks(watched, thread, look)
    }

    /// Attaches to the allocators in what a process maps.
    pub(super) fn keep_allocators(&mut self, watched: &mut Watched, thread: Pid) -> Result<(), Failure> {
        let scope = match self.following {
            // One thread is watched for its end: all probes are bound to it.
            Following::Nobody => {
                let bound_to = watched.bound_to.filter(|bound_to| is_alive(watched.pid(), *bound_to));
                Scope::Process { slot: watched.slot(), thread: bound_to.unwrap_or(thread) }
            }
            Following::Children | Following::Everyone => Scope::File,
        };
        if let Scope::Process { thread, .. } = scope {
            watched.bound_to.get_or_insert(thread);
        }
        let looked_ns = watched.looked_ns;
        let modules: Vec<_> = watched.modules.iter().map(|(_, module)| Rc::clone(module)).collect();
        for module in modules {
            let is_new = !self.allocators.knows(&module);
            self.attach_allocator(watched, &module, scope)?;
            // That can take some time, and while a program starts, it loads one library after the other.
            if is_new
                && watched.looked_at.elapsed() >= BETWEEN_LOOKS
                && let Ok(look) = self.look(watched.slot(), thread)
            {
                self.keep_stacks(watched, thread, &look)?;
            }
        }
        watched.known_ns = looked_ns;
        self.note_unfollowed(watched);
        let profiled = watched.modules.iter().filter(|(_, module)| self.allocators.is_profiled(module));
        let text: Vec<_> = profiled.filter_map(|(id, _)| watched.modules.text(id)).collect();
        Ok(self.attachment.processes().set_allocator_text(watched.image, &text)?)
    }

    /// Takes in what stacks need of what a process maps.
    fn keep_stacks(&mut self, watched: &mut Watched, thread: Pid, look: &Look) -> Result<(), Failure> {
        (watched.looked_at, watched.looked_ns) = (look.at, look.at_ns);
        watched.modules.refresh(&mut self.files, thread, &look.mappings);
        watched.jvm.notice(&look.mappings, &watched.modules);
        self.code.follow(watched, thread, look, &mut self.attachment)?;
        self.keep_generated(watched, thread, look)?;
        Ok(())
    }

    /// Binds a process's own probes to another of its threads if the one they are bound to is gone: it has ended while others run
    /// on, or another one has called `exec`, which ends all others. If that fails, the next look tries again.
    fn keep_bound(&mut self, watched: &mut Watched) {
        let Some(bound_to) = watched.bound_to else { return };
        let counters = self.collector.counters(watched.slot());
        let replaced = counters.get(&Counter::ProbesUnbound).copied().unwrap_or_default();
        let ended = !is_alive(watched.pid(), bound_to);
        let is_gone = replaced != watched.times_replaced || ended;
        if !is_gone && !watched.is_unbound {
            return;
        }
        // The process may have ended since it was looked at: then nothing calls past the probes.
        let Some(thread) = living_thread(watched.pid()) else { return };
        watched.times_replaced = replaced;
        watched.times_unbound += u64::from(ended && !watched.is_unbound);
        self.bind(watched, thread);
    }

    /// Binds a process's own probes to `thread`, and to another one if that has ended meanwhile: a link that is made to a main
    /// thread then puts in no probes, and the kernel does not say so (`uprobe_multi_link_filter` in `kernel/trace/bpf_trace.c`).
    fn bind(&mut self, watched: &mut Watched, mut thread: Pid) {
        /// So many in a row end where threads end all the time. The next look goes on.
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
                        "the probed thread of process {pid} is gone: the probes are bound to thread {thread} now"
                    );
                    return;
                }
                Ok(()) => "its threads end one after the other".to_owned(),
                Err(error) => error.to_string(),
            };
            if living == thread {
                break;
            }
            thread = living;
        }
        // Once is enough.
        if watched.is_unbound {
            tracing::debug!("process {pid} is without probes: {why}");
        } else {
            tracing::warn!("process {pid} is not counted until its probes can be bound again: {why}");
        }
        watched.is_unbound = true;
    }
}
