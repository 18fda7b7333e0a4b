//! Builds the BPF object, and jjleak with it.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};

use crate::{
    command::{announce, host_cargo, run},
    object, preload,
    toolchain::{TARGET, Toolchain},
    workspace,
};

/// Environment variable with the path of the BPF object, for jjleak's build script.
pub(crate) const OBJECT_VARIABLE: &str = "JJLEAK_BPF_OBJECT";

/// Environment variable with the path of the benchmark's BPF object.
pub(crate) const MEASURING_OBJECT_VARIABLE: &str = "JJLEAK_MEASURING_OBJECT";

const BPF_PACKAGE: &str = "jjleak-ebpf";
/// File name of what jjleak embeds.
const BPF_OBJECT: &str = "jjleak.bpf.o";
/// The workspace's profile for BPF programs.
const BPF_PROFILE: &str = "bpf";

/// `cargo xtask build`.
pub(crate) fn build(debug: bool) -> Result<ExitCode> {
    let program = program(&bpf_object()?, debug)?;
    println!("{}", program.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds the BPF object.
pub(crate) fn bpf_object() -> Result<PathBuf> {
    object_with(&[], &bpf_target()?)
}

/// Builds the benchmark's BPF object.
pub(crate) fn measuring_object() -> Result<PathBuf> {
    object_with(&["--features", "measuring"], &bpf_target()?.join("measuring"))
}

fn object_with(features: &[&str], target: &Path) -> Result<PathBuf> {
    let toolchain = Toolchain::find_or_install()?;
    announce(&format!("BPF toolchain: {toolchain}"));
    run(of_bpf_package(toolchain.build(), target).args(features)).context("cannot build the BPF programs")?;
    let object = target.join(TARGET).join(BPF_PROFILE).join(BPF_PACKAGE);
    if !object.is_file() {
        bail!("the BPF build succeeded and left no object at {}", object.display());
    }
    let stripped = target.join(BPF_OBJECT);
    object::strip(&object, &stripped)?;
    Ok(stripped)
}

/// Lints the BPF programs with the `clippy` of a BPF toolchain.
pub(crate) fn lint_bpf(clippy: Command) -> Result<()> {
    run(of_bpf_package(clippy, &bpf_target()?).args(["--", "-D", "warnings"]))
}

/// Builds jjleak with the embedded BPF object.
pub(crate) fn program(object: &Path, debug: bool) -> Result<PathBuf> {
    let (profile, folder) = if debug { ("dev", "debug") } else { ("release", "release") };
    run(host_cargo()
        .current_dir(workspace::root())
        .args(["build", "--package", "jjleak", "--bin", "jjleak", "--profile", profile])
        .env(OBJECT_VARIABLE, object))
    .context("cannot build jjleak")?;
    let folder = workspace::target()?.join(folder);
    preload::build(&folder, |_| {})?;
    Ok(folder.join("jjleak"))
}

/// Separate target folder of the BPF side: sharing one would invalidate the host's output, because compiler and flags differ.
fn bpf_target() -> Result<PathBuf> {
    Ok(workspace::target()?.join("bpf"))
}

fn of_bpf_package(mut cargo: Command, target: &Path) -> Command {
    cargo
        .current_dir(workspace::root())
        .args(["--package", BPF_PACKAGE, "--profile", BPF_PROFILE, "--target-dir"])
        .arg(target);
    cargo
}
