//! Uses of a process's memory by address.

use std::ops::Range;

use super::rows::disjoint;
use super::{Area, Claim, Kind};

/// A range of addresses with one use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Addresses; whole pages.
    pub range: Range<u64>,
    /// Use.
    pub kind: Kind,
    /// Name that its owner or the kernel gives it; may be empty.
    pub name: String,
    /// True if the mapping is private memory without a file.
    pub is_anonymous: bool,
    /// True if the mapping has huge pages.
    pub has_huge_pages: bool,
    /// True if a part of the mapping is in swap.
    pub has_swapped: bool,
}

/// Divides areas by their uses, in ascending order. Where claims overlap, the earlier one counts. Areas without resident memory are left
/// out.
#[must_use]
pub fn uses(areas: &[Area], claims: &[Claim]) -> Vec<Use> {
    let parts = disjoint(claims);
    let mut uses = Vec::new();
    for area in areas.iter().filter(|area| area.resident > 0 || area.swapped > 0) {
        let mut add = |range: Range<u64>, kind, name: &str| {
            if !range.is_empty() {
                uses.push(Use {
                    range,
                    kind,
                    name: name.to_owned(),
                    is_anonymous: !area.shared && !area.name.starts_with('/'),
                    has_huge_pages: area.huge > 0,
                    has_swapped: area.swapped > 0,
                });
            }
        };
        let mut at = area.range.start;
        let first = parts.partition_point(|(range, _)| range.end <= area.range.start);
        for (range, claim) in parts[first..].iter().take_while(|(range, _)| range.start < area.range.end) {
            let claimed = range.start.max(at)..range.end.min(area.range.end);
            add(at..claimed.start, area.kind(), &area.name);
            at = claimed.end;
            add(claimed, claim.kind, &claim.name);
        }
        add(at..area.range.end, area.kind(), &area.name);
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_divide_an_area_and_the_rest_is_its_own() {
        let area = Area {
            range: 0x1000..0x9000,
            shared: false,
            name: "[heap]".to_owned(),
            resident: 0x1000,
            proportional: 0,
            swapped: 0,
            huge: 0,
        };
        let untouched = Area { range: 0xa000..0xb000, resident: 0, ..area.clone() };
        let claim = |range, kind| Claim { range, kind, name: String::new() };
        let claims = [claim(0x2000..0x4000, Kind::MallocLive), claim(0x8000..0xa000, Kind::Gc)];
        let found = uses(&[area, untouched], &claims);
        let found: Vec<_> = found.iter().map(|part| (part.range.clone(), part.kind)).collect();
        let expected = [
            (0x1000..0x2000, Kind::Brk),
            (0x2000..0x4000, Kind::MallocLive),
            (0x4000..0x8000, Kind::Brk),
            (0x8000..0x9000, Kind::Gc),
        ];
        assert_eq!(found, expected);
    }
}
