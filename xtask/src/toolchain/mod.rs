//! The BPF toolchain: a compiler with the source of `core`, and a linker of the same LLVM major.
//!
//! Order of preference: a nightly of rustup, then the distribution's compiler, each only with a matching linker. If there is
//! neither, the distribution's packages are installed and a linker is built. Toolchains are called by path, never by name, so
//! that they do not interfere with each other.

mod compiler;
mod linker;
mod release;
mod rustup;
mod system;

use std::{fmt, path::PathBuf, process::Command};

use anyhow::Result;

use self::compiler::Compiler;
use crate::{command::announce, workspace};

/// Target of BPF objects: little-endian, like all machines that jjleak supports.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// A compiler and its matching linker.
pub(crate) struct Toolchain {
    compiler: Compiler,
    linker: PathBuf,
}

impl Toolchain {
    /// The preferred installed toolchain.
    pub(crate) fn find() -> Option<Self> {
        rustup::compilers().into_iter().chain(system::compiler()).find_map(|compiler| {
            let linker = linker::find(compiler.release.llvm)?;
            Some(Self { compiler, linker })
        })
    }

    /// The preferred installed toolchain; if there is none, installs one and announces it.
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

    /// Command `cargo build` for BPF; the caller adds what to build. Compiler flags come from the workspace's
    /// `.cargo/config.toml`.
    pub(crate) fn build(&self) -> Command {
        let mut command = self.compiler.cargo();
        command.arg("build");
        self.for_bpf(command)
    }

    /// Command `cargo clippy` for BPF; `None` if this toolchain has no clippy.
    pub(crate) fn clippy(&self) -> Option<Command> {
        Some(self.for_bpf(self.compiler.clippy()?))
    }

    fn for_bpf(&self, mut command: Command) -> Command {
        command.args(["--target", TARGET, "-Z", "build-std=core"]);
        // Paths of this machine would make each clone's object another one.
        let renamed = [(workspace::cargo_home(), "/cargo"), (workspace::root().to_owned(), "/jjleak")];
        for (from, to) in renamed {
            let flag = format!("--remap-path-prefix={}={to}", from.display());
            command.args(["--config", &format!("target.{TARGET}.rustflags=[{flag:?}]")]);
        }
        command.env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &self.linker);
        command
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.compiler, self.linker.display())
    }
}
