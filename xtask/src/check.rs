//! Checks that need no kernel: formatting, imports, lints, documentation, licences.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::{
    build::lint_bpf,
    command::{announce, host_cargo, run},
    imports, licences, manual,
    toolchain::Toolchain,
    workspace,
};

/// Excludes the fuzz targets, which would require compiling libFuzzer; `cargo xtask fuzz` shows their compiler warnings.
const WITHOUT_FUZZER: &[&str] = &["--workspace", "--exclude", "jjleak-fuzz"];

/// `cargo xtask check`.
pub(crate) fn check() -> Result<ExitCode> {
    step("formatting", &mut cargo(&["fmt", "--all", "--check"]), "run `cargo fmt --all`")?;
    let stages = imports::check().context("imports: FAILED; move the type to the stage that owns it")?;
    println!("imports: ok ({stages} stages)");
    step(
        "lints",
        &mut cargo(
            &[
                &["clippy", "--quiet", "--all-targets", "--features", "jjleak/measuring"],
                WITHOUT_FUZZER,
                &["--", "-D", "warnings"],
            ]
            .concat(),
        ),
        "repair what clippy names, or expect it with a reason",
    )?;
    // Tests enable features of dependencies that may be missing without tests.
    step(
        "build without tests",
        &mut cargo(&["check", "--quiet", "--package", "jjleak"]),
        "give the dependency its feature in the workspace's Cargo.toml",
    )?;
    bpf_lints()?;
    let mut doc = cargo(&[&["doc", "--quiet", "--no-deps"], WITHOUT_FUZZER].concat());
    step(
        "documentation",
        doc.env("RUSTDOCFLAGS", "-D warnings"),
        "repair the documentation that rustdoc names",
    )?;
    manual::check().context("man pages and completions: FAILED; run `cargo xtask manual`")?;
    println!("man pages and completions: ok");
    let packages = licences::check().context("licences: FAILED")?;
    println!("licences: ok ({packages} packages)");
    Ok(ExitCode::SUCCESS)
}

fn step(name: &str, command: &mut Command, remedy: &str) -> Result<()> {
    run(command).with_context(|| format!("{name}: FAILED; {remedy}"))?;
    println!("{name}: ok");
    Ok(())
}

/// On the host, the BPF programs are an empty `main`: only a BPF toolchain can lint them.
fn bpf_lints() -> Result<()> {
    let Some(toolchain) = Toolchain::find() else {
        announce("BPF lints: left out, there is no BPF toolchain (`cargo xtask build` installs one)");
        return Ok(());
    };
    let Some(clippy) = toolchain.clippy() else {
        announce(&format!("BPF lints: left out, no clippy comes with {toolchain}"));
        return Ok(());
    };
    lint_bpf(clippy).context("BPF lints: FAILED; repair what clippy names")?;
    println!("BPF lints: ok");
    Ok(())
}

fn cargo(args: &[&str]) -> Command {
    let mut cargo = host_cargo();
    cargo.current_dir(workspace::root()).args(args);
    cargo
}
