//! Tries a release: packages and archive in copies of this system and in foreign roots, the image in podman, everything in
//! `deploy/` with the programs that read it.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{Packages, Release};
use crate::{
    apt,
    command::{announce, on_path, run},
    sudo::Root,
    workspace,
};

/// Programs that the checks need, and their packages.
const NEEDED: [(&str, &str); 8] = [
    ("systemd-sysusers", "systemd"),
    ("rpm", "rpm"),
    ("podman", "podman"),
    // crun refuses hosts with both versions of control groups.
    ("runc", "runc"),
    ("mmdebstrap", "mmdebstrap"),
    ("doas", "doas"),
    ("sudo", "sudo"),
    ("busybox", "busybox-static"),
];

/// A release that was built.
pub(super) struct Built<'a> {
    pub(super) release: &'a Release,
    pub(super) sampler: &'a Path,
    pub(super) packages: &'a Packages,
    pub(super) image: &'a Path,
    pub(super) chart: &'a Path,
    pub(super) sbom: &'a Path,
}

impl Built<'_> {
    /// Fails unless everything does what it should.
    pub(super) fn check(&self) -> Result<()> {
        for (program, package) in NEEDED {
            if on_path(program).is_none() {
                apt::install(&[package], "a release is tried before it is one")?;
            }
        }
        let root = Root::obtain("try a release in copies of this system")?;
        let packages = self.packages;
        let archive = self.release.name(".tar.gz");
        let scripts: [(&str, &[&Path]); 4] = [
            ("deb.sh", &[&packages.deb, &packages.later_deb]),
            ("rpm.sh", &[&packages.rpm, &packages.later_rpm]),
            ("archive.sh", &[&archive]),
            ("image.sh", &[self.image]),
        ];
        for (script, arguments) in scripts {
            try_out(root, script, arguments)?;
        }
        self.try_roots(root)?;
        self.try_files()
    }

    /// Runs the binary in roots of other systems.
    fn try_roots(&self, root: Root) -> Result<()> {
        let old = old_system(root)?;
        try_out(root, "roots.sh", &[&self.release.name(""), self.sampler, &old])
    }

    /// Checks each kind of file with the program that reads it.
    fn try_files(&self) -> Result<()> {
        if on_path("promtool").is_none() {
            apt::install(&["prometheus"], "promtool checks the alert rules")?;
            apt::keep_off("prometheus.service")?;
        }
        if on_path("python3").is_none() {
            apt::install(
                &["python3", "python3-venv"],
                "the Kubernetes files are checked with Python packages",
            )?;
        }
        let folder = workspace::target()?.join("package");
        fs::create_dir_all(&folder)?;
        let script = workspace::root().join("tests/package/files.sh");
        run(Command::new(script).args([&folder, self.chart, self.sbom]))
            .context("something in deploy/ is not well-formed")
    }
}

/// Runs a script with root's privileges and mounts of its own.
fn try_out(root: Root, script: &str, arguments: &[&Path]) -> Result<()> {
    announce(&format!("trying: {script}"));
    run(root
        .command("unshare", &[])
        .args(["--mount", "--propagation", "private"])
        .arg(workspace::root().join("tests/package").join(script))
        .args(arguments))
    .with_context(|| format!("{script}: the release does not do what it should"))
}

/// Debian 11, whose C library is older than the one that programs are built with here; made once.
fn old_system(root: Root) -> Result<std::path::PathBuf> {
    const RELEASE: &str = "bullseye";
    let system = workspace::target()?.join("package").join(RELEASE);
    if !system.exists() {
        announce(&format!("making {} (once, some minutes)", system.display()));
        let unfinished = system.with_extension("unfinished");
        if let Some(folder) = system.parent() {
            fs::create_dir_all(folder)?;
        }
        run(root.command("rm", &[]).arg("-rf").arg(&unfinished))?;
        run(root
            .command("mmdebstrap", &[])
            .args(["--quiet", "--variant=minbase", RELEASE])
            .arg(&unfinished))?;
        run(root.command("mv", &[]).args([&unfinished, &system]))?;
    }
    Ok(system)
}
