//! Makes a snapshot consistent: the kernel side logs what is freed while the tables are read. The protocol is
//! described in `jjleak_common::freed`.

use std::hint::spin_loop;
use std::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};
use std::sync::atomic::{Ordering, fence};

use jjleak_common::freed::{FreedLog, MAX_NOTES, Note};
use jjleak_common::live::{Key, Record};

use crate::attach::Mapped;
use crate::attach::now_ns;

/// Lead time of the instant, so that all processors know of it when it comes: a store becomes visible within
/// a microsecond.
const AHEAD_NS: u64 = 20_000;

/// Attempts to set an instant before it has passed: jjleak may lose the processor in between.
const ATTEMPTS: usize = 100;

/// Starts logging frees from an instant on, and waits for that instant. Returns it in nanoseconds of
/// `CLOCK_MONOTONIC`.
pub(super) fn begin(log: &Mapped<FreedLog>) -> u64 {
    let mut instant_ns = now_ns();
    let Some(log) = log.get(0) else { return instant_ns };
    for _ in 0..ATTEMPTS {
        instant_ns = now_ns() + AHEAD_NS;
        // SAFETY: mapped for writing (`Collector::new`).
        unsafe {
            write_volatile(addr_of_mut!((*log).instant_ns), 0);
            write_volatile(addr_of_mut!((*log).begun), 0);
            fence(Ordering::SeqCst);
            write_volatile(addr_of_mut!((*log).instant_ns), instant_ns);
            fence(Ordering::SeqCst);
        }
        if now_ns() < instant_ns {
            break;
        }
    }
    while now_ns() <= instant_ns {
        spin_loop();
    }
    instant_ns
}

/// Returns whether the spill may hold blocks. If asked after the instant, the answer holds for the blocks of
/// the instant.
pub(super) fn has_spilled(log: &Mapped<FreedLog>) -> bool {
    // SAFETY: mapped for reading.
    log.get(0).is_none_or(|log| unsafe { read_volatile(addr_of!((*log).has_spilled)) } != 0)
}

/// Ends logging. Returns the blocks freed since the instant that lived then, possibly including some that
/// were still in the table when they were read.
pub(super) fn end(log: &Mapped<FreedLog>, instant_ns: u64) -> Vec<(Key, Record)> {
    let Some(log) = log.get(0) else { return Vec::new() };
    // SAFETY: mapped for writing, and the notes are in bounds.
    unsafe {
        write_volatile(addr_of_mut!((*log).instant_ns), 0);
        fence(Ordering::SeqCst);
        let begun = usize::try_from(read_volatile(addr_of!((*log).begun))).unwrap_or(MAX_NOTES);
        let notes = (0..begun.min(MAX_NOTES)).map(|index| read_volatile(addr_of!((*log).notes[index])));
        let sealed = |note: &Note| note.seal == Note::seal_of(note.key, &note.record, instant_ns);
        notes.filter(sealed).map(|note| (Key(note.key), note.record)).collect()
    }
}
