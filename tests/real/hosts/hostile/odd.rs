//! Files that are no ELF files, change, or are in strange places; and processes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::bombs::c_library;
use super::elf::Elf;
use super::entry::{Entry, file, process, process_at};

pub(super) fn all() -> Vec<Entry> {
    vec![
        file("one-byte", |path| fs::write(path, "\x7f").unwrap()),
        file("a-header-and-nothing", |path| {
            Elf::new(Vec::new()).write(path);
            File::options().write(true).open(path).unwrap().set_len(64).unwrap();
        }),
        file("a-sparse-terabyte", |path| {
            Elf::new(Vec::new()).write(path);
            File::options().write(true).open(path).unwrap().set_len(1 << 40).unwrap();
        }),
        file("a-name-with\ncontrols\x1b[2J\u{202e}", |path| c_library(Vec::new()).write(path)),
        file("a-jvm-that-is-none", |path| library(path, "")),
        process_at("a-jvm-whose-table-does-not-end", "map-file", |path| library(path, "-DENDLESS")),
        process_at("map-deleted", "map-deleted", |path| c_library(Vec::new()).write(path)),
        process_at("map-and-rewrite", "map-and-rewrite", |path| c_library(Vec::new()).write(path)),
        process("map-memfd"),
        process_at("map-thousand", "map-thousand", folder).slow(),
        process_at("map-device", "map-device", |path| symlink("/dev/zero", path).unwrap()),
        process_at("map-fuse", "map-fuse", folder),
        process("map-shared"),
        process("many-mappings").slow(),
        process("churn-mappings"),
        process("circle-of-frames"),
        process("stack-at-the-end"),
        process("many-stacks"),
        process("huge-reservation"),
        process("lie-in-comm"),
        process("lie-in-arguments"),
        process("block-arguments"),
        process("long-arguments"),
        process("perf-pipe"),
        process("perf-loop"),
        process("perf-zero"),
        process("perf-folder"),
        process("perf-line").slow(),
        process("perf-sparse"),
        process("perf-noise"),
        process("perf-lines").slow(),
        process("perf-overlapping").slow(),
        process("perf-other-owner"),
        process("share-memory"),
        process("leave-leader"),
        process("execute-again"),
        process("stop"),
        process("unreadable"),
        process("end-soon"),
        process("churn-threads"),
        process("churn-children"),
        process("many-threads"),
        process_at("change-root", "change-root", root),
        process_at("in-namespace", "in-namespace", root),
    ]
}

fn folder(path: &Path) {
    fs::create_dir(path).unwrap();
}

/// A root folder in which everything that a profiler may look for leads elsewhere.
fn root(path: &Path) {
    for name in ["tmp", "usr/bin", "usr/lib", "etc"] {
        fs::create_dir_all(path.join(name)).unwrap();
    }
    symlink("/dev", path.join("usr/lib/debug")).unwrap();
    symlink("/proc/self", path.join("proc")).unwrap();
    symlink("lib", path.join("lib")).unwrap();
    mkfifo(&path.join("etc/os-release"), Mode::S_IRWXU).unwrap();
    mkfifo(&path.join("usr/bin/hostile"), Mode::S_IRWXU).unwrap();
}

/// A library with what HotSpot's has for debuggers; not as a JVM has it.
fn library(path: &Path, flag: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hostile/jvm/library.c");
    fs::create_dir_all(path.with_file_name("server")).unwrap();
    let library = path.with_file_name("server").join("libjvm.so");
    let mut compiler = Command::new("cc");
    compiler.args(
        ["-O1", "-shared", "-fPIC", "-Wl,-z,noseparate-code", "-DANY", flag]
            .iter()
            .filter(|flag| !flag.is_empty()),
    );
    assert!(compiler.arg("-o").arg(&library).arg(source).status().unwrap().success());
    // The name in memory maps is the library's own.
    symlink(&library, path).unwrap();
    let length = library.metadata().unwrap().len();
    assert!(File::open(library).unwrap().read_at(&mut [0], length - 1).is_ok());
}
