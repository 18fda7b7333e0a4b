//! The distribution's own Rust in /usr: Debian's `rustc-web`, `cargo-web` and `rust-web-src`.
//!
//! It is a release build; `RUSTC_BOOTSTRAP` enables the unstable features.

use std::path::Path;

use anyhow::{Context, Result};

use super::{
    Compiler,
    compiler::{Features, has_core_source},
};
use crate::{apt, command::announce};

const SYSROOT: &str = "/usr";

/// The workspace's minimum version, from Cargo.toml.
const MINIMUM: &str = env!("CARGO_PKG_RUST_VERSION");

/// Debian keeps these current in stable releases because browsers are built with them. Its plain `rustc` is years old.
const PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];

/// The distribution's compiler, if installed with its sources and new enough for this workspace.
pub(super) fn compiler() -> Option<Compiler> {
    let sysroot = Path::new(SYSROOT);
    if !has_core_source(sysroot) {
        return None;
    }
    let compiler = Compiler::new(sysroot, Features::Bootstrap).ok()?;
    compiler.release.is_at_least(MINIMUM).then_some(compiler)
}

/// Installs the distribution's compiler.
pub(super) fn install() -> Result<Compiler> {
    install_packages()?;
    if let Some(compiler) = compiler() {
        return Ok(compiler);
    }
    // Outdated package lists offer the version that was released with the distribution.
    announce(&format!("the Rust compiler in {SYSROOT} is older than {MINIMUM}; looking for a newer one"));
    apt::refresh()?;
    install_packages()?;
    compiler().with_context(|| {
        format!(
            "{} are installed, and yet {SYSROOT} has no Rust compiler of {MINIMUM} or later with its sources: \
             are the distribution's security updates among apt's sources?",
            PACKAGES.join(", "),
        )
    })
}

fn install_packages() -> Result<()> {
    apt::install(PACKAGES, "a Rust compiler that can build for BPF").context(
        "there is no BPF toolchain (a rustup nightly with rust-src and a bpf-linker of its LLVM major would do, too)",
    )
}
