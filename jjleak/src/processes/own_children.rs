//! Processes that jjleak runs for its own work: they are not to be profiled.

use std::collections::BTreeSet;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Pid;

static CHILDREN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Returns true if a process is a running child of jjleak.
#[must_use]
pub fn is_own_child(pid: Pid) -> bool {
    children().contains(&pid.number().get())
}

/// Notes that a child runs.
pub fn note_own_child(child: &Child) {
    children().insert(child.id());
}

/// Notes that a child has ended, before its PID is reused.
pub fn forget_own_child(child: &Child) {
    children().remove(&child.id());
}

fn children() -> MutexGuard<'static, BTreeSet<u32>> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}
