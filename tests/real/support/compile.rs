//! Compiles the fixtures, each once per run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

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

/// The C++ program that allocates more than is available, and catches the exception.
pub(crate) fn exhaustion() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile_with("c++", "exhaustion", &["exhaustion.cpp".to_owned()], &["-g"]))
}

/// The program that allocates before `main`, prints its accounting, and ends.
pub(crate) fn early() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let units = ["early.c", "ledger/books.c", "ledger/sites.c"].map(str::to_owned);
    PATH.get_or_init(|| compile("early", &units, BOOKKEEPING))
}

/// The same without shared libraries.
pub(crate) fn static_early() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let units = ["early.c", "ledger/books.c", "ledger/sites.c"].map(str::to_owned);
    let flags = [BOOKKEEPING, &["-static"]].concat();
    PATH.get_or_init(|| compile("static-early", &units, &flags))
}

/// The program that has no allocator, and ends at once.
pub(crate) fn silent() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("silent", &["silent.c".to_owned()], &["-nostdlib", "-static"]))
}

/// A program that cannot start, because its library is gone.
pub(crate) fn orphan() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // A library that the linker finds by path, and that the loader does not find by its soname.
        let named = "-Wl,-soname,libgone-for-ever.so";
        let library = compile("libgone.so", &[], &["-shared", named, "-x", "c", "/dev/null"]);
        compile("orphan", &["orphan.c".to_owned()], &["-Wl,--no-as-needed", library.to_str().unwrap()])
    })
}

/// The leaking Python extension, in its own folder.
pub(crate) fn leaky() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let includes = Command::new("/usr/bin/python3-config").arg("--includes").output().unwrap().stdout;
        let includes = String::from_utf8(includes).unwrap();
        let flags: Vec<_> = includes.split_whitespace().chain(["-g", "-shared", "-fPIC"]).collect();
        compile("leaky.so", &["leaky.c".to_owned()], &flags)
    })
}

/// The program that leaks and churns at a given pace.
pub(crate) fn paced() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("paced", &["paced.c".to_owned()], &["-std=gnu11", "-g", "-O1"]))
}

/// Mechanism by which the wrapping library forwards calls to the C library's allocator.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wrapper {
    /// Calls.
    Calling,
    /// Jumps.
    Jumping,
    /// Jumps, with a `malloc` that is chosen at start-up.
    Indirect,
}

/// The library that wraps the C library's allocator.
pub(crate) fn wrapper(wrapper: Wrapper) -> PathBuf {
    let how = match wrapper {
        Wrapper::Calling => "-DRETURNING",
        Wrapper::Jumping => "-DJUMPING",
        Wrapper::Indirect => "-DINDIRECT",
    };
    let flags = ["-shared", "-fPIC", "-fno-builtin", how];
    compile(&format!("libwrapper{wrapper:?}.so"), &["wrapper.c".to_owned()], &flags)
}

/// The library that moves a program's wall clock.
pub(crate) fn clock() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("libclock.so", &["clock.c".to_owned()], &["-shared", "-fPIC"]))
}

/// The program with leaks, caches and churn.
pub(crate) fn verdicts() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("verdicts", &["verdicts.c".to_owned()], &["-std=c11", "-g", "-pthread"]))
}

/// The program that keeps memory which the C library has allocated for it.
pub(crate) fn kept_by_library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        compile("kept_by_library", &["kept_by_library.c".to_owned()], &["-std=c11", "-g", "-pthread"])
    })
}

/// The program whose threads allocate at random and log their calls.
pub(crate) fn differential() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("differential", &["differential.c".to_owned()], BOOKKEEPING))
}

/// The program with very many threads.
pub(crate) fn multitude() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("multitude", &["multitude.c".to_owned()], &["-std=c11", "-g", "-pthread"]))
}

/// The program whose main thread ends before the others.
pub(crate) fn headless() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("headless", &["headless.c".to_owned()], &["-O2", "-g", "-pthread"]))
}

/// The program that generates code and names it.
pub(crate) fn jit() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        compile("jit", &["jit.c".to_owned()], &["-D_GNU_SOURCE", "-g", "-fomit-frame-pointer"])
    })
}

/// The same program with a static C library.
pub(crate) fn static_jit() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        compile(
            "static-jit",
            &["jit.c".to_owned()],
            &["-D_GNU_SOURCE", "-g", "-fomit-frame-pointer", "-static"],
        )
    })
}

/// The program without a C library.
pub(crate) fn bare() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("bare", &["bare.c".to_owned()], &["-nostdlib", "-static"]))
}

/// A program with functions whose names look mangled and are not, and an interrupted function; not cached.
pub(crate) fn names(compiler: &str, flags: &[&str]) -> PathBuf {
    let name = format!("names-{compiler}{}", flags.concat());
    compile_with(compiler, &name, &["names.c".to_owned()], flags)
}

/// A program that allocates below tail calls; not cached.
pub(crate) fn tail_calls(compiler: &str, flags: &[&str]) -> PathBuf {
    let name = format!("tail_calls-{compiler}{}", flags.concat());
    compile_with(compiler, &name, &["tail_calls.c".to_owned()], flags)
}

/// A program that loads a library with an allocator of its own and ends at once, and the library; not remembered.
pub(crate) fn loading_late() -> (PathBuf, PathBuf) {
    let source = ["loaded_late.c".to_owned()];
    let library = ["-DLIBRARY", "-O1", "-shared", "-fPIC", "-fno-builtin", "-Wl,-Bsymbolic"];
    (
        compile_with("cc", "loading-late", &source, &["-O1"]),
        compile_with("cc", "libloaded-late.so", &source, &library),
    )
}

/// A program that allocates in fibres; not cached.
pub(crate) fn fibres(flags: &[&str]) -> PathBuf {
    compile_with("cc", &format!("fibres{}", flags.concat()), &["fibres.c".to_owned()], flags)
}

/// A 32-bit program, which needs no C library.
pub(crate) fn narrow() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let flags = ["-m32", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"];
        compile("narrow", &["narrow.S".to_owned()], &flags)
    })
}

/// Executes another program under a filter that forbids bpf(2).
pub(crate) fn filtered() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("filtered", &["filtered.c".to_owned()], &["-O2"]))
}

/// A program with the same exports as HotSpot.
pub(crate) fn launcher() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("launcher", &["java/launcher.c".to_owned()], &["-g", "-rdynamic"]))
}

/// Builds of the programs for shapes of stacks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Build {
    /// Position-independent, as distributions build: without frame pointers.
    NoFramePointers,
    /// Position-independent, with frame pointers.
    FramePointers,
    /// At a fixed address, with a static C library.
    Static,
}

impl Build {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::NoFramePointers => &["-fomit-frame-pointer", "-pie", "-fPIE", "-Wl,-z,lazy"],
            Self::FramePointers => &["-fno-omit-frame-pointer", "-pie", "-fPIE", "-Wl,-z,lazy"],
            Self::Static => &["-fomit-frame-pointer", "-static", "-no-pie", "-DSTATIC"],
        }
    }
}

/// A program of `stacks/`, C or C++; not cached, so that each test builds its own.
pub(crate) fn stacks(source: &str, build: Build) -> PathBuf {
    let shared = ["-g", "-D_GNU_SOURCE", "-pthread", "-Wl,--no-as-needed"];
    let cplusplus = source.ends_with("cpp").then_some("-lstdc++");
    let flags: Vec<_> =
        shared.iter().copied().chain(build.flags().iter().copied()).chain(cplusplus).collect();
    compile(&format!("{source}-{build:?}"), &[format!("stacks/{source}")], &flags)
}

/// The program of `stacks/`, linked with these options.
pub(crate) fn stacks_linked(name: &str, flags: &[&str]) -> PathBuf {
    let shared = ["-g", "-D_GNU_SOURCE", "-pthread", "-Wl,--no-as-needed", "-fomit-frame-pointer"];
    compile(&format!("linked-{name}"), &["stacks/stacks.c".to_owned()], &[&shared, flags].concat())
}

/// A Rust program, built as `cargo build` does, with the toolchain's default linker.
pub(crate) fn rust_hello() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rust-hello");
        let mut rustc = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"));
        rustc.args(["--edition", "2024", "-C", "debuginfo=2", "-C", "opt-level=0"]);
        let status = rustc.arg(fixtures.join("hello.rs")).arg("-o").arg(&program).status().unwrap();
        assert!(status.success(), "cannot build the Rust program");
        program
    })
}

/// The program that is interrupted while the dynamic loader binds one of its calls.
pub(crate) fn binding() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-g", "-no-pie", "-fomit-frame-pointer", "-fplt", "-Wl,-z,lazy"];
    PATH.get_or_init(|| compile("binding", &["stacks/binding.c".to_owned()], &flags))
}

/// The program with stacks of exactly the maximum number of frames, and of more.
pub(crate) fn deepest() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-g", "-fomit-frame-pointer"];
    PATH.get_or_init(|| compile("deepest", &["stacks/deepest.c".to_owned()], &flags))
}

/// The program that allocates around a page of its stack that is absent at first.
pub(crate) fn absent() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-g", "-O1", "-fno-omit-frame-pointer"];
    PATH.get_or_init(|| compile("absent", &["stacks/absent.c".to_owned()], &flags))
}

/// The program whose frames cannot be unwound.
pub(crate) fn garbage() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let units = ["stacks/garbage.c", "stacks/garbage.S"].map(str::to_owned);
    PATH.get_or_init(|| compile("garbage", &units, &["-g", "-fomit-frame-pointer"]))
}

/// The program with code that has no call frame information and keeps frame pointers: some of its own, and all of a library.
pub(crate) fn without_rows() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let source = ["stacks/without_rows.c".to_owned()];
        // Debug information would contain call frame information, too.
        let without = ["-fno-asynchronous-unwind-tables", "-Wl,--no-ld-generated-unwind-info", "-nostdlib"];
        let flags = ["-DLIBRARY", "-shared", "-fPIC", "-fno-omit-frame-pointer"];
        let library = compile("libwithoutrows.so", &source, &[&flags[..], &without].concat());
        compile("without_rows", &source, &["-g", "-Wl,--no-as-needed", library.to_str().unwrap()])
    })
}

/// The program that generates code.
pub(crate) fn generated() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-g", "-D_GNU_SOURCE", "-fomit-frame-pointer"];
    PATH.get_or_init(|| compile("generated", &["stacks/generated.c".to_owned()], &flags))
}

/// The library that the program of `stacks/` loads, with lazily bound calls.
pub(crate) fn stacks_library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-g", "-shared", "-fPIC", "-fomit-frame-pointer", "-Wl,-z,lazy"];
    PATH.get_or_init(|| compile("libstacks.so", &["stacks/library.c".to_owned()], &flags))
}

/// The program that replaces one library by another, and both libraries.
pub(crate) fn replacing() -> &'static [PathBuf; 3] {
    static PATHS: OnceLock<[PathBuf; 3]> = OnceLock::new();
    PATHS.get_or_init(|| {
        let library = |name: &str, size: &str, frame: &str| {
            let definitions =
                [format!("-DNAME={name}"), format!("-DSIZE={size}"), format!("-DFRAME_BYTES={frame}")];
            let flags = ["-g", "-shared", "-fPIC", "-fomit-frame-pointer"];
            let flags: Vec<_> = flags.into_iter().chain(definitions.iter().map(String::as_str)).collect();
            compile(&format!("lib{name}.so"), &["stacks/replaced.c".to_owned()], &flags)
        };
        let flags = ["-g", "-fomit-frame-pointer"];
        let program = compile("replacing", &["stacks/replacing.c".to_owned()], &flags);
        [program, library("in_first", "2001", "1016"), library("in_second", "2002", "4088")]
    })
}

/// Copies a program into a folder. Uses cp, because a file written by this process may be held open for a moment by a child that
/// another test is just starting; executing it would then fail with `ETXTBSY`.
pub(crate) fn copy(program: &Path, folder: &Path) -> PathBuf {
    let status = Command::new("cp").args([program, folder]).status().unwrap();
    assert!(status.success(), "cannot copy {}", program.display());
    folder.join(program.file_name().unwrap())
}

/// Flags that the fixtures' comments require: optimized, but with frame pointers and all calls to the allocator as written.
const BOOKKEEPING: &[&str] =
    &["-std=c11", "-D_GNU_SOURCE", "-g", "-fno-omit-frame-pointer", "-fno-builtin", "-pthread"];

/// Flags that enable the C++ scenarios of the ledger program.
const CPLUSPLUS: &[&str] = &["-DCPLUSPLUS", "-fsized-deallocation"];

/// The ledger program's source files.
const LEDGER: [&str; 18] = [
    "books",
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

fn compile(name: &str, sources: &[String], flags: &[&str]) -> PathBuf {
    compile_with("cc", name, sources, flags)
}

/// Compiles under a temporary name and renames, so that concurrent test runs never see a partial program.
fn compile_with(compiler: &str, name: &str, sources: &[String], flags: &[&str]) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").canonicalize().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join(name);
    let unfinished = folder.join(format!("{name}-{}", std::process::id()));
    let output = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra"])
        .args(flags)
        .args(sources.iter().map(|source| fixtures.join(source)))
        .arg("-o")
        .arg(&unfinished)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {compiler}: {error}"));
    assert!(output.status.success(), "cannot compile {name}:\n{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(unfinished, &program).unwrap();
    program
}
