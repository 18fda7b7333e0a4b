//! A program with thousands of call sites.

use std::process::Command;

use super::{Environment, Talker, compile};
use crate::Result;

/// The running program.
pub(crate) struct Sites(Talker);

impl Sites {
    /// Number of call sites.
    pub(crate) const NUMBER: u32 = 10_000;

    pub(crate) fn start() -> Result<Self> {
        Talker::start(&mut Command::new(compile("sites")?), &Environment::new()).map(Self)
    }

    /// Makes it allocate at every call site, repeatedly.
    pub(crate) fn keep(&mut self) -> Result<()> {
        self.0.ask("keep").map(drop)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }
}
