//! Chart of live bytes over time.

use jiff::tz::TimeZone;
use maud::{Markup, html};

use super::super::units;
use super::super::verdicts::approximate;
use crate::profile::{Moment, Point, Profile};

const WIDTH: f64 = 1200.;
const HEIGHT: f64 = 220.;
const LEFT: f64 = 86.;
const RIGHT: f64 = 16.;
const TOP: f64 = 12.;
const BOTTOM: f64 = 26.;

/// The chart; `None` for fewer than two points.
pub(super) fn draw(profile: &Profile, time_zone: &TimeZone) -> Option<Markup> {
    let history = &profile.history;
    let (first, last) = (history.first()?, history.last()?);
    let span = seconds(last) - seconds(first);
    if history.len() < 2 || span <= 0. {
        return None;
    }
    let highest = history.iter().map(|moment| moment.live.bytes).max().unwrap_or_default().max(1);
    let top = round_up(highest);
    let x = |moment: &Moment| LEFT + (WIDTH - LEFT - RIGHT) * (seconds(moment) - seconds(first)) / span;
    let y = |bytes: u64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ratio(bytes, top);
    let points: Vec<_> =
        history.iter().map(|moment| format!("{:.1},{:.1}", x(moment), y(moment.live.bytes))).collect();
    let (line, bottom) = (points.join(" "), HEIGHT - BOTTOM);
    let radius = if history.len() > 60 { 1.5 } else { 3. };
    let time = |moment: &Moment, format| moment.at.to_zoned(time_zone.clone()).strftime(format).to_string();
    Some(html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label="live bytes over time" {
            (grid(top, &y))
            polygon.area points={ (LEFT) "," (bottom) " " (line) " " (pixels(WIDTH - RIGHT)) "," (bottom) } {}
            polyline.line points=(line) {}
            @for moment in history {
                circle cx=(pixels(x(moment))) cy=(pixels(y(moment.live.bytes))) r=(radius) {
                    title {
                        (time(moment, "%H:%M:%S")) ": " (units::bytes(moment.live.bytes)) " in "
                        (moment.live.objects) " objects"
                    }
                }
            }
            @for (moment, anchor) in [(first, "start"), (last, "end")] {
                text x=(pixels(x(moment))) y=(HEIGHT - 8.) text-anchor=(anchor) {
                    (time(moment, "%Y-%m-%d %H:%M:%S"))
                }
            }
        }
    })
}

/// The chart of a call site, small enough for a table row.
pub(super) fn sparkline(series: &[Point]) -> Markup {
    const SIZE: (f64, f64) = (120., 28.);
    let highest = series.iter().map(|point| point.bytes).max().unwrap_or_default().max(1);
    let (Some(first), Some(last)) = (series.first(), series.last()) else { return Markup::default() };
    let span = (last.at.as_secs_f64() - first.at.as_secs_f64()).max(f64::MIN_POSITIVE);
    let points: Vec<_> = series
        .iter()
        .map(|point| {
            let x = SIZE.0 * (point.at.as_secs_f64() - first.at.as_secs_f64()) / span;
            format!("{x:.1},{:.1}", SIZE.1 - 2. - (SIZE.1 - 4.) * ratio(point.bytes, highest))
        })
        .collect();
    html! {
        svg.spark width=(SIZE.0) height=(SIZE.1) role="img" aria-label="live bytes over time" {
            polyline.line points=(points.join(" ")) {}
        }
    }
}

/// Horizontal lines with their amounts.
fn grid(top: u64, y: &impl Fn(u64) -> f64) -> Markup {
    html! {
        @for bytes in [0, top / 2, top] {
            @let at = y(bytes);
            line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(pixels(at)) y2=(pixels(at)) {}
            text x=(LEFT - 8.) y=(pixels(at + 4.)) text-anchor="end" { (approximate(bytes)) }
        }
    }
}

/// A coordinate to a tenth of a pixel.
fn pixels(coordinate: f64) -> String {
    format!("{coordinate:.1}")
}

/// The next larger of 1, 2, 4, 8 .. times 1 or 1.5: round numbers in binary units.
fn round_up(bytes: u64) -> u64 {
    let power = bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
    let between = power / 4 * 3;
    if bytes <= between { between.max(2) } else { power.max(2) }
}

#[expect(clippy::cast_precision_loss, reason = "a picture is a thousand pixels wide")]
fn seconds(moment: &Moment) -> f64 {
    moment.at.as_millisecond() as f64 / 1000.
}

#[expect(clippy::cast_precision_loss, reason = "a picture is two hundred pixels high")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Totals;
    use crate::render::sample;

    #[test]
    fn a_curve_needs_two_moments() {
        let mut profile = sample::empty_profile();
        let moment = |second: i64, bytes| Moment {
            at: jiff::Timestamp::from_second(second).unwrap(),
            live: Totals { bytes, objects: 1 },
            resident: None,
        };
        assert!(draw(&profile, &sample::time_zone()).is_none());
        profile.history = vec![moment(1, 100)];
        assert!(draw(&profile, &sample::time_zone()).is_none());
        profile.history = vec![moment(0, 0), moment(10, 1000)];
        let svg = draw(&profile, &sample::time_zone()).unwrap().into_string();
        assert!(svg.contains("86.0,194.0 1184.0,") && svg.contains(">1.0 KiB<"), "{svg}");
    }

    #[test]
    fn axes_end_at_even_numbers() {
        assert_eq!([1, 700, 1000, 1_000_000].map(round_up), [2, 768, 1024, 1_048_576]);
        assert_eq!(round_up(u64::MAX), u64::MAX);
    }
}
