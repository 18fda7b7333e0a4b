//! Packages for Debian and for RPM-based distributions. Their content stands in jjleak's Cargo.toml.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{Release, copy, portable::Portable, tools::Tool};
use crate::{command::run, preload, workspace};

const CARGO_DEB: Tool = Tool { name: "cargo-deb", version: "3.8.0" };
const CARGO_RPM: Tool = Tool { name: "cargo-generate-rpm", version: "0.21.1" };

/// Version to upgrade to in tests, besides that of the workspace.
const LATER: &str = "999.0.0";

/// Packages of a release, and of a later one with the same content.
pub(crate) struct Packages {
    pub(crate) deb: PathBuf,
    pub(super) rpm: PathBuf,
    pub(super) later_deb: PathBuf,
    pub(super) later_rpm: PathBuf,
}

impl Packages {
    /// Builds the packages.
    pub(super) fn build(release: &Release, portable: &Portable, licences: &Path) -> Result<Self> {
        // The packagers look for what cargo would have built.
        let target = release.work.join("for-packages");
        fs::create_dir_all(target.join("release"))?;
        copy(&portable.program, &target.join("release/jjleak"))?;
        copy(&portable.sampler, &target.join("release").join(preload::LIBRARY))?;
        copy(licences, &target.join("release/THIRD-PARTY-LICENSES.txt"))?;
        let version = release.version;
        let packages = Self {
            deb: release.folder.join(format!("jjleak_{version}_amd64.deb")),
            rpm: release.folder.join(format!("jjleak-{version}-1.x86_64.rpm")),
            later_deb: release.work.join("later.deb"),
            later_rpm: release.work.join("later.rpm"),
        };
        deb(release, &target, &packages.deb, version)?;
        deb(release, &target, &packages.later_deb, LATER)?;
        let source = source(release)?;
        rpm(release, &source, &target, &packages.rpm, version)?;
        rpm(release, &source, &target, &packages.later_rpm, LATER)?;
        Ok(packages)
    }
}

fn deb(release: &Release, target: &Path, package: &Path, version: &str) -> Result<()> {
    run(release
        .command(CARGO_DEB.find_or_build()?)
        .current_dir(workspace::root())
        .env("CARGO_TARGET_DIR", target)
        .args(["--package", "jjleak", "--no-build", "--no-strip", "--deb-version", version, "--output"])
        .arg(package))
    .context("cannot build the Debian package")
}

/// The files of the commit with its time: the RPM package has the times of its files.
fn source(release: &Release) -> Result<PathBuf> {
    let (archive, source) = (release.work.join("source.tar"), release.work.join("source"));
    fs::create_dir_all(&source)?;
    run(Command::new("git")
        .current_dir(workspace::root())
        .args(["archive", "--format=tar", "HEAD", "--output"])
        .arg(&archive))?;
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&source))?;
    Ok(source)
}

fn rpm(release: &Release, source: &Path, target: &Path, package: &Path, version: &str) -> Result<()> {
    run(release
        .command(CARGO_RPM.find_or_build()?)
        .current_dir(source)
        .args(["--package", "jjleak", "--auto-req", "disabled", "--payload-compress", "gzip"])
        .args(["--set-metadata", &format!("version = {version:?}"), "--target-dir"])
        .arg(target)
        .arg("--output")
        .arg(package))
    .context("cannot build the RPM package")
}
