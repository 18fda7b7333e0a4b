//! Instants that divide live blocks into cohorts: blocks allocated between the same two instants.

/// Maximum number of instants. After as many snapshots, at least half of them are kept, which is enough to
/// tell a line from a curve. A cohort takes 16 bytes per stack.
pub const MAX_INSTANTS: usize = 48;

/// Buckets of the lookup table: some twenty per interval, so that most blocks find their interval at once.
const BUCKETS: usize = 1024;

/// Instants of snapshots, ending with the latest, evenly thinned out over time.
///
/// Thinning only drops instants, so the cohort of a longer interval is the sum of those that it replaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    instants_ns: Vec<u64>,
    /// The last but one instant is kept if it is this far from its predecessor.
    spacing_ns: u64,
}

impl Timeline {
    /// Adds a later instant.
    pub fn cut(&mut self, now_ns: u64) {
        let instants = &mut self.instants_ns;
        if let [.., before, last] = instants[..]
            && last.saturating_sub(before) < self.spacing_ns
        {
            instants.pop();
        }
        if instants.last().is_none_or(|last| *last < now_ns) {
            instants.push(now_ns);
        }
        if instants.len() > MAX_INSTANTS {
            self.thin();
        }
    }

    /// The timeline with one more instant.
    #[must_use]
    pub(crate) fn up_to(&self, now_ns: u64) -> Self {
        let mut timeline = self.clone();
        timeline.cut(now_ns);
        timeline
    }

    /// Returns whether another instant would be kept; others are soon replaced by the next.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        let last_to_stay = match self.instants_ns[..] {
            [.., before, last] if last.saturating_sub(before) < self.spacing_ns => before,
            [.., last] => last,
            [] => return true,
        };
        now_ns.saturating_sub(last_to_stay) >= self.spacing_ns
    }

    /// Drops about every second instant.
    fn thin(&mut self) {
        let (first, last) = (self.instants_ns[0], self.instants_ns[self.instants_ns.len() - 1]);
        // Snapshots are not evenly spaced; nine tenths of the even spacing will do.
        self.spacing_ns = (last - first) / (MAX_INSTANTS as u64 / 2) / 10 * 9;
        let mut before = None;
        self.instants_ns.retain(|instant| {
            let is_far = before.is_none_or(|before| *instant - before >= self.spacing_ns);
            before = if is_far { Some(*instant) } else { before };
            is_far || *instant == last
        });
    }

    /// The instants, in nanoseconds of `CLOCK_MONOTONIC`, ascending. An interval ends at each; the first is
    /// open at its start.
    #[must_use]
    pub fn instants_ns(&self) -> &[u64] {
        &self.instants_ns
    }

    /// Builds a lookup table of intervals.
    pub(crate) fn intervals(&self) -> Intervals<'_> {
        let instants_ns = &self.instants_ns[..];
        let first = instants_ns.first().copied().unwrap_or_default();
        let span = instants_ns.last().map_or(0, |last| last - first);
        let shift = (span / BUCKETS as u64).checked_ilog2().map_or(0, |log2| log2 + 1);
        let mut interval = 0;
        let first_of = (0..BUCKETS as u64).map(|bucket| {
            let begin = first + (bucket << shift);
            while instants_ns.get(interval).is_some_and(|end| *end < begin) {
                interval += 1;
            }
            u8::try_from(interval).unwrap_or(u8::MAX)
        });
        Intervals { instants_ns, first, shift, first_of: first_of.collect() }
    }
}

/// Lookup of a time's interval.
pub(crate) struct Intervals<'a> {
    instants_ns: &'a [u64],
    first: u64,
    shift: u32,
    /// For each bucket, the first interval that overlaps it.
    first_of: Vec<u8>,
}

impl Intervals<'_> {
    /// The interval of a time; the last one for later times. `None` without instants.
    pub(crate) fn of(&self, time_ns: u64) -> Option<u16> {
        if self.instants_ns.is_empty() {
            return None;
        }
        if time_ns <= self.first {
            return Some(0);
        }
        let bucket = usize::try_from((time_ns - self.first) >> self.shift).unwrap_or(BUCKETS);
        let first = usize::from(self.first_of[bucket.min(BUCKETS - 1)]);
        let mut interval = first.min(self.instants_ns.len().saturating_sub(1));
        while interval + 1 < self.instants_ns.len() && self.instants_ns[interval] < time_ns {
            interval += 1;
        }
        u16::try_from(interval).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_long_timeline_stays_even_and_ends_at_the_latest_snapshot() {
        let mut timeline = Timeline::default();
        for second in 1..=10_000_u64 {
            timeline.cut(second * 1_000_000_000);
            assert!(timeline.instants_ns().len() <= MAX_INSTANTS);
            assert_eq!(timeline.instants_ns().last(), Some(&(second * 1_000_000_000)));
        }
        let instants = timeline.instants_ns();
        assert!(instants.len() > MAX_INSTANTS / 2, "{}", instants.len());
        let gaps: Vec<_> = instants.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let longest = *gaps.iter().max().unwrap();
        assert!(gaps[..gaps.len() - 1].iter().all(|gap| *gap * 3 >= longest), "{gaps:?}");
    }

    proptest! {
        #[test]
        fn the_interval_of_a_time_is_the_one_that_ends_at_or_after_it(
            gaps in prop::collection::vec(0..1_u64 << 40, 1..200),
            times in prop::collection::vec(0..1_u64 << 47, 50),
        ) {
            let mut timeline = Timeline::default();
            let mut now = 0;
            for gap in gaps {
                now += gap;
                timeline.cut(now);
            }
            let intervals = timeline.intervals();
            let ends = timeline.instants_ns();
            for time in times.into_iter().chain(ends.iter().copied()) {
                let expected = ends.partition_point(|end| *end < time).min(ends.len() - 1);
                prop_assert_eq!(intervals.of(time).map(usize::from), Some(expected));
            }
        }
    }
}
