//! Source of a profile's stacks and weights.

/// Source of a profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceKind {
    /// Calls of allocators, each counted.
    #[default]
    Malloc,
    /// Allocations that the program samples itself.
    Sampled,
    /// Pages that became resident.
    Growth,
    /// Objects in a Java heap.
    JavaHeap,
    /// A heap profile that an allocator or another tool has written.
    File,
}

impl SourceKind {
    /// All sources.
    pub const ALL: [Self; 5] = [Self::Malloc, Self::Sampled, Self::Growth, Self::JavaHeap, Self::File];

    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Sampled => "sampled",
            Self::Growth => "growth",
            Self::JavaHeap => "java_heap",
            Self::File => "file",
        }
    }

    /// Returns whether call sites are judged by what becomes of their blocks.
    #[must_use]
    pub const fn is_judged(self) -> bool {
        matches!(self, Self::Malloc | Self::Sampled | Self::File)
    }

    /// Returns whether the figures are those of the allocations of a process.
    #[must_use]
    pub const fn is_of_allocations(self) -> bool {
        matches!(self, Self::Malloc | Self::Sampled)
    }

    /// The source with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.name() == name)
    }
}
