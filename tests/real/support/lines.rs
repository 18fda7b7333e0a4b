//! Output lines of a process, as they arrive.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Reads in a separate thread, so that waiting for a line is bounded and the process never blocks on its output.
pub(crate) struct Lines {
    who: String,
    coming: Receiver<String>,
    /// Lines so far.
    said: Vec<String>,
}

impl Lines {
    /// Reads from a pipe until its last writer has closed it.
    pub(crate) fn of(who: impl Into<String>, pipe: impl Read + Send + 'static) -> Self {
        let (sender, coming) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(pipe).split(b'\n').map_while(Result::ok);
            // The receiver is gone if the test has failed; the rest is not needed then.
            let _ = lines
                .map(|line| sender.send(String::from_utf8_lossy(&line).into_owned()))
                .find(Result::is_err);
        });
        Self { who: who.into(), coming, said: Vec::new() }
    }

    /// The next line.
    pub(crate) fn next(&mut self, limit: Duration) -> String {
        match self.coming.recv_timeout(limit) {
            Ok(line) => {
                self.said.push(line.clone());
                line
            }
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} said nothing for {limit:?}, after {:#?}", self.who, self.said)
            }
            Err(RecvTimeoutError::Disconnected) => panic!("{} said no more than {:#?}", self.who, self.said),
        }
    }

    /// Skips to the next line with this prefix.
    pub(crate) fn skip_to(&mut self, start: &str, limit: Duration) -> String {
        loop {
            let line = self.next(limit);
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Waits until a line with this prefix has been printed, possibly before lines that were waited for earlier.
    pub(crate) fn until_said(&mut self, start: &str, limit: Duration) {
        while !self.said.iter().any(|line| line.starts_with(start)) {
            self.next(limit);
        }
    }

    /// All lines, from the first to the last; waits until the last writer has closed the pipe.
    pub(crate) fn all(mut self, limit: Duration) -> Vec<String> {
        loop {
            match self.coming.recv_timeout(limit) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => return self.said,
                Err(RecvTimeoutError::Timeout) => panic!("{} held its pipe open for {limit:?}", self.who),
            }
        }
    }
}
