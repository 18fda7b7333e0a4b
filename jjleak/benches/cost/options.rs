//! What is to be measured, and how thoroughly.

use std::time::Duration;

use crate::Result;

/// The arguments.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Little of everything: whether it works, and no figures to keep.
    pub(crate) quick: bool,
    /// These parts; all if there are none.
    only: Vec<String>,
}

impl Options {
    /// Further turns of a table are begun only before this has gone by.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(200);

    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => options.quick = true,
                "--only" => options.only.push(words.next().ok_or("--only wants the name of a part")?),
                // What cargo gives to every benchmark.
                "--bench" => {}
                other => return Err(format!("{other:?} is not known: --quick, --only PART").into()),
            }
        }
        Ok(options)
    }

    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }

    /// The first part that is asked for, and is none of these.
    pub(crate) fn unknown<const N: usize>(&self, parts: [&str; N]) -> Option<&str> {
        self.only.iter().map(String::as_str).find(|only| !parts.contains(only))
    }

    /// A number that is smaller when it is to be quick.
    pub(crate) const fn choose(&self, thorough: usize, quick: usize) -> usize {
        if self.quick { quick } else { thorough }
    }

    /// Turns of a table: so many to begin with, and at most, for as long as figures spread.
    pub(crate) const fn turns(&self) -> (usize, usize) {
        if self.quick { (1, 1) } else { (3, 5) }
    }
}
