//! The BPF toolchain: a compiler with the source of `core`, and a linker of the same LLVM major.
//!
//! What is there is taken, in this order: a nightly of rustup's, then the distribution's compiler, each only with a
//! matching linker. If there is neither, the distribution's packages are installed and a linker is built. Toolchains
//! are called by path and never by name, so that none gets in the way of another.

mod compiler;
mod linker;
mod release;
mod rustup;
mod system;

use std::{fmt, path::PathBuf, process::Command};

use anyhow::Result;

use self::compiler::Compiler;
use crate::command::announce;

/// The target that BPF objects are built for: little endian, as every machine that jjleak supports.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// A compiler and the linker that goes with it.
pub(crate) struct Toolchain {
    compiler: Compiler,
    linker: PathBuf,
}

impl Toolchain {
    /// The best toolchain that is there.
    pub(crate) fn find() -> Option<Self> {
        rustup::compilers().into_iter().chain(system::compiler()).find_map(|compiler| {
            let linker = linker::find(compiler.release.llvm)?;
            Some(Self { compiler, linker })
        })
    }

    /// The best toolchain that is there; if there is none, installs one and says so.
    pub(crate) fn find_or_install() -> Result<Self> {
        if let Some(toolchain) = Self::find() {
            return Ok(toolchain);
        }
        for nightly in rustup::compilers() {
            announce(&format!("there is {nightly}, but no bpf-linker of its LLVM major"));
        }
        let compiler = system::compiler().map_or_else(system::install, Ok)?;
        let linker = linker::install(compiler.release.llvm)?;
        Ok(Self { compiler, linker })
    }

    /// `cargo build` for BPF; the caller adds what to build. The compiler's flags are those that the workspace's
    /// `.cargo/config.toml` has for the target.
    pub(crate) fn build(&self) -> Command {
        let mut command = self.compiler.cargo();
        command.arg("build");
        self.for_bpf(command)
    }

    /// `cargo clippy` for BPF; none if this toolchain has no clippy.
    pub(crate) fn clippy(&self) -> Option<Command> {
        Some(self.for_bpf(self.compiler.clippy()?))
    }

    fn for_bpf(&self, mut command: Command) -> Command {
        command.args(["--target", TARGET, "-Z", "build-std=core"]);
        command.env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &self.linker);
        command
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.compiler, self.linker.display())
    }
}
