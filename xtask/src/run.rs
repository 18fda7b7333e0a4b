//! Runs the jjleak that has just been built.

use std::{os::unix::process::CommandExt, path::Path, process::Command, process::ExitCode};

use anyhow::{Context, Result};

use crate::{build, sudo::Root};

/// `cargo xtask run -- ARGS`: replaces itself with jjleak, which then has its own signals, terminal and exit code.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let program = build::program(&build::bpf_object()?, false)?;
    let error = jjleak(&program)?.args(args).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// Command for the jjleak at `program`, with the privileges that it needs.
pub(crate) fn jjleak(program: &Path) -> Result<Command> {
    Ok(Root::obtain("load jjleak's BPF programs")?.command(program, &[]))
}
