//! What is kept no longer. Pure.

use jiff::Timestamp;

use super::{Bounds, Entry, Id};

/// What is too old, and the oldest of what is too much. Entries come the oldest first.
pub(super) fn expired<'a>(
    entries: impl DoubleEndedIterator<Item = &'a Entry>,
    now: Timestamp,
    bounds: Bounds,
) -> Vec<Id> {
    let oldest = now.saturating_sub(bounds.age).unwrap_or(Timestamp::MIN);
    let mut bytes = 0u64;
    let is_expired = |entry: &&Entry| {
        bytes = bytes.saturating_add(entry.bytes());
        entry.time < oldest || bytes > bounds.bytes
    };
    entries.rev().filter(is_expired).map(|entry| entry.id.clone()).collect()
}
