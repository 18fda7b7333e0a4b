//! History of live totals and resident memory.

use jiff::Timestamp;

use super::Totals;

/// Maximum number of moments per process: as many as a curve can show.
const MAX_MOMENTS: usize = 400;

/// Live totals and resident memory at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The instant.
    pub at: Timestamp,
    /// Live bytes and objects of all stacks.
    pub live: Totals,
    /// Resident memory of the process; `None` if unknown.
    pub resident: Option<u64>,
}

/// Appends a moment. If there are too many, every second one is dropped, except the last.
pub fn remember(history: &mut Vec<Moment>, moment: Moment) {
    if history.len() >= MAX_MOMENTS {
        let mut keep = false;
        history.retain(|_| {
            keep = !keep;
            keep
        });
    }
    history.push(moment);
}

/// Minimum number of points for a rate.
const MIN_POINTS: usize = 4;

/// Growth of resident memory in bytes per second over the later half of the time: its first part is often start-up. `None` if too
/// little is known.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "memory is less than 2^53 bytes")]
pub fn resident_growth(history: &[Moment]) -> Option<f64> {
    let known = history.iter().filter_map(|moment| {
        Some((moment.at.duration_since(history[0].at).as_secs_f64(), moment.resident? as f64))
    });
    growth_of_later_half(&known.collect::<Vec<_>>())
}

/// Slope of the later half of these points: seconds and bytes.
#[expect(clippy::cast_precision_loss, reason = "a few hundred points")]
pub(crate) fn growth_of_later_half(points: &[(f64, f64)]) -> Option<f64> {
    let later = &points[points.len() / 2..];
    if later.len() < MIN_POINTS {
        return None;
    }
    let mean = |of: fn(&(f64, f64)) -> f64| later.iter().map(of).sum::<f64>() / later.len() as f64;
    let (time, bytes) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = later.iter().map(|point| (point.0 - time) * (point.1 - bytes)).sum();
    let variance: f64 = later.iter().map(|point| (point.0 - time).powi(2)).sum();
    (variance > 0.).then(|| covariance / variance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn resident_memory_grows_by_its_later_half() {
        let moment = |second: u64, resident| Moment {
            at: Timestamp::UNIX_EPOCH + Duration::from_secs(second),
            live: Totals::default(),
            resident,
        };
        let after_start = |second: u64| Some(1_000_000 + 100 * second);
        let mut history: Vec<_> = (0..16).map(|second| moment(second, after_start(second))).collect();
        history[0].resident = Some(0);
        assert!((resident_growth(&history).unwrap() - 100.).abs() < 1e-6);
        for moment in &mut history {
            moment.resident = None;
        }
        assert_eq!(resident_growth(&history), None);
        assert_eq!(resident_growth(&[]), None);
    }

    #[test]
    fn a_long_history_stays_bounded_and_keeps_its_ends() {
        let at = |second| Timestamp::UNIX_EPOCH + Duration::from_secs(second);
        let mut history = Vec::new();
        for second in 0..10_000 {
            remember(&mut history, Moment { at: at(second), live: Totals::default(), resident: None });
            assert!(history.len() <= MAX_MOMENTS);
        }
        assert_eq!((history[0].at, history[history.len() - 1].at), (at(0), at(9_999)));
        assert!(history.is_sorted_by_key(|moment| moment.at));
    }
}
