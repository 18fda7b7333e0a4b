//! Retention rules. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::Id;

/// Profiles older than `oldest`, and the oldest of those that exceed `most` bytes together.
pub(super) fn expired(sizes: &BTreeMap<Id, u64>, oldest: Timestamp, most: u64) -> Vec<Id> {
    let mut sum = 0u64;
    let is_expired = |(id, bytes): &(&Id, &u64)| {
        sum = sum.saturating_add(**bytes);
        id.time() < oldest || sum > most
    };
    sizes.iter().rev().filter(is_expired).map(|(id, _)| id.clone()).collect()
}
