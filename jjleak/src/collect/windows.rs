//! Allocations counted in windows.

use std::collections::BTreeSet;

use crate::sample_windows::{Pace, Seen, Weighted, Windows};

/// Objects and bytes, by row of the stack table.
type ByRow = Vec<(u64, u64)>;

/// The windows, and the allocations in them.
pub(super) struct WindowSums {
    windows: Windows,
    /// The open window: its start, and the sums at that time.
    running: Option<(u64, ByRow)>,
    /// Allocations in the last window, whose weight is not final.
    last: ByRow,
    /// Earlier allocations, before the first window.
    whole: Vec<(f64, f64)>,
    /// Estimates for those since, with the weights of these windows, without the slow-down.
    settled: Vec<(f64, f64)>,
}

impl WindowSums {
    /// Starts with a window that is already open: everything counts until it ends.
    pub(super) const fn new(begin_ns: u64) -> Self {
        Self {
            windows: Windows::whole_from(begin_ns),
            running: Some((begin_ns, ByRow::new())),
            last: ByRow::new(),
            whole: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// Starts at this instant, between windows.
    pub(super) fn from(begin_ns: u64) -> Self {
        Self { windows: Windows::from(begin_ns), running: None, ..Self::new(begin_ns) }
    }

    pub(super) const fn lose_frees(&mut self) {
        self.windows.lose_frees();
    }

    pub(super) const fn windows(&self) -> &Windows {
        &self.windows
    }

    pub(super) fn at(&self, now_ns: u64) -> Weighted {
        self.windows.at(now_ns)
    }

    pub(super) fn begin(&mut self, now_ns: u64, allocated: ByRow) {
        self.running = Some((now_ns, allocated));
    }

    pub(super) fn end(&mut self, now_ns: u64, stratum_end_ns: u64, pace: Pace, allocated: &[(u64, u64)]) {
        let Some((begin_ns, before)) = self.running.take() else { return };
        let weight = self.windows.settled_weight();
        let earlier = if weight > 1. { &mut self.settled } else { &mut self.whole };
        add(earlier, &self.last, weight);
        if self.windows.is_whole() {
            self.windows.end_whole(now_ns);
        } else {
            self.windows.push(begin_ns, now_ns, stratum_end_ns, pace);
        }
        // A row reused by another stack starts over.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let none = std::iter::repeat(&(0, 0));
        let rows = allocated.iter().zip(before.iter().chain(none));
        self.last = rows.map(|(now, before)| (since(now.0, before.0), since(now.1, before.1))).collect();
        let (objects, bytes) = self.last.iter().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        self.windows.add_seen(Seen { objects, bytes });
    }

    /// Drops the allocations of freed rows.
    pub(super) fn forget(&mut self, rows: &BTreeSet<u32>) {
        let before = self.running.iter_mut().map(|(_, before)| before);
        for sums in before.chain([&mut self.last]) {
            clear(sums, rows);
        }
        clear(&mut self.whole, rows);
        clear(&mut self.settled, rows);
    }

    /// Estimates of allocations by row, from the rows' current sums.
    pub(super) fn allocated(&self, rows: ByRow, now_ns: u64) -> ByRow {
        if self.windows.is_whole() {
            return rows;
        }
        let mut sampled = self.settled.clone();
        let mut estimates = self.whole.clone();
        let weight = self.windows.last_weight(now_ns);
        add(if weight > 1. { &mut sampled } else { &mut estimates }, &self.last, weight);
        let slowdown = self.windows.slowdown();
        estimates.resize(rows.len().max(sampled.len()), (0., 0.));
        for (sum, (objects, bytes)) in estimates.iter_mut().zip(&sampled) {
            sum.0 += slowdown * objects;
            sum.1 += slowdown * bytes;
        }
        estimates.truncate(rows.len());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sums of counts")]
        let whole = |(objects, bytes): (f64, f64)| (objects.round() as u64, bytes.round() as u64);
        estimates.into_iter().map(whole).collect()
    }
}

/// Logs the live part of the allocations of each window.
pub(super) fn log(windows: &Weighted, seen: &[(usize, Seen)]) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let mut lives = vec![Seen::default(); windows.len()];
    for (window, seen) in seen {
        lives[*window].objects += seen.objects;
        lives[*window].bytes += seen.bytes;
    }
    for (window, Seen { objects, bytes }) in lives.into_iter().enumerate() {
        let (begin_ns, end_ns) = windows.bounds_ns(window);
        tracing::debug!(begin_ns, end_ns, objects, bytes, "window");
    }
}

fn clear<T: Default>(sums: &mut [T], rows: &BTreeSet<u32>) {
    for row in rows {
        if let Some(sum) = sums.get_mut(*row as usize) {
            *sum = T::default();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "estimates")]
fn add(sums: &mut Vec<(f64, f64)>, rows: &[(u64, u64)], weight: f64) {
    sums.resize(sums.len().max(rows.len()), (0., 0.));
    for (sum, (objects, bytes)) in sums.iter_mut().zip(rows) {
        sum.0 += weight * *objects as f64;
        sum.1 += weight * *bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_allocated_in_windows_stands_for_the_time_around_them() {
        let mut sums = WindowSums::new(0);
        assert_eq!(sums.allocated(vec![(3, 30)], 50), [(3, 30)]);
        sums.end(100, 100, Pace::default(), &[(5, 50)]);
        // In between, a resized block counts in the kernel's sums, but not in these.
        sums.begin(150, vec![(6, 60)]);
        sums.end(160, 200, Pace::default(), &[(8, 80), (1, 4)]);
        assert_eq!(sums.allocated(vec![(9, 90), (1, 4)], 200), [(5 + 20, 50 + 200), (10, 40)]);
        sums.begin(240, vec![(9, 90), (1, 4)]);
        sums.end(260, 300, Pace::default(), &[(10, 100), (1, 4), (2, 2)]);
        assert_eq!(sums.allocated(vec![(0, 0); 3], 300), [(25 + 5, 250 + 50), (10, 40), (10, 10)]);
    }

    #[test]
    fn what_was_counted_at_first_stands_for_what_has_come_since_until_there_is_a_window() {
        let mut sums = WindowSums::new(1_000);
        sums.end(1_100, 1_100, Pace::default(), &[(5, 50)]);
        assert_eq!(sums.allocated(vec![(5, 50)], 2_000), [(50, 500)]);
        let seen = Seen { objects: 5, bytes: 50 };
        assert!(sums.at(2_000).variances(&[(0, seen)]).1.sqrt() > 400., "and nobody knows whether it does");
        sums.begin(2_000, vec![(5, 50)]);
        sums.end(2_100, 2_100, Pace::default(), &[(6, 60)]);
        assert_eq!(sums.allocated(vec![(6, 60)], 2_100), [(5 + 10, 50 + 100)]);
    }

    #[test]
    fn the_error_of_all_allocations_is_that_of_the_windows() {
        let mut sums = WindowSums::from(0);
        for window in 0..20 {
            let (begin_ns, before) = (window * 100 + 10, vec![(window * 5, window * 50)]);
            sums.begin(begin_ns, before);
            let more = if window % 2 == 0 { 4 } else { 6 };
            sums.end(
                begin_ns + 10,
                window * 100 + 100,
                Pace::default(),
                &[(window * 5 + more, window * 50 + 10 * more)],
            );
        }
        let (objects, bytes) = sums.windows().allocated_variances(2_000);
        // Estimates of strata are 40 and 60: 20 off each other, in 19 pairs.
        assert!((30. ..120.).contains(&objects.sqrt()) && (bytes / objects - 100.).abs() < 1., "{objects}");
    }

    #[test]
    fn a_row_that_another_stack_is_given_has_nothing_of_the_one_before() {
        let mut sums = WindowSums::new(0);
        sums.end(100, 100, Pace::default(), &[(5, 50), (7, 70)]);
        sums.begin(140, vec![(5, 50), (7, 70)]);
        sums.end(160, 200, Pace::default(), &[(6, 60), (8, 80)]);
        sums.begin(240, vec![(6, 60), (8, 80)]);
        sums.forget(&BTreeSet::from([0]));
        assert_eq!(sums.allocated(vec![(0, 0); 2], 200), [(0, 0), (7 + 5, 70 + 50)]);
        // The new stack has had more than the old one already.
        sums.end(260, 300, Pace::default(), &[(9, 90), (8, 80)]);
        assert_eq!(sums.allocated(vec![(0, 0); 2], 300), [(9 * 5, 90 * 5), (7 + 5, 70 + 50)]);
    }
}
