//! The archive for hosts without a package manager that has jjleak: program, manual, completions, service, and a script that
//! installs and removes them without a network.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::{Release, portable::Portable};
use crate::workspace;

/// Files of the repository, and the folders in the archive that they go to.
const FILES: [(&str, &[&str]); 10] = [
    ("", &["deploy/install.sh", "README.md", "SECURITY.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"]),
    ("etc", &["deploy/jjleak.toml"]),
    ("lib/systemd/system", &["deploy/systemd/jjleak.service"]),
    ("lib/sysusers.d", &["deploy/sysusers.d/jjleak.conf"]),
    ("lib/tmpfiles.d", &["deploy/tmpfiles.d/jjleak.conf"]),
    ("share/man/man1", &["deploy/man"]),
    ("share/doc/jjleak", &["docs", "deploy/older-kernels", "deploy/prometheus", "deploy/grafana"]),
    ("share/completions", &["deploy/completions"]),
    ("bin", &[]),
    ("lib/jjleak", &[]),
];

/// Packs the archive.
pub(super) fn pack(release: &Release, portable: &Portable, licences: &Path) -> Result<PathBuf> {
    let name = format!("jjleak-{}-x86_64-linux", release.version);
    let root = release.work.join(&name);
    for (folder, sources) in FILES {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for source in sources {
            copy(&workspace::root().join(source), &folder)?;
        }
    }
    copy(&portable.program, &root.join("bin"))?;
    copy(&portable.sampler, &root.join("lib/jjleak"))?;
    copy(licences, &root)?;
    let archive = release.name(".tar.gz");
    release.tar("", &name, &archive)?;
    Ok(archive)
}

/// Copies a file into a folder, or the files in a folder; not those in folders in it.
fn copy(source: &Path, into: &Path) -> Result<()> {
    let copy_file = |file: &Path| {
        let name = file.file_name().context("a file has a name")?;
        fs::copy(file, into.join(name)).map(drop).with_context(|| format!("cannot copy {}", file.display()))
    };
    if source.is_file() {
        return copy_file(source);
    }
    let entries = fs::read_dir(source).with_context(|| format!("cannot read {}", source.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_file() {
            copy_file(&path)?;
        }
    }
    Ok(())
}
