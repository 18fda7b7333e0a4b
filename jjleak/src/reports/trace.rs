//! Prints single allocations and frees as they happen, in the format of bcc's memleak.

use std::fmt::Write as _;
use std::io::{self, Write};

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use jjleak_common::trace::{ALLOCATED, Event};

use crate::attach::now_ns;

/// The trace of a run.
#[derive(Debug)]
pub(super) struct Trace {
    clock: Clock,
}

/// Converts the kernel side's times to local time.
#[derive(Debug)]
struct Clock {
    /// Time at which the kernel side's clock was 0.
    origin: Timestamp,
    time_zone: TimeZone,
}

impl Trace {
    pub(super) fn new() -> Self {
        let since_origin = SignedDuration::from_nanos(now_ns().cast_signed());
        Self { clock: Clock { origin: Timestamp::now() - since_origin, time_zone: TimeZone::system() } }
    }

    /// Prints events.
    pub(super) fn print(&self, events: &[Event]) -> io::Result<()> {
        let mut lines = String::new();
        for event in events {
            write_line(event, &self.clock, &mut lines);
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(lines.as_bytes())?;
        stdout.flush()
    }
}

/// `15:04:05.123456 THREAD alloc exited, size = 64, result = 55d0c0ffee10`.
fn write_line(event: &Event, clock: &Clock, lines: &mut String) {
    let time = clock.origin + SignedDuration::from_nanos(event.time_ns.cast_signed());
    let time = time.to_zoned(clock.time_zone.clone()).strftime("%H:%M:%S%.6f").to_string();
    let Event { thread, size, address, .. } = *event;
    // Writing to a string cannot fail.
    let _ = if event.kind == ALLOCATED {
        writeln!(lines, "{time} {thread} alloc exited, size = {size}, result = {address:x}")
    } else {
        writeln!(lines, "{time} {thread} free entered, address = {address:x}, size = {size}")
    };
}

#[cfg(test)]
mod tests {
    use jjleak_common::trace::FREED;

    use super::*;

    #[test]
    fn lines_say_when_who_and_what() {
        let clock = Clock { origin: "2026-01-15T09:04:12Z".parse().unwrap(), time_zone: TimeZone::UTC };
        let event =
            Event { time_ns: 1_500_000_000, address: 0x55d0_1234, size: 64, thread: 77, kind: ALLOCATED };
        let mut lines = String::new();
        write_line(&event, &clock, &mut lines);
        write_line(&Event { kind: FREED, ..event }, &clock, &mut lines);
        assert_eq!(
            lines,
            "09:04:13.500000 77 alloc exited, size = 64, result = 55d01234\n\
             09:04:13.500000 77 free entered, address = 55d01234, size = 64\n"
        );
    }
}
