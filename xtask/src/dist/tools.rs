//! Tools from crates.io, built once into xtask's cache.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{
    command::{announce, host_cargo, run},
    workspace,
};

/// A tool in the version that releases were tested with.
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
}

impl Tool {
    /// Path of the program.
    pub(super) fn find_or_build(&self) -> Result<PathBuf> {
        let Self { name, version } = self;
        let root = workspace::cache()?.join(format!("{name}-{version}"));
        let program = root.join("bin").join(name);
        if !program.is_file() {
            announce(&format!("building {name} into {} (once, some minutes)", root.display()));
            run(host_cargo().args(["install", name, "--locked", "--version", version, "--root"]).arg(&root))
                .with_context(|| format!("cannot build {name}"))?;
        }
        Ok(program)
    }
}
