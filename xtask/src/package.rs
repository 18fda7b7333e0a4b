//! The Debian package: builds it and tests it in a temporary copy of this system.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

use crate::{
    apt, build,
    command::{announce, host_cargo, on_path, run},
    sudo::Root,
    workspace,
};

const CARGO_DEB: &str = "cargo-deb";
/// Version that the packages were tested with.
const CARGO_DEB_VERSION: &str = "3.8.0";
/// Version to upgrade to, besides that of the workspace.
const LATER: &str = "999.0.0";

/// `cargo xtask package [--check]`.
pub(crate) fn package(check: bool) -> Result<ExitCode> {
    let folder = workspace::target()?.join("package");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    build::program(&build::object()?, false)?;
    let cargo_deb = cargo_deb()?;
    let package = path()?;
    pack(&cargo_deb, &package, None)?;
    if check {
        let later = folder.join("jjleak-later.deb");
        pack(&cargo_deb, &later, Some(LATER))?;
        try_out(&package, &later)?;
        try_files(&folder)?;
        println!("package: installed, upgraded, removed and purged; everything in deploy/ is well-formed");
    }
    println!("{}", package.display());
    Ok(ExitCode::SUCCESS)
}

/// Path of the package.
pub(crate) fn path() -> Result<PathBuf> {
    Ok(workspace::target()?.join("package/jjleak.deb"))
}

/// Packages the build output, under another version if one is given.
fn pack(cargo_deb: &Path, package: &Path, version: Option<&str>) -> Result<()> {
    let mut command = Command::new(cargo_deb);
    command
        .current_dir(workspace::root())
        .args(["--package", "jjleak", "--no-build", "--output"])
        .arg(package);
    if let Some(version) = version {
        command.args(["--deb-version", version]);
    }
    run(&mut command).context("cannot build the package")
}

/// Path of cargo-deb, which is built into xtask's cache if missing.
fn cargo_deb() -> Result<PathBuf> {
    let root = workspace::cache()?.join(format!("{CARGO_DEB}-{CARGO_DEB_VERSION}"));
    let program = root.join("bin").join(CARGO_DEB);
    if !program.is_file() {
        announce(&format!("building {CARGO_DEB} into {} (once, some minutes)", root.display()));
        run(host_cargo()
            .args(["install", CARGO_DEB, "--locked", "--version", CARGO_DEB_VERSION, "--root"])
            .arg(&root))
        .context("cannot build cargo-deb")?;
    }
    Ok(program)
}

/// Installs, upgrades, removes and purges the package in a copy of this system.
fn try_out(package: &Path, later: &Path) -> Result<()> {
    if on_path("systemd-sysusers").is_none() {
        apt::install(&["systemd"], "the package makes a user with systemd-sysusers")?;
    }
    let root = Root::obtain("try the package in a copy of this system")?;
    let script = workspace::root().join("tests/package/try.sh");
    run(root
        .command("unshare", &[])
        .args(["--mount", "--propagation", "private"])
        .arg(script)
        .args([package, later]))
    .context("the package does not do what it should")
}

/// Checks each kind of file in deploy/ with the program that reads it.
fn try_files(folder: &Path) -> Result<()> {
    if on_path("promtool").is_none() {
        apt::install(&["prometheus"], "promtool checks the alert rules")?;
        apt::keep_off("prometheus.service")?;
    }
    if on_path("python3").is_none() {
        apt::install(
            &["python3", "python3-venv"],
            "the Kubernetes files are checked with kubernetes-validate",
        )?;
    }
    let script = workspace::root().join("tests/package/files.sh");
    run(Command::new(script).arg(folder)).context("something in deploy/ is not well-formed")
}
