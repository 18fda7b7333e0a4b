//! Files that are no ELF files, change, or are in strange places; and processes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

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
        process_at("map-device", "map-device", |path| symlink("/dev/zero", path).unwrap()),
        process("map-shared"),
        process("many-mappings").slow(),
        process("churn-mappings"),
        process("circle-of-frames"),
        process("stack-at-the-end"),
        process("huge-reservation"),
        process("lie-in-comm"),
    ]
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
