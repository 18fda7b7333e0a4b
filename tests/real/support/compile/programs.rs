//! Programs and libraries with one purpose each.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{BOOKKEEPING, compile, compile_with};
use crate::support::jjleak::PROGRAM;

/// The C++ program that allocates more than is available, and catches the exception.
pub(crate) fn exhaustion() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile_with("c++", "exhaustion", &["exhaustion.cpp".to_owned()], &["-g"]))
}

/// The program that fills malloc's arenas, and says what glibc counts.
pub(crate) fn arenas() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("arenas", &["arenas.c".to_owned()], &["-g", "-pthread"]))
}

/// The same without shared libraries.
pub(crate) fn static_arenas() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("static-arenas", &["arenas.c".to_owned()], &["-g", "-pthread", "-static"]))
}

/// The program that allocates before `main`, prints its accounting, and ends.
pub(crate) fn early() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let units = ["early.c", "ledger/accounts.c", "ledger/sites.c"].map(str::to_owned);
    PATH.get_or_init(|| compile("early", &units, BOOKKEEPING))
}

/// The same without shared libraries.
pub(crate) fn static_early() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let units = ["early.c", "ledger/accounts.c", "ledger/sites.c"].map(str::to_owned);
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

/// The library that maps files when it is preloaded.
pub(crate) fn map_files() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("map_files.so", &["map_files.c".to_owned()], &["-g", "-shared", "-fPIC"]))
}

/// The program that presents itself to a profiler as a hostile one would.
pub(crate) fn hostile() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let units = ["main", "files", "memory", "names", "perf", "life"];
        let units = units.map(|unit| format!("hostile/{unit}.c"));
        compile("hostile", &units, &["-std=gnu11", "-D_GNU_SOURCE", "-g", "-pthread"])
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

/// The same, linked statically with glibc.
pub(crate) fn static_paced() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        compile("static-paced", &["paced.c".to_owned()], &["-std=gnu11", "-g", "-O1", "-static"])
    })
}

/// The program that touches memory as it is told to.
pub(crate) fn touched() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("touched", &["touched.c".to_owned()], &["-std=gnu11", "-g", "-O1"]))
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

/// The library that says whether its malloc was called, with this kind of table for its symbols.
pub(crate) fn called(hash_style: &str) -> PathBuf {
    let style = format!("-Wl,--hash-style={hash_style}");
    let flags = ["-shared", "-fPIC", "-fno-builtin", &style];
    compile(&format!("libcalled-{hash_style}.so"), &["called.c".to_owned()], &flags)
}

/// The library with functions named as an allocator's that the kernel does not probe.
pub(crate) fn unprobeable() -> PathBuf {
    let versions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/unprobeable.map");
    let versions = format!("-Wl,--version-script={}", versions.display());
    compile("libunprobeable.so", &["unprobeable.c".to_owned()], &["-shared", "-fPIC", &versions])
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

/// The program with very many stacks.
pub(crate) fn paths() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("paths", &["paths.c".to_owned()], &["-std=gnu11", "-O1", "-g"]))
}

/// The program whose malloc has free memory.
pub(crate) fn trim() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("trim", &["trim.c".to_owned()], &["-std=gnu11", "-O2"]))
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

/// A program with functions whose names look mangled and are not, and an interrupted function.
pub(crate) fn names(compiler: &str, flags: &[&str]) -> PathBuf {
    let name = format!("names-{compiler}{}", flags.concat());
    compile_with(compiler, &name, &["names.c".to_owned()], flags)
}

/// A program that allocates below tail calls.
pub(crate) fn tail_calls(compiler: &str, flags: &[&str]) -> PathBuf {
    let name = format!("tail_calls-{compiler}{}", flags.concat());
    compile_with(compiler, &name, &["tail_calls.c".to_owned()], flags)
}

/// A program that loads a library with an allocator of its own and ends at once, and the library.
pub(crate) fn loading_late() -> (PathBuf, PathBuf) {
    let source = ["loaded_late.c".to_owned()];
    let library = ["-DLIBRARY", "-O1", "-shared", "-fPIC", "-fno-builtin", "-Wl,-Bsymbolic"];
    (
        compile_with("cc", "loading-late", &source, &["-O1"]),
        compile_with("cc", "libloaded-late.so", &source, &library),
    )
}

/// A program with all that is hard for a sampler of malloc, and a library that it loads again and again.
pub(crate) fn sampled_soak() -> (PathBuf, PathBuf) {
    let source = ["sampled_soak.c".to_owned()];
    (
        compile("sampled-soak", &source, &["-O1", "-g", "-pthread"]),
        compile("libsampled-soak.so", &source, &["-DLIBRARY", "-O1", "-shared", "-fPIC", "-fno-builtin"]),
    )
}

/// A program that allocates in fibres.
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

/// The program that announces samples at probes of OpenTelemetry.
pub(crate) fn announced() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile_announced("announced", &[]))
}

/// The same at probes of Datadog, with their weights.
pub(crate) fn announced_points() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile_announced("announced-points", &["-DPROVIDER=ddheap"]))
}

fn compile_announced(name: &str, flags: &[&str]) -> PathBuf {
    let flags = [BOOKKEEPING, flags, &["-Wl,--no-as-needed", "-lm"]].concat();
    compile(name, &["announced.c".to_owned()], &flags)
}

/// A program in Rust whose allocator samples and announces what it allocates: an example of the crate.
pub(crate) fn sampling_in_rust() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sampler");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../jjleak-sampler/Cargo.toml");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--release", "--locked", "--example", "keeps", "--manifest-path"])
        .arg(manifest);
    cargo.arg("--target-dir").arg(&folder).env_remove("RUSTFLAGS");
    assert!(cargo.status().unwrap().success(), "cannot build the sampling program");
    folder.join("release/examples/keeps")
}

/// The library that samples malloc in a command: beside jjleak, where `cargo xtask` builds it.
pub(crate) fn sampler_to_preload() -> PathBuf {
    let library = Path::new(PROGRAM).with_file_name("libjjleak_preload.so");
    assert!(library.is_file(), "there is no {}: cargo xtask build --debug", library.display());
    library
}

/// A library with a native method that allocates.
pub(crate) fn late_library() -> PathBuf {
    compile("liblate.so", &["java/late.c".to_owned()], &["-shared", "-fPIC", "-g", "-O1"])
}

/// The same, which leaves the work to a library with an allocator of its own.
pub(crate) fn late_library_with_its_own_malloc() -> PathBuf {
    const LIBRARY: &[&str] = &["-shared", "-fPIC", "-g", "-O1", "-fno-builtin"];
    let malloc = compile("libown_malloc.so", &["java/own_malloc.c".to_owned()], LIBRARY);
    let to_malloc =
        format!("-Wl,--no-as-needed,-rpath,{0},{1}", malloc.parent().unwrap().display(), malloc.display());
    let inner = compile("libinner.so", &["java/late.c".to_owned()], &[LIBRARY, &[&to_malloc]].concat());
    let inner = format!("-DINNER=\"{}\"", inner.display());
    compile("libouter.so", &["java/late_inner.c".to_owned()], &[LIBRARY, &[&inner]].concat())
}

/// A program that allocates by every function of malloc.
pub(crate) fn every_way() -> PathBuf {
    compile("every_way", &["every_way.c".to_owned()], &[BOOKKEEPING, &["-O1"]].concat())
}

/// The same with musl.
pub(crate) fn every_way_of_musl() -> PathBuf {
    compile_with(
        "musl-gcc",
        "every-way-of-musl",
        &["every_way.c".to_owned()],
        &[BOOKKEEPING, &["-O1"]].concat(),
    )
}

/// A C++ program that allocates by every operator, with these flags.
pub(crate) fn every_new(name: &str, flags: &[&str]) -> PathBuf {
    compile_with("c++", name, &["every_new.cpp".to_owned()], &[&["-std=c++17", "-g", "-O1"], flags].concat())
}

/// A C program that loads a C++ library for itself alone, which allocates by every operator; and the library.
pub(crate) fn loading_every_new() -> (PathBuf, PathBuf) {
    (
        compile_with("cc", "every-new-loader", &["every_new.cpp".to_owned()], &["-DLOADER", "-xc"]),
        every_new("libevery-new.so", &["-DLIBRARY", "-shared", "-fPIC"]),
    )
}

/// The same as a library, whose `main` a program can call.
pub(crate) fn announced_library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile_announced("libannounced.so", &["-shared", "-fPIC"]))
}

/// The program whose allocator writes a profile.
pub(crate) fn sampled() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| compile("sampled", &["sampled.c".to_owned()], BOOKKEEPING))
}
