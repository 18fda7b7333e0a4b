//! jemalloc's format since version 4: `heap_v2/R`, then for each stack a line with its addresses and a line for each thread.

use super::addresses;
use super::counts::{Counts, Scaling};
use super::lines::Line;

/// Beginning of the first line; the mean number of bytes between samples follows.
pub(super) const HEADER: &str = "heap_v2/";

/// Relation of the figures to those of the program, by the first line.
pub(super) fn scaling(header: &str) -> Option<Scaling> {
    let bytes: u32 = header.strip_prefix(HEADER)?.trim().parse().ok()?;
    Some(if bytes <= 1 { Scaling::Exact } else { Scaling::Exponential { bytes: bytes.into() } })
}

/// Reader of the lines after the first.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Addresses of the stack that the next lines are about; `None` before the first stack, and after a sum.
    stack: Option<Vec<u64>>,
}

impl Reader {
    /// Reads a line; returns a stack once it is complete.
    pub(super) fn line(&mut self, text: Line<'_>) -> Result<Option<(Vec<u64>, Counts)>, &'static str> {
        // Memory after a damaged line may be of another stack.
        let last = self.stack.take();
        let text = text?;
        if text.is_empty() {
            return Ok(None);
        }
        if let Some(stack) = text.strip_prefix('@') {
            self.stack = Some(addresses(stack)?);
            return Ok(None);
        }
        let rest = text.strip_prefix('t').ok_or("it is neither a stack nor its memory")?;
        // The sum of all threads comes first.
        let Some(sum) = rest.strip_prefix("*:") else { return Ok(None) };
        let (counts, _) = Counts::parse(sum).ok_or("its numbers cannot be read")?;
        // Sums of the whole profile come before the first stack.
        Ok(last.map(|addresses| (addresses, counts)))
    }

    /// Returns true if a stack has no sum yet.
    pub(super) const fn is_within_stack(&self) -> bool {
        self.stack.is_some()
    }
}
