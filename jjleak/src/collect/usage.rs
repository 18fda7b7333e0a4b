//! Shares of processes in the stack table and in the buffer of frames.

use std::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};

use jjleak_common::process::ProcessSlot;
use jjleak_common::stack::StackUsage;

use crate::attach::Mapped;

/// Notes that frames of a process have been received.
pub(super) fn add_received(usage: &Mapped<StackUsage>, slot: ProcessSlot, bytes: usize) {
    if let Some(usage) = usage.get(usize::from(slot.0)) {
        // SAFETY: mapped for writing; only the user side writes the field.
        unsafe {
            let received = addr_of_mut!((*usage).received_bytes);
            write_volatile(received, read_volatile(received) + bytes as u64);
        }
    }
}

/// Notes that a row of a process has been emptied.
pub(super) fn add_emptied(usage: &Mapped<StackUsage>, slot: ProcessSlot) {
    if let Some(usage) = usage.get(usize::from(slot.0)) {
        // SAFETY: mapped for writing; only the user side writes the field.
        unsafe {
            let emptied = addr_of_mut!((*usage).emptied);
            write_volatile(emptied, read_volatile(emptied) + 1);
        }
    }
}

/// Number of rows that all processes use.
pub(super) fn used(usage: &Mapped<StackUsage>) -> u64 {
    let used = |usage: *mut StackUsage| {
        // SAFETY: mapped for reading. A row is emptied after it was claimed, and may be counted the other way round.
        let (emptied, claimed) =
            unsafe { (read_volatile(addr_of!((*usage).emptied)), read_volatile(addr_of!((*usage).claimed))) };
        claimed.saturating_sub(emptied)
    };
    (0..usage.len()).filter_map(|slot| usage.get(slot)).map(used).sum()
}
