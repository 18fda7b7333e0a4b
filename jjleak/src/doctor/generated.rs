//! Code that a process has generated, and the source of its names.

use crate::perf_map::{Outcome, PerfMap, Refusal};
use crate::processes::{Mapping, Process};

/// Code in no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// Mapped memory, in bytes.
    pub bytes: u64,
    /// Path of the process's perf map, as the process sees it; the file may not exist.
    pub perf_map: String,
    /// The state of that file.
    pub names: NamesFrom,
}

/// State of the perf map file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamesFrom {
    /// There is no file.
    Nowhere,
    /// A perf map: the number of its names, and of its malformed lines.
    Map(usize, u64),
    /// A file that jjleak refuses to read.
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
