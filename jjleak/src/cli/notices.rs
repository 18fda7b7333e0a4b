//! Everything jjleak says on stderr goes through here.
//!
//! Some of it was chosen by the profiled process, such as the names of its files: nothing of that may steer the
//! terminal. And nobody may be listening: a stderr that is closed or full is no reason to stop.

use std::io::{self, Write};

use super::progress;
use crate::render::printable;

/// Tells the user; one line, whatever is in it.
pub(super) fn tell(line: &str) {
    let line = format!("jjleak: {}\n", printable(line));
    // There is nobody to tell that nobody can be told.
    let _ = progress::aside(|| io::stderr().write_all(line.as_bytes()));
}

/// Where the log goes. A message may have several lines, such as what the kernel's verifier says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Log;

impl Write for Log {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let _ = progress::aside(|| io::stderr().write_all(printable_lines(message).as_bytes()));
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn printable_lines(message: &[u8]) -> String {
    let message = String::from_utf8_lossy(message);
    let lines: Vec<_> = message.split('\n').map(printable).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_keeps_its_lines_and_steers_no_terminal() {
        assert_eq!(printable_lines(b"one\n\x1b[2Jtwo\xff\n"), "one\n\u{fffd}[2Jtwo\u{fffd}\n");
    }
}
