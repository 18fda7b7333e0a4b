//! Which processes are profiled, from their start to their end.

use std::collections::VecDeque;

use jjleak_common::process::ProcessSlot;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::earlier_runs::Program;
use super::ended::Dead;
use crate::attach::{self, Attachment, BegunProgram, Following, Settings};
use crate::processes::{Process, Wanted};

/// Inverse of the part of the process table that is left for new processes while jjleak attaches to running ones.
const LEFT_FOR_NEW: usize = 4;

/// The processes that come and go.
pub(super) struct Lifecycle {
    /// The processes to profile.
    pub(super) wanted: Wanted,
    pub(super) following: Following,
    /// Size of the process table.
    pub(super) max_processes: usize,
    /// Processes that ran before jjleak started, and are not attached to yet.
    pub(super) to_attach: VecDeque<Process>,
    /// Slots for them: by the time that it is their turn, those that have begun since may fill the table.
    pub(super) reserved: Vec<ProcessSlot>,
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
    /// Reserves slots for the wanted processes that run now if new ones can fill the table. Nothing may be attached yet.
    pub(super) fn new(
        wanted: Wanted,
        settings: &Settings,
        attachment: &mut Attachment,
    ) -> Result<Self, attach::Error> {
        let max_processes = settings.capacity.processes as usize;
        let mut reserved = Vec::new();
        if settings.following == Following::Everyone {
            let most = max_processes - max_processes / LEFT_FOR_NEW;
            for _ in 0..wanted.running().count().min(most) {
                reserved.extend(attachment.processes_mut().reserve()?);
            }
        }
        Ok(Self {
            wanted,
            following: settings.following,
            max_processes,
            to_attach: VecDeque::new(),
            reserved,
            dead: Dead::default(),
            begun: Vec::new(),
            started: None,
            endings: unbounded_channel(),
        })
    }
}
