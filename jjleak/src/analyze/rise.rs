//! Growth of a quantity known only from outside, such as resident memory. It uses the same statistics as call
//! sites without ages.

use std::ops::Range;

use super::judge::{BATCHES, batches, slows_down};
use super::statistics::{Batch, growth, trend};
use crate::profile::Rate;

/// Kendall's tau of the troughs from which on the quantity grows.
const MIN_TREND: f64 = 0.5;

/// Points per batch, so that a single one does not make its trough.
const POINTS: usize = 3;

/// Minimum number of points.
pub const RISE_POINTS: usize = BATCHES * POINTS;

/// A statistically significant growth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rise {
    /// Growth from the first trough to the last.
    pub bytes: f64,
    /// Growth rate of the troughs.
    pub rate: Rate,
    /// Growth slows down.
    pub slows: bool,
    /// Observed time, in seconds.
    pub seconds: f64,
}

/// Detects growth in points of (seconds, bytes), in ascending order. Fluctuation between troughs does not
/// count. `None` without growth, or with fewer than [`RISE_POINTS`] points.
#[must_use]
pub fn rise(points: &[(f64, f64)]) -> Option<Rise> {
    if points.len() < RISE_POINTS {
        return None;
    }
    let steps: Vec<_> =
        points.windows(2).map(|pair| Batch { duration: pair[1].0 - pair[0].0, growth: 0. }).collect();
    let groups = batches(&steps, BATCHES);
    // A step ends at the point after it.
    let lowest =
        |group: &Range<usize>| group.clone().map(|step| points[step + 1].1).fold(f64::INFINITY, f64::min);
    let troughs: Vec<f64> = groups.iter().map(lowest).collect();
    let durations = groups.iter().map(|group| steps[group.clone()].iter().map(|step| step.duration).sum());
    let between: Vec<_> = durations
        .skip(1)
        .zip(troughs.windows(2))
        .map(|(duration, pair)| Batch { duration, growth: pair[1] - pair[0] })
        .collect();
    let rate = growth(&between)?;
    let paces: Vec<_> = between.iter().map(|batch| batch.rate()).collect();
    let bytes = troughs.last()? - troughs.first()?;
    let rises = trend(&troughs) >= MIN_TREND && rate.low > 0. && bytes > 0.;
    let seconds = points.last()?.0 - points.first()?.0;
    rises.then(|| Rise { bytes, rate, slows: slows_down(&paces), seconds })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn points(of: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..64).map(|step| f64::from(step) * 10.).map(|time| (time, of(time))).collect()
    }

    #[test]
    fn what_grows_evenly_rises_at_its_pace_also_beneath_noise() {
        let rise = rise(&points(|time| 1e9 + 1e5 * time + 3e5 * (time * 0.7).sin())).unwrap();
        assert!((0.9e5..1.1e5).contains(&rise.rate.per_second), "{rise:?}");
        assert!(!rise.slows && (5e7..7e7).contains(&rise.bytes), "{rise:?}");
    }

    #[test]
    fn what_goes_up_and_down_or_rose_once_does_not_rise() {
        assert_eq!(rise(&points(|time| 1e9 + 1e8 * (time * 0.05).sin())), None);
        assert_eq!(rise(&points(|time| if time < 300. { 1e9 } else { 2e9 })), None);
        assert_eq!(rise(&points(|time| 1e9 - 1e5 * time)), None);
        assert_eq!(rise(&points(|_| 0.)), None);
    }

    #[test]
    fn what_settles_slows_down() {
        let rise = rise(&points(|time| 1e9 * (1. - (-time / 200.).exp())));
        assert!(rise.is_none_or(|rise| rise.slows), "{rise:?}");
    }

    proptest! {
        #[test]
        fn no_points_make_it_panic(values in proptest::collection::vec(0u64..1 << 50, 0..80), step in 0u32..1000) {
            #[expect(clippy::cast_precision_loss, reason = "beneath 2^53")]
            let points: Vec<_> =
                (0..).zip(&values).map(|(index, value)| (f64::from(step * index), *value as f64)).collect();
            if let Some(rise) = rise(&points) {
                prop_assert!(rise.bytes > 0. && rise.rate.low > 0.);
            }
        }
    }
}
