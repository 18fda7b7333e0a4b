//! Finds the capabilities that jjleak needs, by removing each in turn.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{prerequisites, test};

/// `cargo xtask caps`.
pub(crate) fn caps() -> Result<ExitCode> {
    prerequisites::for_tests(false)?;
    test::on_kernel("capabilities::", &[(test::REQUIRE_BPF, "1")], "run jjleak with some capabilities only")
        .context("jjleak needs other capabilities than SECURITY.md says")?;
    Ok(ExitCode::SUCCESS)
}
