//! Lines of a file, of a limited length each.

use std::io::{self, BufRead, Read};

/// Maximum length of a line. A stack of 1,024 addresses takes 20 KiB; paths of mapped files have 4 KiB at most.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Reads lines one by one.
pub(super) struct Lines<F> {
    file: F,
    line: Vec<u8>,
    text: String,
    number: u64,
}

/// A line without white space at its ends, or the reason why it cannot be read.
pub(super) type Line<'text> = Result<&'text str, &'static str>;

impl<F: BufRead> Lines<F> {
    pub(super) const fn new(file: F) -> Self {
        Self { file, line: Vec::new(), text: String::new(), number: 0 }
    }

    /// The next line; `None` at the end of the file.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        if self.read()? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if !self.line.ends_with(b"\n") && self.line.len() as u64 == MAX_LINE_BYTES {
            self.skip()?;
            return Ok(Some(Err("it is too long")));
        }
        String::from_utf8_lossy(&self.line).trim().clone_into(&mut self.text);
        Ok(Some(Ok(&self.text)))
    }

    /// Number of the last line, from 1.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    fn read(&mut self) -> io::Result<usize> {
        self.file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut self.line)
    }

    /// Skips the rest of a line.
    fn skip(&mut self) -> io::Result<()> {
        let mut rest = Vec::new();
        loop {
            rest.clear();
            let read = self.file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut rest)?;
            if read == 0 || rest.ends_with(b"\n") {
                return Ok(());
            }
        }
    }
}
