//! Rows: every resident page counted once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use super::glibc::{PageState, Pages};
use super::{Area, Claim, Kind};

/// Size of a page on x86-64.
const PAGE: u64 = 4096;

/// Resident memory of one use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Use.
    pub kind: Kind,
    /// Name that its owner or the kernel gives it; may be empty.
    pub name: String,
    /// Resident bytes.
    pub resident: u64,
}

/// Assigns the resident memory of areas to rows, the largest first. Where claims overlap, the earlier one counts.
///
/// The rows add up to the resident memory of the areas, even if pages come and go between the two reads: claims get no more than
/// that sum, and the rest belongs to the area.
///
/// # Errors
///
/// The states of the pages cannot be read.
pub fn rows(areas: &[Area], claims: &[Claim], pages: &impl Pages) -> io::Result<Vec<Row>> {
    let mut sums: BTreeMap<(Kind, &str), u64> = BTreeMap::new();
    let mut states = Vec::new();
    let parts = disjoint(claims);
    for area in areas {
        let mut left = area.resident;
        let first = parts.partition_point(|(range, _)| range.end <= area.range.start);
        for (range, claim) in parts[first..].iter().take_while(|(range, _)| range.start < area.range.end) {
            if left == 0 {
                break;
            }
            // All of the area's pages are the claim's: their number is known.
            if range.start <= area.range.start && range.end >= area.range.end {
                *sums.entry((claim.kind, claim.name.as_str())).or_default() += left;
                left = 0;
                break;
            }
            states.clear();
            let claimed = range.start.max(area.range.start)..range.end.min(area.range.end);
            pages.states(claimed, &mut states)?;
            let resident = states.iter().filter(|state| **state == PageState::Resident).count() as u64;
            let bytes = (resident * PAGE).min(left);
            *sums.entry((claim.kind, claim.name.as_str())).or_default() += bytes;
            left -= bytes;
        }
        *sums.entry((area.kind(), area.name.as_str())).or_default() += left;
    }
    let sums = sums.into_iter().filter(|(_, resident)| *resident > 0);
    let mut rows: Vec<Row> =
        sums.map(|((kind, name), resident)| Row { kind, name: name.to_owned(), resident }).collect();
    rows.sort_by_key(|row| Reverse(row.resident));
    Ok(rows)
}

/// Parts of the claimed addresses in ascending order, each with the earliest claim on it.
pub(super) fn disjoint(claims: &[Claim]) -> Vec<(Range<u64>, &Claim)> {
    let mut edges: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * claims.len());
    for (index, claim) in claims.iter().enumerate().filter(|(_, claim)| !claim.range.is_empty()) {
        edges.push((claim.range.start, true, index));
        edges.push((claim.range.end, false, index));
    }
    edges.sort_unstable();
    let mut parts: Vec<(Range<u64>, &Claim)> = Vec::new();
    let (mut open, mut at) = (BTreeSet::new(), 0);
    for (address, begins, index) in edges {
        if let Some(owner) = open.first().filter(|_| at < address) {
            parts.push((at..address, &claims[*owner]));
        }
        if begins {
            open.insert(index);
        } else {
            open.remove(&index);
        }
        at = address;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    struct AllResident;

    impl Pages for AllResident {
        fn states(&self, range: Range<u64>, into: &mut Vec<PageState>) -> io::Result<()> {
            into.extend((range.start / PAGE..range.end / PAGE).map(|_| PageState::Resident));
            Ok(())
        }
    }

    fn anonymous(range: Range<u64>, resident: u64) -> Area {
        Area {
            range,
            shared: false,
            name: String::new(),
            resident,
            proportional: resident,
            swapped: 0,
            huge: 0,
        }
    }

    fn claim(range: Range<u64>, kind: Kind) -> Claim {
        Claim { range, kind, name: String::new() }
    }

    fn bytes(area: Area, claims: &[Claim]) -> Vec<(Kind, u64)> {
        rows(&[area], claims, &AllResident).unwrap().iter().map(|row| (row.kind, row.resident)).collect()
    }

    #[test]
    fn a_mapping_is_split_between_claims_and_the_rest() {
        let claims = [claim(0x1000..0x3000, Kind::JavaHeap), claim(0x2000..0x4000, Kind::Metaspace)];
        let found = bytes(anonymous(0x1000..0x7000, 0x6000), &claims);
        assert_eq!(found, [(Kind::Anonymous, 0x3000), (Kind::JavaHeap, 0x2000), (Kind::Metaspace, 0x1000)]);
    }

    #[test]
    fn a_thousand_claims_in_one_mapping_are_counted_once_each_and_the_earliest_wins() {
        let of_chunk = |chunk: u64| claim(0x2000 * chunk..0x2000 * chunk + 0x1000, Kind::MallocLive);
        let mut claims: Vec<_> = (1..=1000).map(of_chunk).collect();
        claims.push(claim(0..0x3e9_000, Kind::Gc));
        let found = bytes(anonymous(0..0x800_000, 0x800_000), &claims);
        let all = 0x3e9_000 / 0x2000 * 0x1000;
        assert_eq!(found[0], (Kind::MallocLive, 1000 * 0x1000));
        assert!(found.contains(&(Kind::Gc, 0x3e9_000 - all)), "{found:?}");
    }

    #[test]
    fn pages_that_appear_during_the_scan_do_not_exceed_smaps() {
        let claims = [claim(0x1000..0x6000, Kind::Gc)];
        assert_eq!(bytes(anonymous(0x1000..0x7000, 0x2000), &claims), [(Kind::Gc, 0x2000)]);
    }
}
