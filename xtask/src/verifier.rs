//! What the kernel's verifier has to follow in each BPF program, kept in the repository.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::test;

/// Makes the test that reads the numbers write them down.
const KEEP: (&str, &str) = ("JJLEAK_KEEP_VERIFIED", "1");

/// `cargo xtask verifier`.
pub(crate) fn verifier() -> Result<ExitCode> {
    test::on_kernel("verifier::", &[KEEP], "load jjleak's BPF programs")
        .context("the programs could not be verified")?;
    Ok(ExitCode::SUCCESS)
}
