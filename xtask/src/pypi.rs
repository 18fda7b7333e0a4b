//! Packages of Python's index that contain programs for the tests, kept in the cache folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    command::{announce, run},
    workspace,
};

/// Folder with the content of a package; downloaded if missing.
pub(crate) fn package(name: &str, release: &str) -> Result<PathBuf> {
    let folder = workspace::cache()?.join(format!("{name}-{release}"));
    if !folder.exists() {
        announce(&format!("fetching {name} {release} from PyPI"));
        fetch(name, release, &folder)?;
    }
    Ok(folder)
}

/// Downloads into a temporary folder first, so that the final one is complete or missing.
fn fetch(name: &str, release: &str, folder: &Path) -> Result<()> {
    let partial = folder.with_extension(format!("partial-{}", std::process::id()));
    let package = format!("{name}=={release}");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target"]);
    run(pip.arg(&partial).arg(package).env("PIP_ROOT_USER_ACTION", "ignore"))
        .with_context(|| format!("cannot fetch {name} {release}"))?;
    fs::rename(&partial, folder).with_context(|| format!("cannot create {}", folder.display()))
}
