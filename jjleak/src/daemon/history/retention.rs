//! What is kept no longer. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Bounds, Id};

/// What is too old, and the oldest of what is too much, of what takes so many bytes each.
pub(super) fn expired(sizes: &BTreeMap<Id, u64>, now: Timestamp, bounds: Bounds) -> Vec<Id> {
    let oldest = now.saturating_sub(bounds.age).unwrap_or(Timestamp::MIN);
    let mut sum = 0u64;
    let is_expired = |(id, bytes): &(&Id, &u64)| {
        sum = sum.saturating_add(**bytes);
        id.time() < oldest || sum > bounds.bytes
    };
    sizes.iter().rev().filter(is_expired).map(|(id, _)| id.clone()).collect()
}
