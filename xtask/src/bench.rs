//! Benchmarks on the running kernel, and the page of their results.

use std::{fs, process::ExitCode};

use anyhow::{Context, Result};

use crate::{
    build::{self, MEASURING_OBJECT_VARIABLE, OBJECT_VARIABLE},
    command::{announce, host_cargo, run},
    preload, prerequisites,
    sudo::Root,
    test::set_runner,
    workspace, world,
};

/// Folder of benchmark pages.
const KEPT: &str = "docs/benchmarks";
/// Output files of the benchmark.
const FILES: [&str; 2] = ["cost.md", "cost.json"];

/// `cargo xtask bench [--quick] [--only PART]...`
pub(crate) fn bench(quick: bool, only: &[String]) -> Result<ExitCode> {
    prerequisites::for_benchmarks()?;
    let programs = world::install_for_benchmarks()?;
    let (object, measuring) = (build::bpf_object()?, build::measuring_object()?);
    preload::build(&workspace::target()?.join("release"), |_| {})?;
    let root = Root::obtain("load jjleak's BPF programs")?;
    let mut cargo = host_cargo();
    cargo.current_dir(workspace::root()).args([
        "bench",
        "--package",
        "jjleak",
        "--bench",
        "cost",
        "--features",
        "measuring",
        "--",
    ]);
    if quick {
        cargo.arg("--quick");
    }
    for part in only {
        cargo.args(["--only", part]);
    }
    set_runner(&mut cargo, root)?;
    run(cargo
        .env(OBJECT_VARIABLE, object)
        .env(MEASURING_OBJECT_VARIABLE, measuring)
        .env(world::CACHE, programs))
    .context("the benchmark failed")?;
    if quick || !only.is_empty() {
        announce(&format!("{KEPT} is left as it is: that was not the whole"));
        return Ok(ExitCode::SUCCESS);
    }
    keep()?;
    Ok(ExitCode::SUCCESS)
}

/// Copies the output into the repository.
fn keep() -> Result<()> {
    let written = workspace::target()?.join("tmp/benchmarks");
    for name in FILES {
        let (from, to) = (written.join(name), workspace::root().join(KEPT).join(name));
        let content = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        fs::write(&to, content).with_context(|| format!("cannot write {}", to.display()))?;
        announce(&format!("wrote {}", to.display()));
    }
    Ok(())
}
