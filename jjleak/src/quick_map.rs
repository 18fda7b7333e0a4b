//! Maps that are asked for thousands of keys at every look.

use std::collections::HashMap;

/// A map whose hasher is quick and seeded at random; a target that can choose keys gains nothing but somewhat slower looks.
pub(crate) type QuickMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// A map with room for so many.
pub(crate) fn quick_map<K, V>(capacity: usize) -> QuickMap<K, V> {
    QuickMap::with_capacity_and_hasher(capacity, foldhash::fast::RandomState::default())
}

/// A set of the same kind.
pub(crate) type QuickSet<K> = std::collections::HashSet<K, foldhash::fast::RandomState>;
