//! In which order rows stand, and which of them.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use regex::{Regex, RegexBuilder};

use super::books::Row;
use crate::profile::{Frame, Profile, StackProfile, Verdict};
use crate::render::Value;

/// What rows are ordered by; what matters most comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// What is worst first: the verdict, then how fast it grows.
    #[default]
    Verdict,
    /// What lives.
    Size,
    /// Live objects.
    Count,
    /// What has changed since the instant before.
    Growth,
    /// How fast it grows.
    Rate,
    /// Age of the oldest live block.
    Age,
}

impl Sort {
    /// All orders, as one key after the other chooses them.
    pub const ALL: [Self; 6] = [Self::Verdict, Self::Size, Self::Count, Self::Growth, Self::Rate, Self::Age];

    /// The name on the command line.
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

    /// The order so many steps further on, round and round.
    pub(super) fn step(self, steps: usize) -> Self {
        Self::ALL[(self as usize + steps) % Self::ALL.len()]
    }

    /// Which of two rows comes first.
    pub(super) fn compare(self, value: Value, a: &Row, b: &Row) -> Ordering {
        let by = |key: fn(&Row, Value) -> i128| key(b, value).cmp(&key(a, value));
        let first = match self {
            Self::Verdict => a.standing.cmp(&b.standing).then(b.rate.total_cmp(&a.rate)),
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
        // What comes first does not change while nothing else does.
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

/// A name that no [`Sort`] has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown order `{0}`: the view is sorted by verdict, size, count, growth, rate or age")]
pub struct UnknownSort(String);

/// Which rows are shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    text: String,
    pattern: Option<Regex>,
}

impl Filter {
    /// Shows what has the text in it, or what it matches as a regular expression, whatever the case.
    pub(super) fn new(text: &str) -> Self {
        if text.is_empty() {
            return Self::default();
        }
        let pattern = |text: &str| RegexBuilder::new(text).case_insensitive(true).build();
        // Half of an expression, as it is being typed, is a text like any other.
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

    /// The stacks of threads whose names match: for their sake, call sites are shown.
    pub(super) fn stacks_of_threads(&self, profile: &Profile) -> HashSet<u64> {
        if self.is_empty() || !profile.coverage.threads {
            return HashSet::new();
        }
        let is_of_thread =
            |stack: &&StackProfile| stack.thread().is_some_and(|thread| self.matches(&thread.to_string()));
        profile.stacks.iter().filter(is_of_thread).map(|stack| stack.id).collect()
    }

    /// A call site is shown for any of its frames, for its threads, whose stacks these are, and for its verdict.
    pub(super) fn shows_site(&self, profile: &Profile, of_threads: &HashSet<u64>, verdict: &Verdict) -> bool {
        let frame = |frame: &Frame| {
            self.matches(&frame.symbol) || self.matches(&frame.file) || self.matches(&frame.module)
        };
        self.is_empty()
            || self.matches(verdict.words())
            || self.matches(&profile.process.comm)
            || verdict.frames.iter().any(frame)
            || verdict.stacks.iter().any(|id| of_threads.contains(id))
    }

    fn matches(&self, text: &str) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_by_name_and_follow_each_other_round() {
        assert_eq!("rate".parse(), Ok(Sort::Rate));
        assert!("colour".parse::<Sort>().unwrap_err().to_string().starts_with("unknown order `colour`"));
        assert_eq!((Sort::Age.step(1), Sort::Verdict.step(Sort::ALL.len() - 1)), (Sort::Verdict, Sort::Age));
    }

    #[test]
    fn a_filter_is_an_expression_or_else_a_text() {
        assert!(Filter::new("cache_.*t").matches("CACHE_insert"));
        assert!(Filter::new("vector<(").matches("std::vector<(lambda)>"));
        assert!(!Filter::new("x").matches("y") && Filter::new("").matches("y"));
    }
}
