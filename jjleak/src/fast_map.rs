//! Hash maps and sets for hot paths, with thousands of lookups per snapshot; `SipHash` is too slow there.

use std::collections::HashMap;

/// A map with a fast, randomly seeded hasher. A target that chooses keys to collide only slows snapshots down somewhat.
pub(crate) type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// An empty [`FastMap`] with this capacity.
pub(crate) fn fast_map<K, V>(capacity: usize) -> FastMap<K, V> {
    FastMap::with_capacity_and_hasher(capacity, foldhash::fast::RandomState::default())
}

/// A set with the hasher of [`FastMap`].
pub(crate) type FastSet<K> = std::collections::HashSet<K, foldhash::fast::RandomState>;
