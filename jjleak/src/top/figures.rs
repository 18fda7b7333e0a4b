//! Compact formats for figures.

use std::time::Duration;

use crate::render::{grouped, humane_bytes};

const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// `5.1M`, `412K`, `1023`: four characters at most, in units of 1024 bytes.
pub(super) fn short_bytes(bytes: u64) -> String {
    short(bytes, 1024.)
}

/// `8075`, `10.5k`, `1.2M`: five characters at most.
pub(super) fn short_count(count: u64) -> String {
    if count < 10_000 { count.to_string() } else { short(count, 1000.).replace('K', "k") }
}

#[expect(clippy::cast_precision_loss, reason = "printed with four digits at most")]
fn short(number: u64, base: f64) -> String {
    let mut value = number as f64;
    if value < base {
        return number.to_string();
    }
    let mut unit = 0;
    value /= base;
    // 9.96 would print as 10.0, and 1023.5 as 1024.
    while value >= base - 0.5 && unit + 1 < UNITS.len() {
        value /= base;
        unit += 1;
    }
    let unit = UNITS[unit];
    if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

/// Exact bytes, with a rounded value in a larger unit: `5,296,496 bytes (5.1 MiB)`.
pub(super) fn exact_bytes(bytes: u64) -> String {
    let unit = if bytes == 1 { "byte" } else { "bytes" };
    let humane = humane_bytes(bytes).map(|humane| format!(" ({humane})")).unwrap_or_default();
    format!("{} {unit}{humane}", grouped(bytes))
}

/// `5.1 MiB`, `412 B`.
pub(super) fn bytes(bytes: u64) -> String {
    humane_bytes(bytes).unwrap_or_else(|| format!("{bytes} B"))
}

/// `1 call site`, `8,075 call sites`.
pub(super) fn counted(number: u64, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {what}{ending}", grouped(number))
}

/// A signed difference, formatted by `print`; a dot for zero.
pub(super) fn signed(difference: i64, print: impl Fn(u64) -> String) -> String {
    match difference {
        0 => "·".to_owned(),
        1.. => format!("+{}", print(difference.unsigned_abs())),
        _ => format!("-{}", print(difference.unsigned_abs())),
    }
}

/// A rate per minute, or per hour or day if it is slow: `+4.1M/min`.
pub(super) fn rate(per_second: f64, print: impl Fn(u64) -> String) -> String {
    const TIMES: [(f64, &str); 3] = [(60., "min"), (3_600., "h"), (86_400., "d")];
    let size = per_second.abs();
    let fits = TIMES.iter().find(|(seconds, _)| size * seconds >= 1.);
    let (seconds, time) = fits.copied().unwrap_or(TIMES[2]);
    let bytes = whole(size * seconds);
    match bytes {
        0 => "·".to_owned(),
        _ => format!("{}{}/{time}", if per_second < 0. { '-' } else { '+' }, print(bytes)),
    }
}

/// Rounds to a whole number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates, which is right")]
pub(super) fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// An age in at most five characters: `3.2s`, `59s`, `4m12s`, `3h05m`, `9d00h`, `400d`.
pub(super) fn short_age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..10 => format!("{seconds}.{}s", age.subsec_millis() / 100),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m{:02}s", seconds % 60),
        3_600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ if days < 10 => format!("{days}d{:02}h", hours % 24),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_figures_are_short_and_keep_two_digits() {
        let bytes = [0, 1023, 1024, 1536, 10 * 1024, 1_048_064, 5_296_496, u64::MAX].map(short_bytes);
        assert_eq!(bytes, ["0", "1023", "1.0K", "1.5K", "10K", "1.0M", "5.1M", "16E"]);
        let counts = [9_999, 10_000, 105_340, 999_999, 8_000_000_000].map(short_count);
        assert_eq!(counts, ["9999", "10k", "105k", "1.0M", "8.0G"]);
    }

    #[test]
    fn exact_figures_have_every_digit_and_a_unit_beside() {
        assert_eq!(exact_bytes(5_296_496), "5,296,496 bytes (5.1 MiB)");
        assert_eq!((exact_bytes(1), counted(1, "object")), ("1 byte".into(), "1 object".into()));
    }

    #[test]
    fn rates_use_the_shortest_unit_of_time_with_a_whole_byte() {
        let rates = [5_000_000., 100., 1., 0.02, 0.000_1, 0.].map(|a_second| rate(a_second, short_bytes));
        assert_eq!(rates, ["+286M/min", "+5.9K/min", "+60/min", "+1/min", "+9/d", "·"]);
        assert_eq!(rate(-2_048., short_bytes), "-120K/min");
    }

    #[test]
    fn ages_take_five_characters() {
        let ages = [3.25, 59.9, 252., 11_100., 777_600., 9e7];
        let ages = ages.map(|seconds| short_age(Duration::from_secs_f64(seconds)));
        assert_eq!(ages, ["3.2s", "59s", "4m12s", "3h05m", "9d00h", "1041d"]);
    }
}
