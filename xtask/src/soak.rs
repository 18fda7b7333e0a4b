//! Checks that a long-running daemon's use of memory, descriptors, threads, BPF objects and disk does not grow, and that a program can be
//! sampled for a long time.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{prerequisites, test};

/// Environment variable with the duration of the test.
const MINUTES: &str = "JJLEAK_SOAK_MINUTES";

/// `cargo xtask soak [--minutes N]`.
pub(crate) fn soak(minutes: u32) -> Result<ExitCode> {
    prerequisites::for_tests(false)?;
    let minutes = minutes.to_string();
    let variables = [(test::REQUIRE_BPF, "1"), (MINUTES, minutes.as_str())];
    test::on_kernel("soak::", &variables, "run the daemon and the sampler")
        .context("the daemon takes more than at first, or a sampled program failed")?;
    Ok(ExitCode::SUCCESS)
}
