//! Names generated code by the process's perf map.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use jjleak_common::stack::{InterpretedFrame, StackFrame};
use jjleak_common::unwind::layer;

use super::perf_map_request::AskedJvm;
use super::process::Watched;
use crate::collect::Collector;
use crate::jvm;
use crate::perf_map::{Outcome, PerfMap};
use crate::processes::{Mapping, ModuleTable, Pid, Process};
use crate::snapshot::RawStack;
use crate::symbolize::{JitNames, StackNames};

/// Maximum number of stacks per process that wait for names in the map. Further stacks are named once, from the names
/// present when they come.
const MAX_WAITING: usize = 4096;
/// Prefix of the paths of in-memory files (`memfd_create(2)`): .NET keeps its generated code in one.
const MEMORY_FILE: &[u8] = b"/memfd:";

/// A process's perf map, and the stacks that wait for its names.
#[derive(Default)]
pub(super) struct WatchedPerfMap {
    map: PerfMap,
    /// Rows of stacks that have not been looked up in the map.
    new: BTreeSet<u32>,
    /// Rows of stacks with code that is not in the map yet.
    waiting: BTreeSet<u32>,
    asked: AskedJvm,
}

impl WatchedPerfMap {
    /// Keeps the map of a running process open, if it generates code.
    pub(super) fn hold(&mut self, process: &Process, code: &[Mapping]) {
        if generates(code) {
            self.map.hold(process);
        }
    }

    /// Requests a new map from a JVM, if a request is due.
    pub(super) fn ask(&mut self, process: &Process, code: &[Mapping], modules: &ModuleTable) {
        self.asked.go_on(process, self.lacks_names(), || {
            jvm::library(code, modules).map(|(library, bias)| (&**library, bias))
        });
    }

    /// Returns true if a JVM is writing its map.
    pub(super) fn is_being_written(&mut self, process: &Process) -> bool {
        self.asked.is_running(process)
    }

    /// Adds stacks without names. Returns those for which there is no room to wait.
    fn add(&mut self, rows: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut beyond = Vec::new();
        for row in rows {
            if self.new.len() + self.waiting.len() < MAX_WAITING {
                self.new.insert(row);
            } else {
                beyond.push(row);
            }
        }
        beyond
    }

    /// Reads new names from the map, unless that can wait.
    fn refresh(&mut self, process: &Process, urgency: Urgency) -> Outcome {
        let outcome = self.map.update(process, urgency == Urgency::Soon);
        match &outcome {
            Outcome::Changed => warn_of_change(process.pid, &self.map),
            Outcome::Refused(why) => {
                let (pid, path) = (process.pid, PerfMap::path(process));
                tracing::warn!("{} of process {pid} is not read: {why}", path.display());
            }
            Outcome::Throttled | Outcome::Same => {}
        }
        outcome
    }

    fn lacks_names(&self) -> bool {
        !(self.new.is_empty() && self.waiting.is_empty())
    }

    /// Rows of stacks that wait for names.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &u32> {
        self.new.iter().chain(&self.waiting)
    }

    /// Forgets rows that stand for no stack any more.
    pub(super) fn forget(&mut self, rows: &BTreeSet<u32>) {
        self.new.retain(|row| !rows.contains(row));
        self.waiting.retain(|row| !rows.contains(row));
    }
}

/// Time by which names are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Before the code is replaced.
    Soon,
    /// For a report, now.
    Now,
}

/// Names the code in new and waiting stacks that only the perf map can name. The map is read first: new stacks rather
/// contain new code than old.
pub(super) fn name_by_perf_map(
    names: &mut StackNames,
    collector: &Collector,
    watched: &mut Watched,
    new: &[u32],
    urgency: Urgency,
) {
    let Watched { code, modules, perf_map, process, .. } = watched;
    if !generates(code) && !perf_map.lacks_names() {
        return;
    }
    let lacks_name = |names: &StackNames, row: u32, stack: &RawStack| {
        stack.frames.iter().any(|frame| is_jit(*frame, modules) && !names.has_kept(row, *frame))
    };
    // Reported stacks stay as they are.
    perf_map.waiting.retain(|row| !names.is_named(*row));
    let unnamed = new.iter().copied();
    let unnamed =
        unnamed.filter(|row| collector.stack(*row).is_some_and(|stack| lacks_name(names, *row, stack)));
    let beyond = perf_map.add(unnamed);
    if !perf_map.lacks_names() {
        return;
    }
    let outcome = perf_map.refresh(process, urgency);
    let is_jvm = modules.iter().any(|(_, module)| jvm::is_library(module));
    let known = JitNames::new(&perf_map.map, is_jvm);
    // New stacks wait for the next reading of the map.
    let can_wait = outcome == Outcome::Throttled && urgency == Urgency::Soon;
    let mut rows = if can_wait { BTreeSet::new() } else { std::mem::take(&mut perf_map.new) };
    if outcome == Outcome::Changed {
        rows.append(&mut perf_map.waiting);
    }
    let mut still_lacks_name = |row: &u32| {
        let Some(stack) = collector.stack(*row) else { return false };
        names.keep_generated(*row, stack, |frame| known.frames(frame).filter(|_| is_jit(frame, modules)));
        lacks_name(names, *row, stack)
    };
    for row in &beyond {
        still_lacks_name(row);
    }
    rows.retain(still_lacks_name);
    perf_map.waiting.append(&mut rows);
}

/// Returns true if only a perf map can name a frame's code: it is in no file, and the unwinder has not identified it
/// as code of a JVM, whose structures would name it.
fn is_jit(frame: StackFrame, modules: &ModuleTable) -> bool {
    let is_java = (layer::GENERATED..layer::INTERPRETED).contains(&frame.layer())
        || InterpretedFrame::unpack(frame).is_some();
    !is_java && is_generated(frame, modules)
}

/// Returns true if a process with these mappings generates code.
fn generates(code: &[Mapping]) -> bool {
    code.iter().any(|mapping| mapping.is_generated() || is_memory(mapping.path.as_os_str()))
}

/// Returns true if a frame's code is in no file.
fn is_generated(frame: StackFrame, modules: &ModuleTable) -> bool {
    let module = modules.find(frame.address().saturating_sub(1)).map(|located| modules.get(located.module));
    frame.layer() == layer::NO_FILE || module.is_none_or(|module| is_memory(module.path.as_os_str()))
}

fn is_memory(path: &OsStr) -> bool {
    path.as_encoded_bytes().starts_with(MEMORY_FILE)
}

fn warn_of_change(pid: Pid, map: &PerfMap) {
    let names = map.names();
    tracing::info!("code of process {pid} is named by its perf map with {} names", names.len());
    if names.bad_lines() > 0 {
        tracing::info!("the perf map of process {pid} has {} invalid lines", names.bad_lines());
    }
    if names.left_out() > 0 {
        tracing::warn!("the perf map of process {pid} has too many names: {} are ignored", names.left_out());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_for_which_there_is_no_room_are_named_at_once() {
        let most = u32::try_from(MAX_WAITING).unwrap();
        let mut map = WatchedPerfMap::default();
        assert_eq!(map.add(0..most - 1), [0; 0]);
        map.waiting.append(&mut map.new);
        assert_eq!(map.add(most..most + 3), [most + 1, most + 2]);
        map.forget(&BTreeSet::from([0, most]));
        assert_eq!(map.add(most + 3..most + 5), [0; 0]);
    }

    #[test]
    fn only_what_the_unwinder_has_marked_as_a_jvms_code_has_no_name_from_a_perf_map() {
        let modules = ModuleTable::default();
        let is_jit = |frame| is_jit(frame, &modules);
        // Code of a JVM with an unknown layout, or with one that was not known yet.
        assert!(is_jit(StackFrame::new(0x7f00_1234, layer::NO_FILE)));
        assert!(!is_jit(StackFrame::new(0x7f00_1234, layer::GENERATED)));
        assert!(!is_jit(StackFrame::new(0x7f00_1234, layer::INTERPRETED - 1)));
        assert!(!is_jit(InterpretedFrame::pack(0x7f00_1238, 7)));
    }
}
