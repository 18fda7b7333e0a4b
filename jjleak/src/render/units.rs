//! Formats of figures.

use std::time::Duration;

/// `1.5 MiB`; `None` below 1 KiB, where bytes are as readable.
pub(crate) fn humane_bytes(bytes: u64) -> Option<String> {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return None;
    }
    let mut value = ratio(bytes, 1024);
    let mut unit = 0;
    // 1023.95 would print as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    Some(format!("{value:.1} {}", UNITS[unit]))
}

/// `1536000 bytes (1.5 MiB)`.
pub(super) fn bytes(bytes: u64) -> String {
    match humane_bytes(bytes) {
        Some(humane) => format!("{bytes} bytes ({humane})"),
        None => format!("{bytes} bytes"),
    }
}

/// ` over 4 min 12 s`, or nothing for a profile without a duration.
pub(super) fn over(elapsed: Duration) -> String {
    if elapsed.is_zero() { String::new() } else { format!(" over {}", duration(elapsed)) }
}

/// The two leading units of a duration: `0.3 s`, `59.9 s`, `4 min 12 s`, `3 h 5 min`, `9 d 0 h`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    if days > 0 {
        format!("{days} d {} h", hours % 24)
    } else if hours > 0 {
        format!("{hours} h {} min", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes} min {} s", seconds % 60)
    } else {
        format!("{seconds}.{} s", duration.subsec_millis() / 100)
    }
}

/// `1,536,000`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `part` as a percentage of `whole`; 0 if `whole` is 0.
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * ratio(part, whole) }
}

#[expect(clippy::cast_precision_loss, reason = "printed with four digits at most")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_get_a_unit_that_keeps_them_below_1024() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(1536), "1536 bytes (1.5 KiB)");
        assert_eq!(bytes(1_048_575), "1048575 bytes (1.0 MiB)");
        assert_eq!(bytes(u64::MAX), "18446744073709551615 bytes (16.0 EiB)");
    }

    #[test]
    fn durations_keep_their_two_leading_units() {
        let show = |millis| duration(Duration::from_millis(millis));
        assert_eq!(show(0), "0.0 s");
        assert_eq!(show(59_999), "59.9 s");
        assert_eq!(show(252_000), "4 min 12 s");
        assert_eq!(show(11_100_000), "3 h 5 min");
        assert_eq!(show(777_600_000), "9 d 0 h");
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_536_000].map(grouped), ["0", "999", "1,000", "1,536,000"]);
    }

    #[test]
    fn per_cent_of_nothing_is_nothing() {
        assert!(percent(0, 0).abs() < f64::EPSILON);
        assert!((percent(1, 4) - 25.0).abs() < f64::EPSILON);
    }
}
