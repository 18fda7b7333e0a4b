//! Makes a snapshot one of an instant: has the kernel side keep what is freed while the tables are read. The protocol
//! stands in `jjleak_common::freed`.

use std::hint::spin_loop;
use std::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};
use std::sync::atomic::{Ordering, fence};

use jjleak_common::freed::{FreedLog, MAX_NOTES, Note};
use jjleak_common::live::{Key, Record};

use crate::attach::Mapped;
use crate::attach::now_ns;

/// How far ahead the instant is set, so that every processor knows of it when it comes: a store becomes visible within a
/// microsecond.
const AHEAD_NS: u64 = 20_000;

/// Attempts to set an instant before it has passed: jjleak itself can lose the processor in between.
const ATTEMPTS: usize = 100;

/// Has what is freed from an instant on kept, and waits for that instant: in nanoseconds of `CLOCK_MONOTONIC`.
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

/// Whether blocks can be in the spill: asked for after the instant, it holds for what lived at the instant.
pub(super) fn has_spilled(log: &Mapped<FreedLog>) -> bool {
    // SAFETY: mapped for reading.
    log.get(0).is_none_or(|log| unsafe { read_volatile(addr_of!((*log).has_spilled)) } != 0)
}

/// What was freed since the instant, of the blocks that lived then. Blocks that were still there when their place was read
/// can be among them.
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
