//! Nightly toolchains installed by rustup.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use super::{
    Compiler,
    compiler::{Features, has_core_source},
};

/// Installed nightlies that can build `core` for BPF, newest name first.
pub(super) fn compilers() -> Vec<Compiler> {
    let Some(toolchains) = home().map(|home| home.join("toolchains")) else {
        return Vec::new();
    };
    let mut nightlies: Vec<PathBuf> = fs::read_dir(toolchains)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_nightly(path) && has_core_source(path))
        .collect();
    nightlies.sort();
    nightlies
        .into_iter()
        .rev()
        .filter_map(|sysroot| Compiler::new(&sysroot, Features::Nightly).ok())
        .collect()
}

fn home() -> Option<PathBuf> {
    env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".rustup")))
}

fn is_nightly(toolchain: &Path) -> bool {
    toolchain.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nightly"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dated_nightlies_count_and_stable_does_not() {
        assert!(is_nightly(Path::new("/toolchains/nightly-x86_64-unknown-linux-gnu")));
        assert!(is_nightly(Path::new("/toolchains/nightly-2026-05-20-x86_64-unknown-linux-gnu")));
        assert!(!is_nightly(Path::new("/toolchains/stable-x86_64-unknown-linux-gnu")));
    }
}
