//! What the kernel's verifier has to follow in each BPF program, kept in the repository.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{
    build::{self, OBJECT_VARIABLE},
    command::{host_cargo, run},
    sudo::Root,
    test::set_runner,
    workspace,
};

/// Makes the test that reads the numbers write them down.
const KEEP: &str = "JJLEAK_KEEP_VERIFIED";

/// `cargo xtask verifier`.
pub(crate) fn verifier() -> Result<ExitCode> {
    let object = build::object()?;
    let root = Root::obtain("load jjleak's BPF programs")?;
    let mut cargo = host_cargo();
    cargo
        .current_dir(workspace::root())
        .args(["test", "--quiet", "--package", "jjleak", "--test", "real", "--", "verifier::", "--nocapture"])
        .env(OBJECT_VARIABLE, object)
        .env(KEEP, "1");
    set_runner(&mut cargo, root)?;
    run(&mut cargo).context("the programs could not be verified")?;
    Ok(ExitCode::SUCCESS)
}
