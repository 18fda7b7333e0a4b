//! Benchmarks on the running kernel.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{
    build::{self, OBJECT_VARIABLE},
    command::{host_cargo, run},
    prerequisites,
    sudo::Root,
    test::set_runner,
    workspace,
};

/// `cargo xtask bench [ARGS]`.
pub(crate) fn bench(args: &[String]) -> Result<ExitCode> {
    prerequisites::for_tests(false)?;
    let object = build::object()?;
    let root = Root::obtain("load jjleak's BPF programs")?;
    let mut cargo = host_cargo();
    cargo.current_dir(workspace::root()).args([
        "bench",
        "--package",
        "jjleak",
        "--bench",
        "probes",
        "--bench",
        "jvm",
    ]);
    if !args.is_empty() {
        cargo.arg("--").args(args);
    }
    set_runner(&mut cargo, root)?;
    run(cargo.env(OBJECT_VARIABLE, object)).context("the benchmark failed")?;
    Ok(ExitCode::SUCCESS)
}
