//! Rows: every resident page counted once.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;

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
    for area in areas {
        let mut left = area.resident;
        let overlaps =
            |claim: &&Claim| claim.range.start < area.range.end && area.range.start < claim.range.end;
        let claimed: Vec<&Claim> = claims.iter().filter(overlaps).collect();
        if left > 0 && !claimed.is_empty() {
            states.clear();
            pages.states(area.range.clone(), &mut states)?;
        } else {
            states.clear();
        }
        let mut page = area.range.start;
        for state in &states {
            let owner = claimed.iter().find(|claim| claim.range.contains(&page));
            page += PAGE;
            if let Some(claim) = owner
                && *state == PageState::Resident
                && left >= PAGE
            {
                *sums.entry((claim.kind, claim.name.as_str())).or_default() += PAGE;
                left -= PAGE;
            }
        }
        *sums.entry((area.kind(), area.name.as_str())).or_default() += left;
    }
    let sums = sums.into_iter().filter(|(_, resident)| *resident > 0);
    let mut rows: Vec<Row> =
        sums.map(|((kind, name), resident)| Row { kind, name: name.to_owned(), resident }).collect();
    rows.sort_by_key(|row| Reverse(row.resident));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    struct AllResident;

    impl Pages for AllResident {
        fn states(&self, range: Range<u64>, into: &mut Vec<PageState>) -> io::Result<()> {
            into.extend((range.start / PAGE..range.end / PAGE).map(|_| PageState::Resident));
            Ok(())
        }
    }

    fn anonymous(range: Range<u64>, resident: u64) -> Area {
        Area { range, shared: false, name: String::new(), resident, proportional: resident, swapped: 0 }
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
    fn pages_that_appear_during_the_scan_do_not_exceed_smaps() {
        let claims = [claim(0x1000..0x6000, Kind::Gc)];
        assert_eq!(bytes(anonymous(0x1000..0x7000, 0x2000), &claims), [(Kind::Gc, 0x2000)]);
    }
}
