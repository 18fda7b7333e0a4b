//! Paths of the workspace and its build output.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;

/// Root folder of the workspace.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Cargo's target folder, according to the developer's configuration.
pub(crate) fn target() -> Result<PathBuf> {
    let metadata = MetadataCommand::new()
        .current_dir(root())
        .no_deps()
        .exec()
        .context("cannot ask cargo where it puts its output")?;
    Ok(metadata.target_directory.into_std_path_buf())
}

/// Folder with the sources of crates from registries.
pub(crate) fn cargo_home() -> PathBuf {
    let set = env::var_os("CARGO_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    set.unwrap_or_else(|| env::home_dir().unwrap_or_default().join(".cargo"))
}

/// Cache of downloads and long builds, shared by all workspaces of this user.
pub(crate) fn cache() -> Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .context(
            "neither XDG_CACHE_HOME nor HOME is set: set one, so that there is a place to keep things in",
        )?;
    Ok(cache.join("jjleak"))
}
