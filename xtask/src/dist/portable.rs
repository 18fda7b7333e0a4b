//! The portable binary: static, with musl as its C library, for any x86-64 Linux; its debug information in a file of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::Release;
use crate::{
    apt,
    build::{OBJECT_VARIABLE, bpf_object},
    command::{self, announce, host_cargo, on_path, run},
    preload, workspace,
};

const TARGET: &str = "x86_64-unknown-linux-musl";
const PROFILE: &str = "dist";
/// Target of this name in cargo's variables.
const TARGET_VARIABLE: &str = "x86_64_unknown_linux_musl";

/// The largest binary that is released.
const MAX_BYTES: u64 = 20_000_000;

/// The binary, its debug information, and the library that samples malloc.
pub(super) struct Portable {
    pub(super) program: PathBuf,
    pub(super) debug_file: PathBuf,
    pub(super) sampler: PathBuf,
}

/// Builds the binary.
pub(super) fn build(release: &Release) -> Result<Portable> {
    prepare()?;
    let object = bpf_object()?;
    announce("building the portable binary (some minutes)");
    let cargo_home = workspace::cargo_home();
    let target = workspace::target()?;
    // Paths of this machine would make each clone's binary another one. The last that fits counts.
    let places = [(&*cargo_home, "/cargo"), (workspace::root(), "/jjleak"), (&*target, "/target")];
    let renames = |flag: &str| places.map(|(from, to)| format!("{flag}={}={to}", from.display()));
    let flags = renames("--remap-path-prefix").join("\x1f");
    run(host_cargo()
        .current_dir(workspace::root())
        .args(["build", "--locked", "--package", "jjleak", "--bin", "jjleak", "--profile", PROFILE])
        .args(["--target", TARGET])
        .env("CARGO_ENCODED_RUSTFLAGS", &flags)
        .env(format!("CFLAGS_{TARGET_VARIABLE}"), renames("-ffile-prefix-map").join(" "))
        .env("SOURCE_DATE_EPOCH", &release.epoch)
        .env(OBJECT_VARIABLE, object))
    .context("cannot build the portable binary")?;
    let built = target.join(TARGET).join(PROFILE).join("jjleak");
    let (program, debug_file) = split(release, &built)?;
    let sampler = preload::build(&release.work, |cargo| {
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags);
    })?;
    Ok(Portable { program, debug_file, sampler })
}

/// Splits the debug information off.
fn split(release: &Release, built: &Path) -> Result<(PathBuf, PathBuf)> {
    let program = release.work.join("jjleak");
    let debug_file = release.work.join("jjleak.debug");
    let objcopy = |arguments: &[&str], from: &Path, to: &Path| {
        run(release.command("objcopy").args(arguments).args([from, to]))
    };
    objcopy(&["--only-keep-debug", "--compress-debug-sections"], built, &debug_file)?;
    let link = format!("--add-gnu-debuglink={}", debug_file.display());
    // musl has its call frame information in a debug section; without it, stacks of this binary itself could not be walked.
    objcopy(&["--strip-all", "--keep-section=.debug_frame", &link], built, &program)?;
    let bytes = fs::metadata(&program)?.len();
    ensure!(bytes <= MAX_BYTES, "the portable binary has {bytes} bytes: more than {MAX_BYTES}");
    Ok((program, debug_file))
}

/// Installs the C library, and Rust's standard library for it.
fn prepare() -> Result<()> {
    if on_path("musl-gcc").is_none() {
        apt::install(&["musl-tools"], "the portable binary has musl as its C library")?;
    }
    let library =
        command::stdout(Command::new(rustc()).args(["--print", "target-libdir", "--target", TARGET]))?;
    if Path::new(library.trim()).is_dir() {
        return Ok(());
    }
    announce(&format!("installing Rust's standard library for {TARGET}"));
    run(Command::new("rustup").current_dir(workspace::root()).args(["target", "add", TARGET])).with_context(
        || format!("Rust's standard library for {TARGET} is missing: rustup target add {TARGET}"),
    )
}

/// The compiler that cargo uses: with rustup, the one of this workspace's toolchain.
fn rustc() -> PathBuf {
    std::env::var_os("RUSTC").map_or_else(|| "rustc".into(), PathBuf::from)
}
