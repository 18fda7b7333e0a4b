//! Number of instructions that the kernel's verifier processes for each BPF program, recorded in the repository.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::test;

/// Environment variable that makes the test write the numbers to the repository.
const KEEP: (&str, &str) = ("JJLEAK_KEEP_VERIFIED", "1");

/// `cargo xtask verifier`.
pub(crate) fn verifier() -> Result<ExitCode> {
    test::on_kernel("verifier::", &[KEEP], "load jjleak's BPF programs")
        .context("the programs could not be verified")?;
    Ok(ExitCode::SUCCESS)
}
