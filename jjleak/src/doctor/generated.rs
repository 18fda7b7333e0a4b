//! Code that a process has generated, and whether it has names.

use crate::perf_map::{Outcome, PerfMap, Refusal};
use crate::processes::{Mapping, Process};

/// Code in no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// How much memory is mapped for it.
    pub bytes: u64,
    /// Where the perf map of the process is, or would be, as it sees it.
    pub perf_map: String,
    /// What is there.
    pub names: NamesFrom,
}

/// What is in the place of a perf map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamesFrom {
    /// Nothing.
    Nowhere,
    /// A map with so many names, and so many lines that make no sense.
    Map(usize, u64),
    /// Something that is not read.
    Refused(Refusal),
}

impl Generated {
    pub(super) fn find(process: &Process, mappings: &[Mapping]) -> Option<Self> {
        let length = |mapping: &Mapping| mapping.addresses.end - mapping.addresses.start;
        let bytes: u64 = mappings.iter().filter(|mapping| mapping.is_generated()).map(length).sum();
        let mut map = PerfMap::default();
        let names = (bytes > 0).then(|| match map.update(process, false) {
            Outcome::Refused(why) => NamesFrom::Refused(why),
            Outcome::Changed => NamesFrom::Map(map.names().len(), map.names().bad_lines()),
            Outcome::Same | Outcome::Throttled => NamesFrom::Nowhere,
        })?;
        Some(Self { bytes, perf_map: PerfMap::path(process).display().to_string(), names })
    }
}
