//! Words for the figures of each source.

use crate::profile::SourceKind;

/// Words for figures.
pub(super) struct Words {
    /// Memory that is there now.
    pub(super) live: &'static str,
    /// Its parts.
    pub(super) objects: &'static str,
    /// Memory that has been there since the start.
    pub(super) allocated: &'static str,
    /// Its parts.
    pub(super) allocated_objects: &'static str,
    /// Parts of a stack's memory in a list of stacks.
    pub(super) parts: &'static str,
    /// Ending of the headline of a list of stacks.
    pub(super) listed: &'static str,
    /// Sentence for an empty list, if there has never been anything.
    pub(super) never: &'static str,
}

const OF_ALLOCATIONS: Words = Words {
    live: "live",
    objects: "objects",
    allocated: "allocated",
    allocated_objects: "objects",
    parts: "allocations",
    listed: "stacks with outstanding allocations",
    never: "Nothing outstanding: no allocation was seen.",
};

const OF_PAGES: Words = Words {
    live: "resident",
    objects: "pages",
    allocated: "touched",
    allocated_objects: "page faults",
    parts: "pages",
    listed: "stacks by the pages that they made resident",
    never: "No page has become resident.",
};

/// The words of a source.
pub(super) const fn words(source: SourceKind) -> &'static Words {
    match source {
        SourceKind::Malloc | SourceKind::File => &OF_ALLOCATIONS,
        SourceKind::Growth => &OF_PAGES,
    }
}
