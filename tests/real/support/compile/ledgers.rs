//! The ledger program, with each allocator that it can be built with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{BOOKKEEPING, compile, compile_with};

/// The program that keeps its own accounting and is controlled by a test.
pub(crate) fn ledger() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("ledger", &LEDGER.map(|unit| format!("ledger/{unit}.c")), BOOKKEEPING))
}

/// The same program in C++, with its operators.
pub(crate) fn cplusplus_ledger() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let sources = LEDGER.map(|unit| format!("ledger/{unit}.c"));
        let sources = [&sources[..], &["ledger/operators.cpp".to_owned()]].concat();
        // Each file in its own language.
        let flags = [CPLUSPLUS, &BOOKKEEPING[1..], &["-Wl,--no-as-needed", "-lstdc++"]].concat();
        compile("cplusplus-ledger", &sources, &flags)
    })
}

/// Other builds of the ledger program: with various C libraries and allocators, dynamic and static.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LedgerBuild {
    /// Static glibc, at a fixed address.
    Static,
    /// Static glibc, at any address.
    StaticPie,
    /// Dynamic musl.
    Musl,
    /// Static musl.
    StaticMusl,
    /// Static jemalloc, in C++.
    Jemalloc,
    /// Static tcmalloc, in C++.
    Tcmalloc,
}

/// The ledger program in another build.
pub(crate) fn ledger_as(build: LedgerBuild) -> PathBuf {
    static BUILT: Mutex<BTreeMap<LedgerBuild, PathBuf>> = Mutex::new(BTreeMap::new());
    // A failed build leaves nothing behind that could affect other tests.
    let mut ledgers = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    ledgers.entry(build).or_insert_with(|| build_ledger(build)).clone()
}

fn build_ledger(build: LedgerBuild) -> PathBuf {
    // The kernel's headers are in the same folder as glibc's, and must come after musl's.
    const HEADERS: [&str; 4] = ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"];
    let mut sources = LEDGER.map(|unit| format!("ledger/{unit}.c")).to_vec();
    let mut flags = BOOKKEEPING.to_vec();
    let compiler = match build {
        LedgerBuild::Musl | LedgerBuild::StaticMusl => {
            flags.extend(HEADERS);
            "musl-gcc"
        }
        LedgerBuild::Jemalloc | LedgerBuild::Tcmalloc => {
            sources.push("ledger/operators.cpp".to_owned());
            // Each file in its own language.
            flags.remove(0);
            flags.extend(CPLUSPLUS);
            "cc"
        }
        LedgerBuild::Static | LedgerBuild::StaticPie => "cc",
    };
    flags.extend(match build {
        LedgerBuild::Static | LedgerBuild::StaticMusl => &["-static"][..],
        LedgerBuild::StaticPie => &["-static-pie"],
        LedgerBuild::Musl => &[],
        LedgerBuild::Jemalloc => &[WHOLE_JEMALLOC, "-Wl,--no-as-needed", "-lstdc++", "-lm"],
        LedgerBuild::Tcmalloc => &["-no-pie", WHOLE_TCMALLOC, "-Wl,--no-as-needed", "-lstdc++", "-lm"],
    });
    compile_with(compiler, &format!("ledger-{build:?}"), &sources, &flags)
}

/// Links all of a library, although nothing references it yet.
const WHOLE_JEMALLOC: &str = "-Wl,--whole-archive,-l:libjemalloc_pic.a,--no-whole-archive";
const WHOLE_TCMALLOC: &str = "-Wl,--whole-archive,-l:libtcmalloc_minimal.a,--no-whole-archive";

/// The Rust program with static jemalloc: under its default prefix, or as a replacement of malloc.
pub(crate) fn rust_ledger(unprefixed: bool) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(if unprefixed { "rust-unprefixed" } else { "rust" });
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/rust/Cargo.toml");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]).arg(manifest);
    cargo.arg("--target-dir").arg(&folder).env_remove("RUSTFLAGS");
    if unprefixed {
        cargo.args(["--features", "unprefixed"]);
    }
    assert!(cargo.status().unwrap().success(), "cannot build the Rust program");
    folder.join("release/rust-ledger")
}

/// Flags that enable the C++ scenarios of the ledger program.
const CPLUSPLUS: &[&str] = &["-DCPLUSPLUS", "-fsized-deallocation"];

/// The ledger program's source files.
const LEDGER: [&str; 18] = [
    "accounts",
    "sites",
    "calls",
    "crowds",
    "depths",
    "escapes",
    "files",
    "jemalloc",
    "main",
    "mappings",
    "own",
    "pools",
    "processes",
    "ranges",
    "steady",
    "tables",
    "ledgers",
    "threads",
];
