//! Sorting and filtering of rows.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use regex::{Regex, RegexBuilder};

use super::assessment::Assessment;
use super::snapshot::Row;
use crate::profile::{Profile, SharedFrame, StackProfile, Verdict};
use crate::render::Value;

/// Sort order of rows, most significant first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// By severity, then rate of growth.
    #[default]
    Verdict,
    /// By live bytes or objects, whichever is shown.
    Size,
    /// By live objects.
    Count,
    /// By change since the previous snapshot.
    Growth,
    /// By rate of growth.
    Rate,
    /// By age of the oldest live block.
    Age,
}

impl Sort {
    /// All orders, in the sequence in which the sort key cycles through them.
    pub const ALL: [Self; 6] = [Self::Verdict, Self::Size, Self::Count, Self::Growth, Self::Rate, Self::Age];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verdict => "verdict",
            Self::Size => "size",
            Self::Count => "count",
            Self::Growth => "growth",
            Self::Rate => "rate",
            Self::Age => "age",
        }
    }

    /// The order this many steps ahead, cyclically.
    pub(super) fn step(self, steps: usize) -> Self {
        Self::ALL[(self as usize + steps) % Self::ALL.len()]
    }

    /// Compares two rows.
    pub(super) fn compare(self, value: Value, a: &Row, b: &Row) -> Ordering {
        let by = |key: fn(&Row, Value) -> i128| key(b, value).cmp(&key(a, value));
        let first = match self {
            Self::Verdict => {
                let order = a.assessment.cmp(&b.assessment).then(b.rate.total_cmp(&a.rate));
                // In the first seconds, no rate is known.
                let is_early = a.assessment == Assessment::TooEarly;
                let delta = if is_early { b.delta.bytes.cmp(&a.delta.bytes) } else { Ordering::Equal };
                order.then(delta)
            }
            Self::Size => by(|row, value| i128::from(value.of(row.live))),
            Self::Count => by(|row, _| i128::from(row.live.objects)),
            Self::Growth => by(|row, value| {
                i128::from(match value {
                    Value::Bytes => row.delta.bytes,
                    Value::Objects => row.delta.objects,
                })
            }),
            Self::Rate => b.rate.total_cmp(&a.rate),
            Self::Age => b.oldest.cmp(&a.oldest),
        };
        let live = value.of(b.live).cmp(&value.of(a.live));
        // Break ties by key, so that rows do not move without a reason.
        first.then(live).then_with(|| a.key.cmp(&b.key))
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Sort {
    type Err = UnknownSort;

    fn from_str(name: &str) -> Result<Self, UnknownSort> {
        Self::ALL.into_iter().find(|sort| sort.name() == name).ok_or_else(|| UnknownSort(name.to_owned()))
    }
}

/// A name that is not a [`Sort`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown sort order `{0}`: use verdict, size, count, growth, rate or age")]
pub struct UnknownSort(String);

/// Filter of rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    text: String,
    pattern: Option<Regex>,
}

impl Filter {
    /// Matches a case-insensitive regular expression, or plain text if it is not a valid expression.
    pub(super) fn new(text: &str) -> Self {
        if text.is_empty() {
            return Self::default();
        }
        let pattern = |text: &str| RegexBuilder::new(text).case_insensitive(true).build();
        // An incomplete expression, while it is being typed, is plain text.
        let pattern = pattern(text).or_else(|_| pattern(&regex::escape(text))).ok();
        Self { text: text.to_owned(), pattern }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pattern.is_none()
    }

    pub(super) fn shows_process(&self, profile: &Profile) -> bool {
        let process = &profile.process;
        self.matches(&process.comm) || self.matches(&process.exe) || self.matches(&process.pid.to_string())
    }

    /// IDs of the stacks of threads whose names match; their call sites are shown.
    pub(super) fn stacks_of_threads(&self, profile: &Profile) -> HashSet<u64> {
        if self.is_empty() || !profile.coverage.threads {
            return HashSet::new();
        }
        let is_of_thread =
            |stack: &&StackProfile| stack.thread().is_some_and(|thread| self.matches(&thread.to_string()));
        profile.stacks.iter().filter(is_of_thread).map(|stack| stack.id).collect()
    }

    /// Returns true if a call site matches by verdict, process, any frame, or a thread (`of_threads`).
    pub(super) fn shows_site(&self, profile: &Profile, of_threads: &HashSet<u64>, verdict: &Verdict) -> bool {
        let frame = |frame: &SharedFrame| {
            self.matches(&frame.symbol) || self.matches(&frame.file) || self.matches(&frame.module)
        };
        self.is_empty()
            || self.matches(verdict.words())
            || self.matches(&profile.process.comm)
            || verdict.frames.iter().any(frame)
            || verdict.stacks.iter().any(|id| of_threads.contains(id))
    }

    /// Returns true if the filter is empty or matches the text.
    pub(super) fn matches(&self, text: &str) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_parse_by_name_and_cycle() {
        assert_eq!("rate".parse(), Ok(Sort::Rate));
        assert!("colour".parse::<Sort>().unwrap_err().to_string().starts_with("unknown sort order `colour`"));
        assert_eq!((Sort::Age.step(1), Sort::Verdict.step(Sort::ALL.len() - 1)), (Sort::Verdict, Sort::Age));
    }

    #[test]
    fn a_filter_is_an_expression_or_else_a_text() {
        assert!(Filter::new("cache_.*t").matches("CACHE_insert"));
        assert!(Filter::new("vector<(").matches("std::vector<(lambda)>"));
        assert!(!Filter::new("x").matches("y") && Filter::new("").matches("y"));
    }
}
