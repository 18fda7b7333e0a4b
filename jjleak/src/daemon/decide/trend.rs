//! History of a process's resident memory at several time scales, each with enough points to detect growth.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::analyze::{RISE_POINTS, Rise, rise};

/// Points per scale.
const POINTS: usize = 64;
const _: () = assert!(POINTS >= RISE_POINTS);
/// Number of points that make one point of the next scale.
const FACTOR: u32 = 4;
/// Number of scales. With scans every ten seconds, they span from eleven minutes to 30 days.
const SCALES: usize = 7;

/// Time in seconds, and bytes.
type Point = (f64, f64);

/// History of a number of bytes, bounded to 7 KiB.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Points", into = "Points")]
pub struct MemoryTrend {
    scales: [Scale; SCALES],
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Scale {
    points: VecDeque<Point>,
    /// Minimum and number of the points that will make the next point of the next scale.
    pending: Option<(Point, u32)>,
    rise: Option<Rise>,
}

impl MemoryTrend {
    /// Records the current value.
    #[expect(clippy::cast_precision_loss, reason = "memory is less than 2^53 bytes")]
    pub fn record(&mut self, now: Duration, bytes: u64) {
        let mut point = (now.as_secs_f64(), bytes as f64);
        for scale in &mut self.scales {
            let Some(next) = scale.record(point) else { break };
            point = next;
        }
    }

    /// Growth at each scale where it persists: it does not slow down, and continues in the newest quarter of the points. Shortest
    /// scale first.
    pub fn current(&self) -> impl Iterator<Item = Rise> {
        let current = self.scales.iter().filter(|scale| scale.is_ongoing()).filter_map(|scale| scale.rise);
        current.filter(|rise| !rise.slows)
    }

    /// Current growth in bytes per second, the maximum of all scales; 0 without growth. The newest points of long scales are old
    /// and show the pace of weeks, so a leak that has just begun shows at a short scale.
    #[must_use]
    pub fn growth(&self) -> f64 {
        self.current().map(|rise| rise.rate.per_second).fold(0., f64::max)
    }

    /// A limited number of points for display: those of the shortest scale that covers all the time, oldest first.
    #[must_use]
    pub fn points(&self) -> Vec<(f64, f64)> {
        let first = |scale: &Scale| scale.points.front().map_or(f64::INFINITY, |point| point.0);
        let oldest = self.scales.iter().map(first).fold(f64::INFINITY, f64::min);
        let whole = self.scales.iter().find(|scale| first(scale) <= oldest);
        whole.map(|scale| scale.points.iter().copied().collect()).unwrap_or_default()
    }
}

impl Scale {
    /// Returns true if growth has continued recently: from one half of the newest quarter to the other, at half its rate or more.
    fn is_ongoing(&self) -> bool {
        let Some(rise) = self.rise else { return false };
        let half = self.points.len() / 8;
        let newest = || self.points.iter().rev();
        let lowest = |points: &mut dyn Iterator<Item = &Point>| {
            points.map(|point| point.1).fold(f64::INFINITY, f64::min)
        };
        let (late, early) = (lowest(&mut newest().take(half)), lowest(&mut newest().skip(half).take(half)));
        let times = (newest().next(), newest().nth(half));
        let (Some((end, _)), Some((begin, _))) = times else { return false };
        late - early >= 0.5 * rise.rate.per_second * (end - begin)
    }

    /// Records a point; returns a point for the next scale when due, with the minimum, because troughs reveal growth.
    fn record(&mut self, point: Point) -> Option<Point> {
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        self.judge();
        let (lowest, count) =
            self.pending.map_or((point.1, 1), |(lowest, count)| (lowest.1.min(point.1), count + 1));
        if count == FACTOR {
            self.pending = None;
            return Some((point.0, lowest));
        }
        self.pending = Some(((point.0, lowest), count));
        None
    }

    fn judge(&mut self) {
        self.rise = rise(self.points.make_contiguous());
    }
}

/// Serialized form, by scale: its points, and the pending one.
#[derive(Serialize, Deserialize)]
struct Points(Vec<WrittenScale>);

type WrittenScale = (Vec<Written>, Option<(Written, u32)>);

/// Serialized point: tenths of a second, and bytes.
type Written = (u64, u64);

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "neither is negative, nor has more than 53 bits"
)]
fn written(point: Point) -> Written {
    ((point.0 * 10.).round() as u64, point.1 as u64)
}

#[expect(clippy::cast_precision_loss, reason = "tenths of seconds, and memory, are less than 2^53")]
fn read((tenths, bytes): Written) -> Point {
    (tenths as f64 / 10., bytes as f64)
}

impl From<MemoryTrend> for Points {
    fn from(trend: MemoryTrend) -> Self {
        let scale = |scale: &Scale| {
            let pending = scale.pending.map(|(point, count)| (written(point), count));
            (scale.points.iter().copied().map(written).collect(), pending)
        };
        Self(trend.scales.iter().map(scale).collect())
    }
}

/// Sanitizes input of other versions: limits the number of points, and requires increasing times.
impl From<Points> for MemoryTrend {
    fn from(points: Points) -> Self {
        let mut trend = Self::default();
        for (scale, (points, pending)) in trend.scales.iter_mut().zip(points.0) {
            for point in points.into_iter().rev().take(POINTS).rev().map(read) {
                if scale.points.back().is_none_or(|last| last.0 < point.0) {
                    scale.points.push_back(point);
                }
            }
            scale.pending =
                pending.map(|(point, count)| (read(point), count)).filter(|(_, count)| *count < FACTOR);
            scale.judge();
        }
        trend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// History of a value over scans ten seconds apart.
    fn trend(count: u64, of: impl Fn(u64) -> u64) -> MemoryTrend {
        let mut trend = MemoryTrend::default();
        (0..count).for_each(|index| trend.record(Duration::from_secs(10 * index), of(index)));
        trend
    }

    #[test]
    fn slow_growth_beneath_a_daily_swing_shows_at_a_long_scale() {
        let day = 8640;
        let swing = |index: u64| if index % day < day / 2 { 400 << 20 } else { 0 };
        let trend = trend(10 * day, |index| (1 << 30) + swing(index) + index * 1000);
        let seconds: Vec<_> = trend.current().map(|rise| rise.seconds).collect();
        assert!(seconds.iter().any(|seconds| *seconds > 3. * 86_400.), "{seconds:?}");
    }

    #[test]
    fn a_steady_value_does_not_rise_and_takes_bounded_space() {
        let trend = trend(50_000, |index| (1 << 30) + (index % 7) * 4096);
        assert_eq!(trend.current().count(), 0);
        assert!(trend.scales.iter().all(|scale| scale.points.len() <= POINTS));
        assert!(trend.points()[0].0 < 50_000.);
    }

    #[test]
    fn a_fast_leak_after_a_slow_drift_grows_at_its_own_pace() {
        let day = 8640;
        let drift = |index: u64| (1 << 30) + index * 1000;
        let slow = trend(10 * day, drift).growth();
        assert!((50. ..200.).contains(&slow), "{slow}");
        let fast =
            trend(10 * day + 60, |index| drift(index) + index.saturating_sub(10 * day) * (10 << 20)).growth();
        assert!((0.8e6..1.3e6).contains(&fast), "{fast}");
    }

    #[test]
    fn growth_that_has_stopped_is_zero() {
        let hour = 360;
        let of = |count| trend(count, |index| (1 << 30) + index.min(2 * hour) * (1 << 20)).growth();
        assert!((0.9e5..1.2e5).contains(&of(2 * hour)), "{}", of(2 * hour));
        assert!(of(3 * hour).abs() < f64::EPSILON);
    }

    #[test]
    fn a_restored_history_continues_unchanged() {
        let of = |index: u64| (1 << 30) + index * 10_000 + index % 7 * 4096;
        let whole = trend(5000, of);
        let mut read: MemoryTrend =
            serde_json::from_str(&serde_json::to_string(&trend(3000, of)).unwrap()).unwrap();
        assert_eq!(read, trend(3000, of));
        (3000..5000).for_each(|index| read.record(Duration::from_secs(10 * index), of(index)));
        assert_eq!(read, whole);
    }

    #[test]
    fn invalid_input_is_sanitized() {
        let many: Vec<(u64, u64)> = (0..200).map(|number| (number % 150, number)).collect();
        let text = serde_json::to_string(&vec![(many, Some(((1, 1), 99))); 20]).unwrap();
        let read: MemoryTrend = serde_json::from_str(&text).unwrap();
        for scale in &read.scales {
            assert!(scale.points.len() <= POINTS && scale.pending.is_none());
            assert!(scale.points.iter().map(|point| point.0).is_sorted());
        }
    }

    #[test]
    fn growth_is_detected_as_soon_as_there_are_enough_points() {
        let rises = |count| trend(count, |index| (1 << 30) + index * (1 << 20)).current().count();
        assert_eq!((rises(RISE_POINTS as u64 - 1), rises(RISE_POINTS as u64)), (0, 1));
    }
}
