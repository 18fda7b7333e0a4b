//! Profiles processes that map files made to harm jjleak.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{prerequisites, test};

/// `cargo xtask hostile`.
pub(crate) fn hostile() -> Result<ExitCode> {
    prerequisites::for_tests(false)?;
    test::on_kernel("hostile_files::", &[(test::REQUIRE_BPF, "1")], "profile processes with hostile files")
        .context("a file costs jjleak more than it may")?;
    Ok(ExitCode::SUCCESS)
}
