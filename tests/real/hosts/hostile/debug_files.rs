//! Links to debug files, and build IDs, that lead where nothing should be opened.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::elf::{Elf, PROGBITS, Section};
use super::entry::{Entry, file};

/// Size of a debug file that is nothing but a hole.
const HUGE: u64 = 64 << 30;
const NOTE: u32 = 7;
/// A build ID, whose debug file would be in a folder of this name.
const BUILD_ID: [u8; 20] = [0xab; 20];

pub(super) fn all() -> Vec<Entry> {
    vec![
        file("debug-link-to-a-pipe", |path| {
            mkfifo(&beside(path), Mode::S_IRWXU).unwrap();
            link(path, b"debug");
        }),
        file("debug-link-to-a-device", |path| linked(path, "/dev/zero")),
        file("debug-link-to-a-terminal", |path| linked(path, "/dev/tty")),
        file("debug-link-in-a-circle", |path| linked(path, "debug")),
        file("debug-link-to-itself", |path| linked(path, path.to_str().unwrap())),
        file("debug-link-to-a-folder", |path| {
            fs::create_dir(beside(path)).unwrap();
            link(path, b"debug");
        }),
        file("debug-link-to-a-huge-file", |path| {
            File::create(beside(path)).unwrap().set_len(HUGE).unwrap();
            link(path, b"debug");
        }),
        file("debug-link-to-memory", |path| linked(path, "/proc/self/mem")),
        file("debug-link-to-a-huge-elf-file", |path| {
            Elf::new(vec![build_id(&BUILD_ID)]).write(&beside(path));
            File::options().write(true).open(beside(path)).unwrap().set_len(HUGE).unwrap();
            Elf::new(vec![debug_link(b"debug\0\0\0\x01\x02\x03\x04"), build_id(&BUILD_ID)]).write(path);
        }),
        file("debug-link-upwards", |path| link(path, b"../../../../../../../../etc/shadow")),
        file("debug-link-to-a-watchdog", |path| link(path, b"/dev/watchdog")),
        file("debug-link-without-an-end", |path| {
            Elf::new(vec![debug_link(&[b'a'; 60_000])]).write(path);
        }),
        file("debug-link-of-a-gibibyte", |path| {
            Elf::new(vec![debug_link(b"a").sparse(1 << 30)]).write(path);
        }),
        file("debug-link-with-controls", |path| link(path, "a\n\x1b[2J\u{202e}/".as_bytes())),
        file("supplement-that-is-a-pipe", |path| {
            mkfifo(&beside(path), Mode::S_IRWXU).unwrap();
            supplement(path, b"debug");
        }),
        file("supplement-that-is-a-device", |path| supplement(path, b"/dev/zero")),
        file("supplement-that-is-the-file-itself", |path| {
            supplement(path, path.file_name().unwrap().as_encoded_bytes());
        }),
        file("build-id-of-no-bytes", |path| Elf::new(vec![build_id(&[])]).write(path)),
        file("build-id-of-a-mebibyte", |path| Elf::new(vec![build_id(&vec![0x2e; 1 << 20])]).write(path)),
        file("build-id-note-that-lies", |path| {
            let lie = [u32::MAX, u32::MAX, 3].map(u32::to_le_bytes).concat();
            Elf::new(vec![Section::new(".note.gnu.build-id", NOTE, [&lie[..], b"GNU\0"].concat())])
                .write(path);
        }),
    ]
}

/// Path at which the debug file of a file is looked for.
fn beside(path: &Path) -> std::path::PathBuf {
    path.with_file_name("debug")
}

fn linked(path: &Path, target: &str) {
    symlink(target, beside(path)).unwrap();
    link(path, b"debug");
}

fn debug_link(content: &[u8]) -> Section {
    Section::new(".gnu_debuglink", PROGBITS, content.to_vec())
}

fn link(path: &Path, name: &[u8]) {
    let mut content = [name, &[0]].concat();
    content.resize(content.len().next_multiple_of(4) + 4, 0);
    Elf::new(vec![debug_link(&content)]).write(path);
}

fn supplement(path: &Path, name: &[u8]) {
    let content = [name, &[0], &BUILD_ID].concat();
    let sections = vec![
        Section::new(".gnu_debugaltlink", PROGBITS, content.clone()),
        Section::new(".debug_sup", PROGBITS, [&[5, 0, 0][..], &content].concat()),
        Section::new(".debug_info", PROGBITS, vec![0; 64]),
    ];
    Elf::new(sections).write(path);
}

fn build_id(id: &[u8]) -> Section {
    let length = u32::try_from(id.len()).unwrap();
    let head = [4, length, 3].map(u32::to_le_bytes).concat();
    Section::new(".note.gnu.build-id", NOTE, [&head[..], b"GNU\0", id].concat())
}
