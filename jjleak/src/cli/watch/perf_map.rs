//! Names code that a process has generated, by its perf map.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use jjleak_common::stack::{InterpretedFrame, StackFrame};
use jjleak_common::unwind::layer;

use super::asked::AskedJvm;
use super::process::Watched;
use crate::collect::{Collector, RawStack};
use crate::jvm;
use crate::perf_map::{Outcome, PerfMap};
use crate::processes::{Mapping, ModuleTable, Pid, Process};
use crate::symbolize::{JitNames, StackNames};

/// Most stacks of a process whose code waits for a name to be written down; those beyond are named by what is there.
const MAX_WAITING: usize = 4096;
/// How the path of a file begins that is nothing but memory (`memfd_create(2)`): .NET keeps the code that it generates in one.
const MEMORY_FILE: &[u8] = b"/memfd:";

/// A process's perf map, and the stacks that wait for names from it.
#[derive(Default)]
pub(super) struct WatchedPerfMap {
    map: PerfMap,
    /// Rows of stacks whose code has not been looked for in the map.
    new: BTreeSet<u32>,
    /// Rows of stacks with code that is not in the map yet.
    waiting: BTreeSet<u32>,
    asked: AskedJvm,
}

impl WatchedPerfMap {
    /// Holds on to the map of a process that runs, if it generates code.
    pub(super) fn hold(&mut self, process: &Process, code: &[Mapping]) {
        if generates(code) {
            self.map.hold(process);
        }
    }

    /// Has a JVM write its map anew if that is due.
    pub(super) fn ask(&mut self, process: &Process, code: &[Mapping], modules: &ModuleTable) {
        self.asked.go_on(process, self.lacks_names(), || jvm::library(code, modules));
    }

    /// Whether a JVM is writing its map.
    pub(super) fn is_being_written(&mut self, process: &Process) -> bool {
        self.asked.is_running(process)
    }

    fn lacks_names(&self) -> bool {
        !(self.new.is_empty() && self.waiting.is_empty())
    }

    /// These rows are of no stack any more.
    pub(super) fn forget(&mut self, rows: &BTreeSet<u32>) {
        self.new.retain(|row| !rows.contains(row));
        self.waiting.retain(|row| !rows.contains(row));
    }
}

/// When names are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Before code is replaced by other code.
    Soon,
    /// For a report.
    Now,
}

/// Names the code in new stacks, and in those that wait, which only the perf map can name. It is looked at first: new
/// stacks are rather of code that has just come than of what was there before.
pub(super) fn name_by_perf_map(
    names: &mut StackNames,
    collector: &Collector,
    watched: &mut Watched,
    new: &[u32],
    urgency: Urgency,
) {
    let Watched { code, jvm, modules, perf_map, process, .. } = watched;
    if !generates(code) && !perf_map.lacks_names() {
        return;
    }
    let is_jit = |frame: StackFrame| {
        let is_read_otherwise = InterpretedFrame::unpack(frame).is_some() || jvm.has_code_at(frame.address());
        !is_read_otherwise && is_generated(frame, modules)
    };
    let lacks_name = |names: &StackNames, row: u32, stack: &RawStack| {
        stack.frames.iter().any(|frame| is_jit(*frame) && !names.has_kept(row, *frame))
    };
    // What has been reported stays as it is.
    perf_map.waiting.retain(|row| !names.is_named(*row));
    for row in new {
        let has_room = perf_map.new.len() + perf_map.waiting.len() < MAX_WAITING;
        if has_room && collector.stack(*row).is_some_and(|stack| lacks_name(names, *row, stack)) {
            perf_map.new.insert(*row);
        }
    }
    if !perf_map.lacks_names() {
        return;
    }
    let has_changed = match perf_map.map.look(process, urgency == Urgency::Soon) {
        Outcome::Resting => return,
        Outcome::Same => false,
        Outcome::Changed => {
            tell(process.pid, &perf_map.map);
            true
        }
        Outcome::Refused(why) => {
            let (pid, path) = (process.pid, PerfMap::path(process));
            tracing::warn!("{} of process {pid} is not read: {why}", path.display());
            false
        }
    };
    let is_jvm = modules.iter().any(|(_, module)| jvm::is_library(&module.path));
    let known = JitNames::new(&perf_map.map, is_jvm);
    let mut rows = std::mem::take(&mut perf_map.new);
    if has_changed {
        rows.append(&mut perf_map.waiting);
    }
    rows.retain(|row| {
        let Some(stack) = collector.stack(*row) else { return false };
        names.keep_generated(*row, stack, |frame| known.frames(frame).filter(|_| is_jit(frame)));
        lacks_name(names, *row, stack)
    });
    perf_map.waiting.append(&mut rows);
}

/// Whether a process with this code generates some of it.
fn generates(code: &[Mapping]) -> bool {
    code.iter().any(|mapping| mapping.is_generated() || is_memory(mapping.path.as_os_str()))
}

/// Whether the code of a frame is in no file.
fn is_generated(frame: StackFrame, modules: &ModuleTable) -> bool {
    let module = modules.find(frame.address().saturating_sub(1)).map(|(id, _)| modules.get(id));
    frame.layer() == layer::NO_FILE || module.is_none_or(|module| is_memory(module.path.as_os_str()))
}

fn is_memory(path: &OsStr) -> bool {
    path.as_encoded_bytes().starts_with(MEMORY_FILE)
}

fn tell(pid: Pid, map: &PerfMap) {
    let names = map.names();
    tracing::info!("code of process {pid} is named by its perf map, which has {} names", names.len());
    if names.bad_lines() > 0 {
        tracing::info!("{} lines of the perf map of process {pid} make no sense", names.bad_lines());
    }
    if names.left_out() > 0 {
        tracing::warn!("the perf map of process {pid} has {} names too many", names.left_out());
    }
}
