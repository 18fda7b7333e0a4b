//! The format of gperftools and tcmalloc, and of jemalloc before version 4: `heap profile: COUNTS @ TYPE/R`, then a line for each
//! stack, `COUNTS @ ADDRESSES`.

use super::addresses;
use super::counts::{Counts, Scaling};
use super::lines::Line;

/// Beginning of the first line.
pub(super) const HEADER: &str = "heap profile:";

/// Bytes between samples of tcmalloc where the file does not say.
const USUAL_BYTES: f64 = 131_072.;

/// Relation of the figures to those of the program, by the first line.
pub(super) fn scaling(header: &str) -> Option<Scaling> {
    let (counts, rest) = Counts::parse(header.strip_prefix(HEADER)?)?;
    let Some(kind) = rest.trim().strip_prefix('@') else {
        // Profiles that a server sends are samples. They do not record what was allocated.
        let is_sampled = counts.live == counts.allocated;
        return Some(if is_sampled { Scaling::Linear { bytes: USUAL_BYTES } } else { Scaling::Exact });
    };
    let (kind, bytes) = kind.trim().split_once('/').unwrap_or((kind.trim(), ""));
    let bytes = bytes.parse().ok().filter(|bytes: &u32| *bytes > 0).map(f64::from);
    Some(match kind {
        "heap_v2" => Scaling::Exponential { bytes: bytes.unwrap_or(USUAL_BYTES) },
        // The interval is twice the mean distance.
        "heap" => Scaling::Linear { bytes: bytes.map_or(USUAL_BYTES, |bytes| (bytes / 2.).floor()) },
        // The profiler sees all allocations, and growth is that of the heap itself.
        _ => Scaling::Exact,
    })
}

/// The stack of a line; `None` for an empty line.
pub(super) fn stack(text: Line<'_>) -> Result<Option<(Vec<u64>, Counts)>, &'static str> {
    let text = text?;
    if text.is_empty() {
        return Ok(None);
    }
    let (counts, rest) = Counts::parse(text).ok_or("its numbers cannot be read")?;
    let stack = rest.trim().strip_prefix('@').ok_or("it has no stack")?;
    Ok(Some((addresses(stack)?, counts)))
}
