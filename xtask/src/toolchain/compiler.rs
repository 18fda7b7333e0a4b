//! A compiler that can build `core` for BPF, and its cargo, isolated from all other toolchains.

use std::{
    env,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::release::Release;

/// Path of the source of `core` in a sysroot; it has to be built for BPF.
const CORE_SOURCE: &str = "lib/rustlib/src/rust/library/core";

/// Returns true if the toolchain in `sysroot` has the source of `core`.
pub(super) fn has_core_source(sysroot: &Path) -> bool {
    sysroot.join(CORE_SOURCE).is_dir()
}

/// Access to the unstable features that building `core` needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Features {
    /// A nightly compiler has them.
    Nightly,
    /// A release build needs `RUSTC_BOOTSTRAP`.
    Bootstrap,
}

/// A Rust toolchain with the source of `core`.
#[derive(Clone, Debug)]
pub(super) struct Compiler {
    bin: PathBuf,
    features: Features,
    pub(super) release: Release,
}

impl Compiler {
    /// The toolchain in `sysroot` if its compiler runs.
    pub(super) fn new(sysroot: &Path, features: Features) -> Result<Self> {
        let bin = sysroot.join("bin");
        let release = Release::of(&bin.join("rustc"))?;
        Ok(Self { bin, features, release })
    }

    /// Command for this toolchain's cargo, set to use this toolchain's compiler whatever else is installed or configured.
    pub(super) fn cargo(&self) -> Command {
        self.command("cargo")
    }

    /// The same for its clippy; `None` if it is not installed.
    pub(super) fn clippy(&self) -> Option<Command> {
        if !["cargo-clippy", "clippy-driver"].iter().all(|program| self.bin.join(program).is_file()) {
            return None;
        }
        // Not through cargo, which would look for its subcommand in CARGO_HOME first and find rustup's proxies.
        let mut command = self.command("cargo-clippy");
        command.env("CARGO", self.bin.join("cargo")).arg("clippy");
        Some(command)
    }

    /// PATH with this toolchain in front, so that programs that look for `rustc` by name find this one.
    fn path(&self) -> OsString {
        let mut path = self.bin.clone().into_os_string();
        if let Some(rest) = env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        path
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(belongs_to_another_toolchain) {
                command.env_remove(name);
            }
        }
        command.env("RUSTC", self.bin.join("rustc"));
        command.env("RUSTDOC", self.bin.join("rustdoc"));
        // A wrapper in cargo's configuration is for the host's compiler; an empty value disables it.
        command.env("RUSTC_WRAPPER", "");
        command.env("PATH", self.path());
        if self.features == Features::Bootstrap {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
        command
    }
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Release { version, llvm, .. } = &self.release;
        write!(f, "rustc {version} (LLVM {llvm}) in {}", self.bin.display())
    }
}

/// Returns true for variables with which cargo, rustup or the developer control the host's toolchain. Variables on registries
/// and network access are kept.
fn belongs_to_another_toolchain(variable: &str) -> bool {
    const KEPT: &[&str] = &[
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_REGISTRY_",
        "CARGO_SOURCE_",
        "CARGO_TERM_",
    ];
    const REMOVED: &[&str] =
        &["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH"];
    let starts_with_one_of = |prefixes: &[&str]| prefixes.iter().any(|prefix| variable.starts_with(prefix));
    starts_with_one_of(REMOVED) && !starts_with_one_of(KEPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_the_host_toolchain_is_removed() {
        for variable in [
            "CARGO",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_MANIFEST_DIR",
            "CARGO_TARGET_DIR",
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
            "LD_LIBRARY_PATH",
            "RUSTC",
            "RUSTC_WRAPPER",
            "RUSTDOCFLAGS",
            "RUSTFLAGS",
            "RUSTUP_TOOLCHAIN",
        ] {
            assert!(belongs_to_another_toolchain(variable), "{variable}");
        }
    }

    #[test]
    fn what_says_how_to_fetch_crates_stays() {
        for variable in ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_SOURCE_CRATES_IO_REPLACE_WITH", "HOME"] {
            assert!(!belongs_to_another_toolchain(variable), "{variable}");
        }
    }
}
