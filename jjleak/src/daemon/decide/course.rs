//! The past of a process's resident memory, at several scales, each of which holds as many points as it takes to tell growth.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::analyze::{RISE_POINTS, Rise, rise};

/// Points of a scale.
const POINTS: usize = 64;
const _: () = assert!(POINTS >= RISE_POINTS);
/// So many points of a scale make one of the next.
const FACTOR: u32 = 4;
/// With looks ten seconds apart, the scales span from eleven minutes to 30 days.
const SCALES: usize = 7;

/// A point: when, in seconds, and bytes.
type Point = (f64, f64);

/// The past of a sum of bytes. Bounded: 7 KiB.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Points", into = "Points")]
pub struct Course {
    scales: [Scale; SCALES],
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Scale {
    points: VecDeque<Point>,
    /// Of those that will make the next scale's next point, the lowest, and how many they are.
    pending: Option<(Point, u32)>,
    rise: Option<Rise>,
}

impl Course {
    /// Takes in what there is now.
    #[expect(clippy::cast_precision_loss, reason = "memory is less than 2^53 bytes")]
    pub fn enter(&mut self, now: Duration, bytes: u64) {
        let mut point = (now.as_secs_f64(), bytes as f64);
        for scale in &mut self.scales {
            let Some(next) = scale.enter(point) else { break };
            point = next;
        }
    }

    /// Growth at each scale at which it goes on, not slowing down and also in the newest quarter of its points; the shortest
    /// scale first.
    pub fn current(&self) -> impl Iterator<Item = Rise> {
        let current = self.scales.iter().filter(|scale| scale.goes_on()).filter_map(|scale| scale.rise);
        current.filter(|rise| !rise.slows)
    }

    /// By how many bytes a second it grows now: the most that any scale tells; 0 when it does not grow. A long scale has its
    /// newest point from long ago, and tells the pace of weeks: a leak that has just begun is in a short one.
    #[must_use]
    pub fn growth(&self) -> f64 {
        self.current().map(|rise| rise.rate.per_second).fold(0., f64::max)
    }

    /// Up to so many points, for people: those of the shortest scale that spans all the time, the oldest first.
    #[must_use]
    pub fn points(&self) -> Vec<(f64, f64)> {
        let first = |scale: &Scale| scale.points.front().map_or(f64::INFINITY, |point| point.0);
        let oldest = self.scales.iter().map(first).fold(f64::INFINITY, f64::min);
        let whole = self.scales.iter().find(|scale| first(scale) <= oldest);
        whole.map(|scale| scale.points.iter().copied().collect()).unwrap_or_default()
    }
}

impl Scale {
    /// Whether its growth went on of late: from one half of the newest quarter to the other, by half of its pace at least.
    fn goes_on(&self) -> bool {
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

    /// Takes in a point; what goes on to the next scale is the lowest of several: troughs tell growth.
    fn enter(&mut self, point: Point) -> Option<Point> {
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

/// A course as it is written down: by scale, its points, and what is pending.
#[derive(Serialize, Deserialize)]
struct Points(Vec<WrittenScale>);

type WrittenScale = (Vec<Written>, Option<(Written, u32)>);

/// A point as it is written down: tenths of a second, and bytes.
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

impl From<Course> for Points {
    fn from(course: Course) -> Self {
        let scale = |scale: &Scale| {
            let pending = scale.pending.map(|(point, count)| (written(point), count));
            (scale.points.iter().copied().map(written).collect(), pending)
        };
        Self(course.scales.iter().map(scale).collect())
    }
}

/// What was not written by this version is made to fit: no more points than there may be, each later than the one before.
impl From<Points> for Course {
    fn from(points: Points) -> Self {
        let mut course = Self::default();
        for (scale, (points, pending)) in course.scales.iter_mut().zip(points.0) {
            for point in points.into_iter().rev().take(POINTS).rev().map(read) {
                if scale.points.back().is_none_or(|last| last.0 < point.0) {
                    scale.points.push_back(point);
                }
            }
            scale.pending =
                pending.map(|(point, count)| (read(point), count)).filter(|(_, count)| *count < FACTOR);
            scale.judge();
        }
        course
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes at each look, ten seconds apart.
    fn course(looks: u64, of: impl Fn(u64) -> u64) -> Course {
        let mut course = Course::default();
        (0..looks).for_each(|look| course.enter(Duration::from_secs(10 * look), of(look)));
        course
    }

    #[test]
    fn what_grows_slowly_beneath_a_daily_swing_rises_at_a_long_scale_only() {
        let day = 8640;
        let swing = |look: u64| if look % day < day / 2 { 400 << 20 } else { 0 };
        let course = course(10 * day, |look| (1 << 30) + swing(look) + look * 1000);
        let seconds: Vec<_> = course.current().map(|rise| rise.seconds).collect();
        assert!(seconds.iter().any(|seconds| *seconds > 3. * 86_400.), "{seconds:?}");
    }

    #[test]
    fn what_stays_does_not_rise_and_takes_bounded_room() {
        let course = course(50_000, |look| (1 << 30) + (look % 7) * 4096);
        assert_eq!(course.current().count(), 0);
        assert!(course.scales.iter().all(|scale| scale.points.len() <= POINTS));
        assert!(course.points()[0].0 < 50_000.);
    }

    #[test]
    fn a_fast_leak_after_a_slow_drift_grows_at_its_own_pace() {
        let day = 8640;
        let drift = |look: u64| (1 << 30) + look * 1000;
        let slow = course(10 * day, drift).growth();
        assert!((50. ..200.).contains(&slow), "{slow}");
        let fast =
            course(10 * day + 60, |look| drift(look) + look.saturating_sub(10 * day) * (10 << 20)).growth();
        assert!((0.8e6..1.3e6).contains(&fast), "{fast}");
    }

    #[test]
    fn a_growth_that_has_stopped_is_none() {
        let hour = 360;
        let of = |looks| course(looks, |look| (1 << 30) + look.min(2 * hour) * (1 << 20)).growth();
        assert!((0.9e5..1.2e5).contains(&of(2 * hour)), "{}", of(2 * hour));
        assert!(of(3 * hour).abs() < f64::EPSILON);
    }

    #[test]
    fn what_is_written_down_is_what_is_read_and_goes_on_as_if_nothing_had_been() {
        let of = |look: u64| (1 << 30) + look * 10_000 + look % 7 * 4096;
        let whole = course(5000, of);
        let mut read: Course =
            serde_json::from_str(&serde_json::to_string(&course(3000, of)).unwrap()).unwrap();
        assert_eq!(read, course(3000, of));
        (3000..5000).for_each(|look| read.enter(Duration::from_secs(10 * look), of(look)));
        assert_eq!(read, whole);
    }

    #[test]
    fn what_another_has_written_is_made_to_fit() {
        let many: Vec<(u64, u64)> = (0..200).map(|number| (number % 150, number)).collect();
        let text = serde_json::to_string(&vec![(many, Some(((1, 1), 99))); 20]).unwrap();
        let read: Course = serde_json::from_str(&text).unwrap();
        for scale in &read.scales {
            assert!(scale.points.len() <= POINTS && scale.pending.is_none());
            assert!(scale.points.iter().map(|point| point.0).is_sorted());
        }
    }

    #[test]
    fn growth_is_seen_as_soon_as_there_are_enough_points() {
        let rises = |looks| course(looks, |look| (1 << 30) + look * (1 << 20)).current().count();
        assert_eq!((rises(RISE_POINTS as u64 - 1), rises(RISE_POINTS as u64)), (0, 1));
    }
}
