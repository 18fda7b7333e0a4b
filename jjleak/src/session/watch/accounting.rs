//! Figures of the processes: read from the kernel side, judged, and what they cost.

use super::children::Children;
use super::java_heap::JavaHeap;
use super::mappings::Mappings;
use super::touched::Touched;
use crate::analyze::{Growth, Histories};
use crate::attach::{Attachment, Settings};
use crate::collect::Collector;
use crate::cost::{Bound, Meter};
use crate::profile::Coverage;
use crate::session::Error;

/// Figures, and the history of figures that verdicts need.
pub(super) struct Accounting {
    pub(super) collector: Collector,
    pub(super) mappings: Mappings,
    pub(super) touched: Touched,
    pub(super) java_heap: JavaHeap,
    pub(super) coverage: Coverage,
    pub(super) growth: Growth,
    pub(super) histories: Histories,
    pub(super) meter: Meter,
    /// Bound of the cost, if one is set.
    pub(super) bound: Option<Bound>,
    pub(super) children: Children,
}

impl Accounting {
    pub(super) fn new(
        settings: &Settings,
        coverage: Coverage,
        attachment: &mut Attachment,
    ) -> Result<Self, Error> {
        Ok(Self {
            mappings: Mappings::follow(settings.mappings, settings.sizes, attachment)?,
            touched: Touched::follow(settings.faults, attachment)?,
            java_heap: JavaHeap::follow(attachment)?,
            collector: Collector::new(attachment)?,
            coverage,
            growth: Growth::default(),
            histories: Histories::default(),
            meter: Meter::new(attachment),
            bound: None,
            children: Children::default(),
        })
    }
}
