//! bpf-linker: finds one that reads a compiler's bitcode, or builds it.

use std::{
    collections::BTreeSet,
    fs,
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    apt,
    command::{announce, host_cargo, on_path, run, succeeds},
    workspace,
};

/// Version that is known to build this workspace's BPF programs, and the LLVM majors that it supports.
const VERSION: &str = "0.13.0";
const VERSION_SUPPORTS: std::ops::RangeInclusive<u32> = 21..=23;

const PROGRAM: &str = "bpf-linker";

/// Buffer size for reading the executable of a linker, which may exceed 100 MB.
const READ_BUFFER: usize = 1 << 20;

/// A linker for bitcode of LLVM `major`: from the PATH, or built by xtask before.
pub(super) fn find(major: u32) -> Option<PathBuf> {
    let on_path = on_path(PROGRAM).filter(|path| llvm_major(path) == Some(major));
    let built = || Some(folder(major).ok()?.join("bin").join(PROGRAM));
    on_path.filter(|path| runs(path)).or_else(|| built().filter(|path| runs(path)))
}

/// Builds a linker for bitcode of LLVM `major` into xtask's own folder, with the distribution's LLVM.
pub(super) fn install(major: u32) -> Result<PathBuf> {
    let llvm = PathBuf::from(format!("/usr/lib/llvm-{major}"));
    if !llvm.join("lib/libLLVM.so").exists() {
        apt::install(&[&format!("llvm-{major}-dev")], "bpf-linker is built against rustc's LLVM")?;
    }
    let root = folder(major)?;
    announce(&format!("building bpf-linker for LLVM {major} into {} (once, about a minute)", root.display()));
    let mut cargo = host_cargo();
    cargo
        .args(["install", PROGRAM, "--locked", "--force", "--no-default-features"])
        .args(["--features", &format!("llvm-{major}")])
        .arg("--root")
        .arg(&root)
        .env("LLVM_PREFIX", &llvm)
        .env("LIBRARY_PATH", llvm.join("lib"))
        // cargo then builds in a temporary folder.
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS");
    if let Some(version) = pinned_version(major) {
        cargo.args(["--version", version]);
    }
    run(&mut cargo).with_context(|| format!("cannot build bpf-linker for LLVM {major}"))?;
    let linker = root.join("bin").join(PROGRAM);
    if !runs(&linker) {
        bail!("{} was built and does not run: try it by hand and see what it says", linker.display());
    }
    Ok(linker)
}

/// Version to install for LLVM `major`; `None` means the newest, for an LLVM newer than the pinned version supports.
fn pinned_version(major: u32) -> Option<&'static str> {
    VERSION_SUPPORTS.contains(&major).then_some(VERSION)
}

/// Folder of the linker that xtask builds for LLVM `major`.
fn folder(major: u32) -> Result<PathBuf> {
    let version = pinned_version(major).unwrap_or("newest");
    Ok(workspace::cache()?.join(format!("{PROGRAM}-{version}-llvm{major}")))
}

fn runs(linker: &Path) -> bool {
    // Its LLVM may be a shared library that has been removed since.
    succeeds(Command::new(linker).arg("--version"))
}

/// LLVM major that the linker at `path` reads; `None` if unknown.
///
/// `bpf-linker --version` does not print it. Instead, the executable is searched for the name of the shared library that it
/// needs, or for the producer string of the bitcode writer.
fn llvm_major(path: &Path) -> Option<u32> {
    // A rustup or cargo proxy is a link; the target file counts.
    let path = fs::canonicalize(path).ok()?;
    let majors = llvm_majors(BufReader::with_capacity(READ_BUFFER, File::open(path).ok()?)).ok()?;
    match majors.into_iter().collect::<Vec<_>>()[..] {
        [major] => Some(major),
        _ => None,
    }
}

/// Majors in all occurrences of forms such as `libLLVM.so.22.1`, `libLLVM-22.so` and `LLVM22.1.8` in `executable`.
///
/// It reads up to each `M` instead of byte by byte: xtask is built without optimization, but the standard library's search is
/// optimized.
fn llvm_majors(mut executable: impl BufRead) -> io::Result<BTreeSet<u32>> {
    let mut majors = BTreeSet::new();
    let mut piece = Vec::new();
    let mut follows_llvm = false;
    loop {
        piece.clear();
        if executable.read_until(b'M', &mut piece)? == 0 {
            return Ok(majors);
        }
        if follows_llvm {
            majors.extend(leading_major(&piece));
        }
        follows_llvm = piece.ends_with(b"LLVM");
    }
}

/// The number before `.` or `-`, after the separator between `LLVM` and its version in a library's name.
fn leading_major(text: &[u8]) -> Option<u32> {
    let library = text.strip_prefix(b".so.").or_else(|| text.strip_prefix(b"-"));
    let (version, end): (_, &[u8]) = library.map_or((text, b"."), |version| (version, b".-"));
    let digits = version.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !version.get(digits).is_some_and(|byte| end.contains(byte)) {
        return None;
    }
    std::str::from_utf8(&version[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn majors(executable: &[u8]) -> Vec<u32> {
        llvm_majors(executable).unwrap().into_iter().collect()
    }

    #[test]
    fn a_needed_shared_library_names_the_major() {
        assert_eq!(majors(b"\x7fELF\0libLLVM.so.22.1\0libgcc_s.so.1\0"), [22]);
        assert_eq!(majors(b"\0libLLVM-21.so\0"), [21]);
        assert_eq!(majors(b"\0libLLVM-21-rust-1.90.0-stable.so\0"), [21]);
    }

    #[test]
    fn the_producer_of_a_static_llvm_names_the_major() {
        assert_eq!(majors(b"LLVM ERROR: \0LLVM23.1.0\0LLVM version "), [23]);
    }

    #[test]
    fn words_about_llvm_are_no_version() {
        assert_eq!(majors(b"LLVM 22.1\0libLLVMBPFCodeGen.a\0LLVM\0LLVM22\0-llvm-21.\0LLVM-C.so"), [0_u32; 0]);
    }

    #[test]
    fn an_llvm_after_the_pinned_release_takes_the_newest_linker() {
        assert_eq!(pinned_version(22), Some(VERSION));
        assert_eq!(pinned_version(99), None);
    }
}
