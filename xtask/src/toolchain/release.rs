//! Version information of a compiler.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

use crate::command::stdout;

/// The parts of `rustc -vV` that decide compatibility.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Release {
    /// As printed: `1.96.0`, `1.97.0-nightly`.
    pub(super) version: String,
    /// Major version of its LLVM. A BPF linker must have the same: bitcode changes between majors.
    pub(super) llvm: u32,
}

impl Release {
    /// Reads it from the compiler at `rustc`.
    pub(super) fn of(rustc: &Path) -> Result<Self> {
        let text = stdout(Command::new(rustc).arg("-vV").env_remove("LD_LIBRARY_PATH"))?;
        Self::parse(&text).with_context(|| format!("cannot make sense of `{} -vV`:\n{text}", rustc.display()))
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let llvm = field("LLVM version")?;
        Some(Self { version: field("release")?.to_owned(), llvm: llvm.split('.').next()?.parse().ok()? })
    }

    /// Returns true for at least the `major.minor` release that the workspace declares as its minimum.
    pub(super) fn is_at_least(&self, minimum: &str) -> bool {
        let numbers = |version: &str| -> Option<(u32, u32)> {
            let mut parts = version.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        };
        numbers(&self.version) >= numbers(minimum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\n\
        binary: rustc\n\
        commit-hash: ac68faa20c58cbccd01ee7208bf3b6e93a7d7f96\n\
        commit-date: 2026-05-25\n\
        host: x86_64-unknown-linux-gnu\n\
        release: 1.96.0\n\
        LLVM version: 22.1.8\n";

    #[test]
    fn version_and_llvm_major_are_read() {
        let release = Release::parse(DEBIAN).unwrap();
        assert_eq!(release.version, "1.96.0");
        assert_eq!(release.llvm, 22);
    }

    #[test]
    fn a_compiler_without_llvm_is_refused() {
        assert_eq!(Release::parse(&DEBIAN.replace("LLVM", "Cranelift")), None);
    }

    #[test]
    fn releases_compare_by_number() {
        let mut release = Release::parse(DEBIAN).unwrap();
        assert!(release.is_at_least("1.88"));
        assert!(release.is_at_least("1.96"));
        assert!(!release.is_at_least("1.100"));
        release.version = "1.97.0-nightly".to_owned();
        assert!(release.is_at_least("1.96.1"));
        release.version = "1.63.0".to_owned();
        assert!(!release.is_at_least("1.88"));
    }
}
