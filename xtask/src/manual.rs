//! Man pages and shell completions under `deploy/`, generated from the command line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::{
    command::{host_cargo, run},
    workspace,
};

/// Folders of generated files.
const FOLDERS: [&str; 2] = ["man", "completions"];

/// `cargo xtask manual`.
pub(crate) fn write() -> Result<ExitCode> {
    generate(&workspace::root().join("deploy"))?;
    println!("written to deploy/man and deploy/completions");
    Ok(ExitCode::SUCCESS)
}

/// Fails if the files in the repository differ from those that the command line generates.
pub(crate) fn check() -> Result<()> {
    let fresh = workspace::target()?.join("manual");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).with_context(|| format!("cannot empty {}", fresh.display()))?;
    }
    generate(&fresh)?;
    for folder in FOLDERS {
        let (kept, fresh) =
            (files(&workspace::root().join("deploy").join(folder))?, files(&fresh.join(folder))?);
        let mut names = kept.keys().chain(fresh.keys());
        if let Some(name) = names.find(|name| kept.get(*name) != fresh.get(*name)) {
            bail!("deploy/{folder}/{name} is not as the command line is");
        }
    }
    Ok(())
}

fn generate(folder: &Path) -> Result<()> {
    for name in FOLDERS {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut cargo = host_cargo();
    cargo.current_dir(workspace::root());
    run(cargo.args(["run", "--quiet", "--package", "jjleak", "--", "manual"]).arg(folder))
}

/// Contents of the files, by name.
fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let read = |path: PathBuf| -> Result<_> {
        let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, content))
    };
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| read(entry.context("cannot list files")?.path())).collect()
}
