//! Programs and libraries that fixtures and tests need besides the toolchains.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::{
    apt,
    command::{announce, on_path},
};

/// A program or a shared library, and the Debian package that holds it.
struct Prerequisite {
    what: Needed,
    package: &'static str,
    /// The service that comes with the package; only the program is wanted.
    service: Option<&'static str>,
}

/// What tests look for.
enum Needed {
    Program(&'static str),
    /// A library to link to, by the name of its file.
    Archive(&'static str),
    /// By the name under which it is loaded.
    Library(&'static str),
}

const fn program(program: &'static str, package: &'static str) -> Prerequisite {
    Prerequisite { what: Needed::Program(program), package, service: None }
}

const fn archive(archive: &'static str, package: &'static str) -> Prerequisite {
    Prerequisite { what: Needed::Archive(archive), package, service: None }
}

const fn library(library: &'static str, package: &'static str) -> Prerequisite {
    Prerequisite { what: Needed::Library(library), package, service: None }
}

/// Compilers for the leaking fixtures, allocators to run them with, the oracles of stacks and files, a browser, and real
/// programs that are profiled.
const FOR_TESTS: &[Prerequisite] = &[
    // Sets up a container without a daemon or a network.
    program("bwrap", "bubblewrap"),
    program("chromium", "chromium"),
    // Its output has other debug information than GCC's.
    program("clang", "clang"),
    program("gcc", "gcc"),
    program("g++", "g++"),
    program("gdb", "gdb"),
    program("git", "git"),
    program("go", "golang-go"),
    program("javac", "openjdk-17-jdk-headless"),
    program("perl", "perl"),
    program("python3", "python3"),
    program("python3-config", "python3-dev"),
    Prerequisite { service: Some("postgresql.service"), ..program("pg_createcluster", "postgresql") },
    program("sqlite3", "sqlite3"),
    program("systemd-analyze", "systemd"),
    // The terminal in which the live view is watched.
    program("tmux", "tmux"),
    program("xz", "xz-utils"),
    program("musl-gcc", "musl-tools"),
    // Linkers, and what changes what they have linked.
    program("ld.gold", "binutils"),
    program("ld.lld", "lld"),
    program("mold", "mold"),
    program("patchelf", "patchelf"),
    program("node", "nodejs"),
    library("libjemalloc.so.2", "libjemalloc2"),
    archive("libjemalloc_pic.a", "libjemalloc-dev"),
    library("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    archive("libtcmalloc_minimal.a", "libgoogle-perftools-dev"),
    library("libmimalloc.so.2", "libmimalloc2.0"),
    Prerequisite { service: Some("redis-server.service"), ..program("redis-server", "redis-server") },
    program("redis-benchmark", "redis-tools"),
];

/// What only tests that take minutes need: Node.js takes as much room as all of the above, and pip fetches JDKs.
const FOR_LONG_TESTS: &[Prerequisite] = &[program("node", "nodejs"), program("pip3", "python3-pip")];

/// Programs that jjleak is timed on.
const FOR_BENCHMARKS: &[Prerequisite] = &[
    program("gcc", "gcc"),
    program("javac", "openjdk-17-jdk-headless"),
    Prerequisite { service: Some("redis-server.service"), ..program("redis-server", "redis-server") },
    program("redis-benchmark", "redis-tools"),
    program("python3", "python3"),
    program("sqlite3", "sqlite3"),
    // The terminal of the live view.
    program("tmux", "tmux"),
];

/// What it is compared with: where one is not to be had, the table says so.
const PEERS: &[Prerequisite] = &[
    program("bpftrace", "bpftrace"),
    program("heaptrack", "heaptrack"),
    program("zstd", "zstd"),
    library("libjemalloc.so.2", "libjemalloc2"),
];

/// Installs what the tests need and is missing.
pub(crate) fn for_tests(long: bool) -> Result<()> {
    let needed = FOR_TESTS.iter().chain(FOR_LONG_TESTS.iter().filter(|_| long));
    install(needed, "compilers, allocators and programs for the tests")
}

/// Installs what the benchmark needs and is missing.
pub(crate) fn for_benchmarks() -> Result<()> {
    install(FOR_BENCHMARKS.iter(), "programs that jjleak is timed on")?;
    for peer in PEERS {
        if let Err(error) = install([peer].into_iter(), "tools that jjleak is compared with") {
            announce(&format!("{error:#}; going on without"));
        }
    }
    Ok(())
}

fn install(needed: impl Iterator<Item = &'static Prerequisite>, purpose: &str) -> Result<()> {
    let missing: Vec<_> = needed.filter(|it| !it.what.is_installed()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<_> = missing.iter().map(|it| it.package).collect();
    apt::install(&packages, purpose)?;
    missing.iter().filter_map(|it| it.service).try_for_each(apt::keep_off)
}

impl Needed {
    fn is_installed(&self) -> bool {
        match self {
            Self::Program(name) => on_path(name).is_some(),
            Self::Archive(name) => ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]
                .iter()
                .any(|folder| Path::new(folder).join(name).exists()),
            Self::Library(name) => {
                let known = Command::new("/sbin/ldconfig").arg("-p").output();
                let known = known.map(|output| output.stdout).unwrap_or_default();
                String::from_utf8_lossy(&known).lines().any(|line| line.trim_start().starts_with(name))
            }
        }
    }
}
