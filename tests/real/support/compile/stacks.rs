//! Programs with call stacks of many kinds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::compile;

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

/// A program of `stacks/`, C or C++.
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
    PATH.get_or_init(|| build_rust_hello("rust-hello", "debuginfo=2"))
}

/// The same with line tables and no other debug information, as in many releases.
pub(crate) fn rust_hello_with_lines_alone() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build_rust_hello("rust-hello-lines", "debuginfo=line-tables-only"))
}

fn build_rust_hello(name: &str, debug_information: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut rustc = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"));
    rustc.args(["--edition", "2024", "--crate-name", "hello", "-C", debug_information, "-C", "opt-level=0"]);
    let status = rustc.arg(fixtures.join("hello.rs")).arg("-o").arg(&program).status().unwrap();
    assert!(status.success(), "cannot build the Rust program");
    program
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

/// The program that allocates from many stacks in turns.
pub(crate) fn ways() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-g", "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"];
    PATH.get_or_init(|| compile("ways", &["stacks/ways.c".to_owned()], &flags))
}

/// The program whose stacks differ in a frame pointer that is zero.
pub(crate) fn zeros() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        compile("zeros", &["stacks/zeros.c".to_owned()], &["-g", "-O1", "-fno-omit-frame-pointer"])
    })
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

/// The program that loads libraries on request, and two libraries with 120,000 rows each. Copies of a library have one build ID.
pub(crate) fn loading() -> &'static [PathBuf; 3] {
    static PATHS: OnceLock<[PathBuf; 3]> = OnceLock::new();
    let flags = ["-Wl,--build-id", "-DFUNCTIONS=30000"];
    PATHS.get_or_init(|| with_libraries("loading", "_with_many_rows", &["stacks/many_rows.S"], &flags))
}

/// The program that replaces one library by another, and both libraries.
pub(crate) fn replacing() -> &'static [PathBuf; 3] {
    static PATHS: OnceLock<[PathBuf; 3]> = OnceLock::new();
    PATHS.get_or_init(|| with_libraries("replacing", "", &[], &[]))
}

/// A program of `stacks/`, and two libraries for it. Their functions have different names, frames and allocations.
fn with_libraries(program: &str, suffix: &str, sources: &[&str], flags: &[&str]) -> [PathBuf; 3] {
    let library = |name: &str, size: &str, frame: &str| {
        let definitions = ["NAME", "SIZE", "FRAME_BYTES"].into_iter().zip([name, size, frame]);
        let definitions: Vec<_> = definitions.map(|(macro_, value)| format!("-D{macro_}={value}")).collect();
        let common = ["-g", "-shared", "-fPIC", "-fomit-frame-pointer"];
        let flags = common.into_iter().chain(flags.iter().copied());
        let flags: Vec<_> = flags.chain(definitions.iter().map(String::as_str)).collect();
        let sources = [&["stacks/replaced.c"], sources].concat();
        let sources: Vec<_> = sources.into_iter().map(str::to_owned).collect();
        compile(&format!("lib{name}{suffix}.so"), &sources, &flags)
    };
    let source = format!("stacks/{program}.c");
    let compiled = compile(program, &[source], &["-g", "-fomit-frame-pointer"]);
    [compiled, library("in_first", "2001", "1016"), library("in_second", "2002", "4088")]
}

/// A program that loads libraries and calls them at once, and two such libraries, which jjleak knows by their files only: the second
/// allocates in a loop.
pub(crate) fn just_mapped() -> &'static [PathBuf; 3] {
    static PATHS: OnceLock<[PathBuf; 3]> = OnceLock::new();
    PATHS.get_or_init(|| {
        let flags = ["-g", "-fomit-frame-pointer"];
        let library = ["-shared", "-fPIC", "-Wl,--build-id=none"];
        let of_library = ["-DNAME=in_library", "-DSIZE=2003", "-DFRAME_BYTES=1016"];
        let library = [&flags[..], &library[..]].concat();
        let of_library = [&library[..], &of_library[..]].concat();
        // Until its rows are loaded, it has called malloc many times.
        let walking = [&library[..], &["-DFUNCTIONS=30000"]].concat();
        [
            compile(
                "just-mapped",
                &["stacks/just_mapped.c".to_owned()],
                &[&flags[..], &["-pthread"]].concat(),
            ),
            compile("libjust-mapped.so", &["stacks/replaced.c".to_owned()], &of_library),
            compile(
                "libwalking.so",
                &["stacks/walking.c", "stacks/many_rows.S"].map(str::to_owned),
                &walking,
            ),
        ]
    })
}
