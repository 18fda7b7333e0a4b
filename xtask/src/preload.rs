//! The library that samples malloc in a command (`jjleak-preload`). It is linked here, not by rustc, which would make it need the C library of
//! this machine: it needs none by name, and any glibc or musl will do.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{
    command::{host_cargo, run, stdout},
    workspace,
};

const PACKAGE: &str = "jjleak-preload";
pub(crate) const LIBRARY: &str = "libjjleak_preload.so";
/// Optimized as one unit: otherwise, parts of Rust's standard library that are never called would stay, and what they need.
const PROFILE: &str = "dist";
/// Functions of the C library that it may need: glibc 2.17 has them, and musl.
const NEEDED: [&str; 11] = [
    "abort",
    "bcmp",
    "dl_iterate_phdr",
    "getenv",
    "getpid",
    "madvise",
    "memcmp",
    "memcpy",
    "mprotect",
    "strlen",
    "__tls_get_addr",
];

/// Builds the library into a folder, with these further settings of cargo.
pub(crate) fn build(folder: &Path, set: impl FnOnce(&mut Command)) -> Result<PathBuf> {
    let mut cargo = host_cargo();
    cargo.current_dir(workspace::root());
    cargo.args([
        "rustc",
        "--quiet",
        "--locked",
        "--package",
        PACKAGE,
        "--profile",
        PROFILE,
        "--crate-type",
        "staticlib",
    ]);
    set(&mut cargo);
    run(&mut cargo).context("cannot build the library that samples malloc")?;
    let archive = workspace::target()?.join(PROFILE).join("libjjleak_preload.a");
    fs::create_dir_all(folder)?;
    let library = folder.join(LIBRARY);
    // A running program may have the old one mapped.
    let linked = library.with_extension("linked");
    let exports = workspace::root().join(PACKAGE).join("exports.map");
    run(Command::new("cc")
        .args([
            "-shared",
            "-nostdlib",
            "-Wl,--gc-sections,-Bsymbolic,--undefined=malloc,--undefined=Agent_OnAttach,-z,now,--strip-debug,--build-id=sha1",
        ])
        .arg(format!("-Wl,--version-script={}", exports.display()))
        .arg(&archive)
        .arg("-o")
        .arg(&linked))
    .context("cannot link the library that samples malloc")?;
    let dynamic = stdout(Command::new("readelf").args(["--wide", "--dynamic", "--dyn-syms"]).arg(&linked))?;
    check(&dynamic)?;
    fs::rename(&linked, &library).with_context(|| format!("cannot replace {}", library.display()))?;
    Ok(library)
}

/// Fails if the library needs another one, or functions that not every C library has.
fn check(dynamic: &str) -> Result<()> {
    for line in dynamic.lines() {
        ensure!(!line.contains("(NEEDED)"), "the library that samples malloc needs another one: {line}");
        let Some((_, symbol)) = line.split_once(" UND ") else { continue };
        let symbol = symbol.trim();
        ensure!(
            symbol.is_empty() || NEEDED.contains(&symbol),
            "the library that samples malloc needs {symbol}, which a C library may not have"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_needs_much_is_refused() {
        assert!(check(" 5: 0000000000000000     0 NOTYPE  GLOBAL DEFAULT  UND getenv").is_ok());
        assert!(check(" 0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND ").is_ok());
        assert!(check(" 5: 0000000000000000     0 NOTYPE  GLOBAL DEFAULT  UND pthread_key_create").is_err());
        assert!(check(" 0x0000000000000001 (NEEDED)  Shared library: [libc.so.6]").is_err());
    }
}
