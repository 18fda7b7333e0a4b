//! Bounded values. A value out of bounds is rejected with a description of what is allowed.

use std::fmt;
use std::time::Duration;

use regex::Regex;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Units of time, in seconds.
const TIMES: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
/// Units of memory, in bytes.
const SIZES: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
/// Disables an [`Every`].
const OFF: &str = "off";
/// Disables an [`OverheadLimit`].
const UNLIMITED: &str = "unlimited";
/// Bounds of `--max-overhead` in per cent: even a program that only allocates becomes at most a hundred times slower.
const BOUNDS: [f64; 2] = [0.1, 100_000.];

/// A duration within bounds in seconds, written as `"90s"`, `"5m"`, `"6h"` or `"30d"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span<const LEAST: u64, const MOST: u64>(pub Duration);

/// A [`Span`], or `"off"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Every<const LEAST: u64, const MOST: u64>(pub Option<Duration>);

/// Bytes, written as `"512MiB"`, `"1GiB"` or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size<const LEAST: u64, const MOST: u64>(pub u64);

/// A whole number within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count<const LEAST: u64, const MOST: u64>(pub usize);

/// A percentage from 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percent(pub f64);

/// A share in per cent, written as `"5%"`, or `"unlimited"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OverheadLimit(pub Option<f64>);

/// A regular expression.
#[derive(Debug, Clone)]
pub struct Pattern(pub Regex);

/// Text or a number, as written in the file, so that error messages can say what is allowed.
pub(super) enum Written {
    Text(String),
    Whole(i64),
    Fraction(f64),
}

impl Written {
    /// Reads text or a number; `allowed` describes what is allowed in error messages.
    pub(super) fn read<'de, D: Deserializer<'de>>(from: D, allowed: &str) -> Result<Self, D::Error> {
        from.deserialize_any(Allowed(allowed))
    }
}

/// Reads text; `allowed` describes what is allowed in error messages.
fn text<'de, D: Deserializer<'de>>(from: D, allowed: &str) -> Result<String, D::Error> {
    from.deserialize_str(Text(allowed))
}

struct Text<'a>(&'a str);

impl Visitor<'_> for Text<'_> {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

impl fmt::Display for Written {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => formatter.write_str(text),
            Self::Whole(number) => number.fmt(formatter),
            Self::Fraction(number) => number.fmt(formatter),
        }
    }
}

struct Allowed<'a>(&'a str);

impl Visitor<'_> for Allowed<'_> {
    type Value = Written;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Written, E> {
        Ok(Written::Text(text.to_owned()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Written, E> {
        Ok(Written::Whole(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Written, E> {
        // Larger numbers exceed every bound as well.
        Ok(Written::Whole(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Written, E> {
        Ok(Written::Fraction(number))
    }
}

/// Parses a number with its unit into the smallest unit; `None` if it is malformed or too large.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Formats a number in the largest unit that needs no fraction.
fn in_words(number: u64, units: &[(&str, u64)]) -> String {
    let fits = |(_, factor): &&(&str, u64)| number > 0 && number.is_multiple_of(*factor);
    let (name, factor) = units.iter().rev().find(fits).unwrap_or(&units[0]);
    format!("{}{name}", number / factor)
}

fn time<E: Error>(text: &str, least: u64, most: u64, or: &str) -> Result<Duration, E> {
    let seconds = with_unit(text, &TIMES).filter(|seconds| (least..=most).contains(seconds));
    let [least, most] = [least, most].map(|bound| in_words(bound, &TIMES));
    let allowed = || {
        E::custom(format!(
            "`{text}` is not a duration from {least} to {most}, such as \"90s\", \"5m\", \"6h\" or \"30d\"{or}"
        ))
    };
    seconds.map(Duration::from_secs).ok_or_else(allowed)
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Span<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Written::read(from, "a duration, such as \"90s\", \"5m\", \"6h\" or \"30d\"")?.to_string();
        time(&text, LEAST, MOST, "").map(Self)
    }
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Every<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Written::read(from, "a duration, such as \"6h\" or \"30d\", or \"off\"")?.to_string();
        if text == OFF {
            Ok(Self(None))
        } else {
            time(&text, LEAST, MOST, ", or \"off\"").map(|time| Self(Some(time)))
        }
    }
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Size<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = Written::read(from, "a size, such as \"512MiB\", or a number of bytes")?;
        let bytes = match &written {
            Written::Whole(bytes) => u64::try_from(*bytes).ok(),
            Written::Text(text) => with_unit(text, &SIZES),
            Written::Fraction(_) => None,
        };
        let [least, most] = [LEAST, MOST].map(|bound| in_words(bound, &SIZES));
        let allowed = || {
            D::Error::custom(format!(
                "`{written}` is not a size from {least} to {most}, such as \"512MiB\", \"1GiB\" or a number of bytes"
            ))
        };
        bytes.filter(|bytes| (LEAST..=MOST).contains(bytes)).map(Self).ok_or_else(allowed)
    }
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Count<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = Written::read(from, &format!("a whole number from {LEAST} to {MOST}"))?;
        let number = if let Written::Whole(number) = written { u64::try_from(number).ok() } else { None };
        let within = number.filter(|number| (LEAST..=MOST).contains(number));
        let allowed = || D::Error::custom(format!("{written} is not a whole number from {LEAST} to {MOST}"));
        within.and_then(|number| usize::try_from(number).ok()).map(Self).ok_or_else(allowed)
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = Written::read(from, "a percentage from 0 to 100")?;
        let number = match &written {
            Written::Whole(number) => i32::try_from(*number).ok().map(f64::from),
            Written::Fraction(number) => Some(*number),
            Written::Text(_) => None,
        };
        let allowed = || D::Error::custom(format!("{written} is not a percentage from 0 to 100"));
        number.filter(|number| (0. ..=100.).contains(number)).map(Self).ok_or_else(allowed)
    }
}

impl<'de> Deserialize<'de> for OverheadLimit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Written::read(from, "a share, such as \"5%\", or \"unlimited\"")?.to_string();
        if text == UNLIMITED {
            return Ok(Self(None));
        }
        let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
        let [least, most] = BOUNDS;
        let allowed = || {
            D::Error::custom(format!(
                "`{text}` is not a share from \"{least}%\" to \"{most}%\", nor \"unlimited\""
            ))
        };
        percent
            .filter(|percent| (least..=most).contains(percent))
            .map(|at| Self(Some(at)))
            .ok_or_else(allowed)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = text(from, "a regular expression")?;
        let why = |error: regex::Error| {
            let reason = error.to_string();
            let last = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
            D::Error::custom(format!("`{text}` is not a regular expression: {last}"))
        };
        Regex::new(&text).map(Self).map_err(why)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl<const LEAST: u64, const MOST: u64> Serialize for Span<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.serialize_str(&in_words(self.0.as_secs(), &TIMES))
    }
}

impl<const LEAST: u64, const MOST: u64> Serialize for Every<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        let words = self.0.map_or_else(|| OFF.to_owned(), |time| in_words(time.as_secs(), &TIMES));
        into.serialize_str(&words)
    }
}

impl<const LEAST: u64, const MOST: u64> Serialize for Size<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.serialize_str(&in_words(self.0, &SIZES))
    }
}

impl<const LEAST: u64, const MOST: u64> Serialize for Count<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(into)
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.serialize_f64(self.0)
    }
}

impl Serialize for OverheadLimit {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.serialize_str(&self.0.map_or_else(|| UNLIMITED.to_owned(), |percent| format!("{percent}%")))
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.serialize_str(self.0.as_str())
    }
}
