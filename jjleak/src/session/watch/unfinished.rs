//! Finishes the stacks that led into code whose rows were not loaded yet.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use jjleak_common::unwind::{Row, RowKind, layer};

use super::Watch;
use super::code::CodeFollower;
use super::code_history::CodeHistory;
use super::file_log::FileLog;
use super::jvm::name_generated;
use super::perf_map::Urgency;
use super::process::Watched;
use crate::attach::now_ns;
use crate::collect::Collector;
use crate::processes::{FileId, Mapping};
use crate::snapshot::RawStack;
use crate::unwind::{Code, Finished, StackCopy, finish};

/// Maximum time for which the copy of a stack with unknown code is kept: until then, the kernel side may report the code, or a scan
/// find it.
const MAX_WAIT: Duration = Duration::from_secs(5);

impl Watch {
    /// Finishes stacks of all processes, as far as the code on them is known.
    pub(super) fn finish_stacks(&mut self) {
        let slots: Vec<_> = self.processes.keys().copied().collect();
        let mut were_any = false;
        for slot in slots {
            if let Some(mut watched) = self.processes.remove(&slot) {
                // Code that was mapped when a stack was taken is in every later scan, unless it was unmapped since.
                let scanned_ns = watched.scanned_ns;
                were_any |= self.finish_stacks_of(&mut watched, scanned_ns);
                self.processes.insert(slot, watched);
            }
        }
        if !were_any {
            self.stacks.code.forget_recent();
        }
    }

    /// Finishes the stacks of a JVM that were taken before it had described its code, or before a library was known, and names those
    /// that are new: it may end soon, and its memory with it.
    pub(super) fn finish_stacks_of_jvm(&mut self, watched: &mut Watched) {
        let scanned_ns = watched.scanned_ns;
        if watched.jvm.is_read() {
            self.finish_stacks_of(watched, scanned_ns);
            name_generated(&mut self.stacks.names, &mut self.accounting.collector, watched, Urgency::Soon);
        }
    }

    /// Finishes stacks of a process that has ended.
    pub(super) fn finish_last_stacks(&mut self, watched: &mut Watched) {
        self.finish_stacks_of(watched, u64::MAX);
    }

    /// Finishes a process's stacks that were taken before `until_ns`. Returns true if there were any.
    fn finish_stacks_of(&mut self, watched: &mut Watched, until_ns: u64) -> bool {
        let copies = self.accounting.collector.take_unfinished(watched.image, until_ns);
        watched.lost_copies += self.accounting.collector.take_lost_copies(watched.image);
        // The frames of a stack are sent ahead of its copy.
        self.accounting.collector.receive_frames();
        if copies.is_empty() {
            return false;
        }
        self.receive_files();
        let is_last = until_ns == u64::MAX;
        let mut lookup = Lookup::new(watched, &self.files.log, &mut self.stacks.code, is_last);
        let max_wait_ns = u64::try_from(MAX_WAIT.as_nanos()).unwrap_or(u64::MAX);
        let since_ns = now_ns().saturating_sub(max_wait_ns);
        let (mut rows, mut kept, mut unchanged) = (BTreeSet::new(), Vec::new(), 0);
        for copy in copies {
            let can_wait = !is_last && copy.walk.taken_ns > since_ns;
            match lookup.finish(&copy, &self.accounting.collector) {
                Outcome { awaits_code: true, .. } if can_wait => kept.push(copy),
                Outcome { longer: Some(stack), .. } => {
                    rows.insert(copy.walk.row);
                    self.accounting.collector.finish(watched.image, copy.walk.row, stack);
                }
                Outcome { .. } => unchanged += 1,
            }
        }
        tracing::debug!(
            pid = watched.pid().number().get(),
            finished = rows.len(),
            kept = kept.len(),
            unchanged,
            "stacks through code that was just mapped"
        );
        self.accounting.collector.keep_unfinished(kept);
        self.stacks.names.forget(&rows);
        watched.perf_map.forget(&rows);
        true
    }
}

/// Result of an attempt to finish a stack.
#[derive(Default)]
struct Outcome {
    /// The stack, if it is more than the kernel side has found.
    longer: Option<RawStack>,
    /// True if it leads into unknown code, which may be known later.
    awaits_code: bool,
}

/// Looks up code for the stacks of one process.
struct Lookup<'watch> {
    watched: &'watch Watched,
    code: &'watch mut CodeFollower,
    /// All code that the program has ever had; `None` if the kernel's records are not complete.
    history: Option<CodeHistory>,
    /// Code at the addresses seen so far.
    known: HashMap<u64, Code>,
    /// True if the program is over: nothing more can become known.
    is_last: bool,
}

impl<'watch> Lookup<'watch> {
    fn new(
        watched: &'watch Watched,
        log: &'watch FileLog,
        code: &'watch mut CodeFollower,
        is_last: bool,
    ) -> Self {
        let since_ns = watched.image_since_ns;
        // A forked child begins with its parent's code.
        let pids =
            || [Some(watched.pid()), watched.forked_from].into_iter().flatten().map(|pid| pid.number().get());
        let history = || CodeHistory::new(pids().flat_map(|pid| log.code_of(pid, since_ns)));
        let history = pids().all(|pid| log.is_complete(pid, since_ns)).then(history);
        Self { watched, code, history, known: HashMap::new(), is_last }
    }

    fn finish(&mut self, copy: &StackCopy, collector: &Collector) -> Outcome {
        let Some(mut stack) = collector.unfinished_stack(copy) else { return Outcome::default() };
        self.settle_layers(&mut stack);
        let Finished { frames, status, awaits_code } =
            finish(copy, &stack.frames, |address| self.at(address));
        let is_longer = frames.len() > stack.frames.len() || status != stack.status;
        (stack.frames, stack.status) = (frames, status);
        Outcome { longer: is_longer.then_some(stack), awaits_code }
    }

    /// Refers to files as in stacks that are walked with the process's mappings: by layer.
    fn settle_layers(&self, stack: &mut RawStack) {
        for frame in &mut stack.frames {
            let found =
                frame.layer().checked_sub(layer::FOUND).and_then(|at| stack.found.get(usize::from(at)));
            // Return addresses can be behind the end of the code.
            let address = frame.address().wrapping_sub(1);
            if let Some(layer) = found.and_then(|identity| self.watched.modules.layer_of(address, *identity))
            {
                *frame = frame.in_layer(layer);
            }
        }
    }

    fn at(&mut self, address: u64) -> Code {
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        let code = self.look_up(address);
        self.known.insert(address, code);
        code
    }

    fn look_up(&mut self, address: u64) -> Code {
        let Some((located, layer)) = self.watched.modules.find_only(address) else {
            return self.generated(address);
        };
        let module = Rc::clone(self.watched.modules.get(located.module));
        if self.was_other_code(address, module.version.file, located.offset) {
            return Code::Unknown;
        }
        let rows = self.code.rows_again(&module);
        // Rows are verified against the code at these addends only.
        let by_rows = rows.as_ref().zip(located.address).filter(|(rows, address)| {
            let addend = address.wrapping_sub(located.offset);
            rows.parts().iter().any(|part| part.addend == addend)
        });
        let row = match by_rows {
            Some((rows, address)) => rows.rows().find(address).unwrap_or(Row::plain(0, RowKind::None)),
            None => Row::plain(0, RowKind::FramePointer),
        };
        Code::Known(row, layer)
    }

    /// Returns true unless it is certain that the program has mapped nothing but this part of the file at this address.
    fn was_other_code(&self, address: u64, file: FileId, offset: u64) -> bool {
        self.history.as_ref().is_none_or(|history| history.has_other(address, file, offset))
    }

    /// Code at an address that is not known to be in a file.
    fn generated(&self, address: u64) -> Code {
        let holds = |mapping: &Mapping| mapping.addresses.contains(&address) && mapping.is_generated();
        let is_mapped = self.watched.code.iter().any(holds);
        // A process may have ended before a scan found its code.
        if !is_mapped && !self.history.as_ref().is_some_and(|history| history.is_generated(address)) {
            return Code::Unknown;
        }
        // A scan that has not found the code may not have found the JVM's library either.
        let has_owner = is_mapped || self.watched.jvm.is_there();
        match has_owner.then(|| self.watched.jvm.code_at(address)).flatten() {
            // A JVM that ended before it was read.
            Some(Code::Unknown) if self.is_last => Code::Generated,
            code => code.unwrap_or(Code::Generated),
        }
    }
}
