//! Which processes are profiled, from their start to their end.

use std::collections::VecDeque;

use jjleak_common::process::ProcessSlot;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::earlier_runs::Program;
use super::ended::Dead;
use crate::attach::{BegunProgram, Following, Settings};
use crate::processes::{Process, Wanted};

/// Inverse of the part of the process table that is left for new processes while jjleak attaches to running ones.
const LEFT_FOR_NEW: u32 = 4;

/// Number of slots to hold back for the wanted processes that run now. Without them, processes that begin while jjleak attaches can fill the table.
pub(super) fn to_reserve(wanted: &Wanted, settings: &Settings) -> u32 {
    if settings.following != Following::Everyone {
        return 0;
    }
    let most = settings.capacity.processes - settings.capacity.processes / LEFT_FOR_NEW;
    u32::try_from(wanted.running().count()).unwrap_or(u32::MAX).min(most)
}

/// The processes that come and go.
pub(super) struct Lifecycle {
    /// The processes to profile.
    pub(super) wanted: Wanted,
    pub(super) following: Following,
    /// Size of the process table.
    pub(super) max_processes: usize,
    /// Processes that ran before jjleak started, and are not attached to yet.
    pub(super) to_attach: VecDeque<Process>,
    /// Slots of processes that are gone.
    pub(super) dead: Dead,
    /// Started programs without a verdict yet.
    pub(super) begun: Vec<BegunProgram>,
    /// The command that jjleak has started, if it can be identified in later runs.
    pub(super) started: Option<Program>,
    /// Slots of processes that have ended. The channel never closes, because both ends are here.
    pub(super) endings: (UnboundedSender<ProcessSlot>, UnboundedReceiver<ProcessSlot>),
}

impl Lifecycle {
    pub(super) fn new(wanted: Wanted, settings: &Settings) -> Self {
        Self {
            wanted,
            following: settings.following,
            max_processes: settings.capacity.processes as usize,
            to_attach: VecDeque::new(),
            dead: Dead::default(),
            begun: Vec::new(),
            started: None,
            endings: unbounded_channel(),
        }
    }
}
