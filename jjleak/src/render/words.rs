//! Words for the figures of each source.

use crate::profile::SourceKind;

/// Words for figures.
pub(crate) struct Words {
    /// Memory that is there now.
    pub(crate) live: &'static str,
    /// The same, as the head of a column.
    pub(crate) live_head: &'static str,
    /// The same, as a title.
    pub(super) live_title: &'static str,
    /// Memory that has been there since the start.
    pub(crate) allocated: &'static str,
    /// The same, as a title.
    pub(super) allocated_title: &'static str,
    /// A part of either.
    pub(crate) object: &'static str,
    /// Parts of either.
    pub(crate) objects: &'static str,
    /// The same, as the head of a column.
    pub(crate) objects_head: &'static str,
    /// Their change, as the head of a column.
    pub(crate) new_objects_head: &'static str,
    /// Parts that are new, for a rate.
    pub(crate) calls: &'static str,
    /// The same in fewer letters.
    pub(crate) calls_shortly: &'static str,
    /// Message that nothing was lost.
    pub(super) all_counted: &'static str,
    /// Parts of a stack's memory in a list of stacks.
    pub(super) parts: &'static str,
    /// Ending of the headline of a list of stacks.
    pub(super) listed: &'static str,
    /// Sentence for an empty list, if there has never been anything.
    pub(super) never: &'static str,
}

const OF_ALLOCATIONS: Words = Words {
    live: "live",
    live_head: "LIVE",
    live_title: "Live: not freed yet",
    allocated: "allocated",
    allocated_title: "Allocated since the start",
    object: "object",
    objects: "objects",
    objects_head: "OBJS",
    new_objects_head: "ΔOBJS",
    calls: "allocations",
    calls_shortly: "allocs",
    all_counted: "every allocation was counted",
    parts: "allocations",
    listed: "stacks with outstanding allocations",
    never: "Nothing outstanding: no allocation was seen.",
};

const OF_PAGES: Words = Words {
    live: "resident",
    live_head: "RESID",
    live_title: "Resident now",
    allocated: "touched",
    allocated_title: "Touched since the start",
    object: "page",
    objects: "pages",
    objects_head: "PAGES",
    new_objects_head: "ΔPAGES",
    calls: "pages touched",
    calls_shortly: "pages",
    all_counted: "every page fault was counted",
    parts: "pages",
    listed: "stacks by the pages that they made resident",
    never: "No page has become resident.",
};

const OF_OBJECTS: Words = Words {
    live: "allocated",
    live_head: "ALLOC",
    live_title: "Allocated since the start",
    allocated: "allocated",
    allocated_title: "Allocated since the start",
    object: "object",
    objects: "objects",
    objects_head: "OBJS",
    new_objects_head: "ΔOBJS",
    calls: "objects",
    calls_shortly: "objects",
    all_counted: "every sample was counted",
    parts: "objects",
    listed: "stacks by the Java objects that they have allocated",
    never: "No object was allocated.",
};

/// The words of a source.
pub(crate) const fn words(source: SourceKind) -> &'static Words {
    match source {
        SourceKind::Malloc | SourceKind::Sampled | SourceKind::File => &OF_ALLOCATIONS,
        SourceKind::Growth => &OF_PAGES,
        SourceKind::JavaHeap => &OF_OBJECTS,
    }
}
