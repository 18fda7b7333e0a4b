//! Command-line options: what to measure, and how thoroughly.

use std::time::Duration;

use crate::Result;

#[derive(Debug, Default)]
pub(crate) struct Options {
    /// True for a short run that only checks the benchmark.
    pub(crate) quick: bool,
    /// Parts to measure; empty for all.
    only: Vec<String>,
}

impl Options {
    /// Time after which no extra turn of a table begins.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(200);

    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => options.quick = true,
                "--only" => options.only.push(words.next().ok_or("--only needs the name of a part")?),
                // Passed by cargo to every benchmark.
                "--bench" => {}
                other => return Err(format!("unknown option {other:?} (--quick, --only PART)").into()),
            }
        }
        Ok(options)
    }

    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }

    /// The first requested part that is not in `parts`.
    pub(crate) fn unknown<const N: usize>(&self, parts: [&str; N]) -> Option<&str> {
        self.only.iter().map(String::as_str).find(|only| !parts.contains(only))
    }

    /// Selects the number for a thorough or a quick run.
    pub(crate) const fn choose(&self, thorough: usize, quick: usize) -> usize {
        if self.quick { quick } else { thorough }
    }

    /// Minimum and maximum number of turns per table; extra turns only for noisy figures.
    pub(crate) const fn turns(&self) -> (usize, usize) {
        if self.quick { (1, 1) } else { (3, 5) }
    }
}
