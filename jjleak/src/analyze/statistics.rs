//! Robust estimates of growth from few figures.

use crate::profile::Rate;

/// Student's t quantiles for two-sided 95 % intervals, by degrees of freedom, from 1 on.
const T_QUANTILES: [f64; 15] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
];

/// Growth in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Batch {
    /// In seconds.
    pub(super) duration: f64,
    /// In bytes.
    pub(super) growth: f64,
}

impl Batch {
    pub(super) fn rate(self) -> f64 {
        if self.duration > 0. { self.growth / self.duration } else { 0. }
    }
}

/// Growth rate of consecutive batches: the median slope between any two points of the cumulative sum
/// (Theil-Sen), with an interval from the spread of the batches' own rates. Batches are long, so correlation
/// within one does not matter; correlation between consecutive ones widens the interval. `None` with fewer
/// than three batches.
pub(super) fn growth(batches: &[Batch]) -> Option<Rate> {
    if batches.len() < 3 {
        return None;
    }
    let per_second = median_slope(batches);
    let count = real(batches.len());
    let rates: Vec<_> = batches.iter().map(|batch| batch.rate()).collect();
    let mean = rates.iter().sum::<f64>() / count;
    let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (count - 1.);
    let correlation = autocorrelation(&rates, mean).clamp(0., MAX_CORRELATION);
    let error = (variance / count * (1. + correlation) / (1. - correlation)).sqrt();
    let quantile = T_QUANTILES[(batches.len() - 2).min(T_QUANTILES.len() - 1)];
    Some(Rate { per_second, low: per_second - quantile * error, high: per_second + quantile * error })
}

/// Few batches show little of their correlation; beyond this bound, the interval is meaningless anyway.
const MAX_CORRELATION: f64 = 0.8;

fn autocorrelation(rates: &[f64], mean: f64) -> f64 {
    let product = |(a, b): (f64, f64)| (a - mean) * (b - mean);
    let covariance: f64 = rates.windows(2).map(|pair| product((pair[0], pair[1]))).sum();
    let variance: f64 = rates.iter().map(|rate| product((*rate, *rate))).sum();
    if variance > 0. { covariance / variance } else { 0. }
}

fn median_slope(batches: &[Batch]) -> f64 {
    let mut points = vec![(0., 0.)];
    for batch in batches {
        let (time, sum) = points[points.len() - 1];
        points.push((time + batch.duration, sum + batch.growth));
    }
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (index, (time, sum)) in points.iter().enumerate() {
        let later = points[index + 1..].iter().filter(|(later, _)| later > time);
        slopes.extend(later.map(|(later, more)| (more - sum) / (later - time)));
    }
    median(&mut slopes)
}

/// The median; 0 for an empty slice.
pub(super) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    match figures {
        [] => 0.,
        _ if figures.len() % 2 == 1 => figures[figures.len() / 2],
        _ => f64::midpoint(figures[figures.len() / 2 - 1], figures[figures.len() / 2]),
    }
}

/// Kendall's tau: 1 if each figure is larger than those before it, -1 if each is smaller; 0 with fewer than
/// two.
pub(super) fn trend(figures: &[f64]) -> f64 {
    let mut sum = 0.;
    for (index, earlier) in figures.iter().enumerate() {
        for later in &figures[index + 1..] {
            sum += if later > earlier {
                1.
            } else if later < earlier {
                -1.
            } else {
                0.
            };
        }
    }
    let pairs = real(figures.len()) * (real(figures.len()) - 1.) / 2.;
    if pairs > 0. { sum / pairs } else { 0. }
}

/// Student's t of the figures' linear trend: negative if they decline, huge if they lie on a line.
pub(super) fn decline(figures: &[f64]) -> f64 {
    let count = real(figures.len());
    let middle = (count - 1.) / 2.;
    let mean = figures.iter().sum::<f64>() / count.max(1.);
    let (mut both, mut places, mut spread) = (0., 0., 0.);
    for (index, figure) in figures.iter().enumerate() {
        let place = real(index) - middle;
        both += place * (figure - mean);
        places += place * place;
        spread += (figure - mean).powi(2);
    }
    if places * spread <= 0. || count < 3. {
        return 0.;
    }
    let correlation = both / (places * spread).sqrt();
    correlation * ((count - 2.) / (1. - correlation * correlation).max(f64::EPSILON)).sqrt()
}

/// A count as a float.
#[expect(clippy::cast_precision_loss, reason = "estimates have no use for more than 53 bits")]
pub(super) const fn real(count: usize) -> f64 {
    count as f64
}

/// Bytes or objects as a float.
#[expect(clippy::cast_precision_loss, reason = "estimates have no use for more than 53 bits")]
pub(super) const fn figure(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(growths: &[f64]) -> Vec<Batch> {
        growths.iter().map(|growth| Batch { duration: 2., growth: *growth }).collect()
    }

    #[test]
    fn even_growth_is_certain() {
        let rate = growth(&batches(&[10.; 6])).unwrap();
        assert_eq!((rate.per_second, rate.low, rate.high), (5., 5., 5.));
    }

    #[test]
    fn one_jump_hardly_moves_the_estimate_and_widens_the_interval() {
        let rate = growth(&batches(&[10., 10., 1_000., 10., 10., 10., 10., 10.])).unwrap();
        assert!((5. ..70.).contains(&rate.per_second), "{rate:?}");
        assert!(rate.low < 0. && rate.high > 100., "{rate:?}");
    }

    #[test]
    fn correlated_batches_say_less_than_others() {
        let width = |growths: &[f64]| growth(&batches(growths)).map(|rate| rate.high - rate.low).unwrap();
        assert!(width(&[1., 1., 1., 1., 3., 3., 3., 3.]) > 1.5 * width(&[1., 3., 1., 3., 3., 1., 3., 1.]));
    }

    #[test]
    fn too_few_batches_say_nothing() {
        assert_eq!(growth(&batches(&[1., 2.])), None);
        assert_eq!(growth(&[]), None);
    }

    #[test]
    fn a_trend_is_between_always_up_and_always_down() {
        let trends = [&[1., 2., 3.][..], &[3., 2., 1.], &[2., 2., 2.], &[1.]].map(trend);
        assert_eq!(trends.map(|trend| trend.to_string()), ["1", "-1", "0", "0"]);
    }
}
