//! Files that a target maps to harm jjleak: each costs a bounded amount of time and memory, the process is counted to the byte
//! nevertheless, and jjleak names the file where it matters.

mod bombs;
mod elf;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::compile;
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;

/// Maximum of jjleak's resident memory.
const MAX_MEMORY_KIB: u64 = 256 << 10;

/// Profiles a process that maps these files; returns what jjleak says.
fn profile(files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let mut command = Command::new(compile::ledger());
    command.env("LD_PRELOAD", compile::map_files()).env("JJLEAK_TEST_FILES", names.join("\n"));
    let mut ledger = Ledger::spawn(&mut command);
    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("malloc");
    let accounts = ledger.accounts();
    let memory = peak_kib(jjleak.pid());
    let ended = jjleak.interrupt().assert_done();
    accounts.assert_reported(&ended.report());
    println!("{} files, {memory} KiB", files.len());
    assert!(memory <= MAX_MEMORY_KIB, "{memory} KiB for {names:?}");
    ended.stderr.join("\n")
}

/// Highest resident memory of a process so far.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn files_that_are_made_to_be_expensive_are_not() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    for (name, elf, says) in bombs::all() {
        let path = folder.path().join(name);
        elf.write(&path);
        println!("{name}");
        let said = profile(std::slice::from_ref(&path));
        let is_said = said.lines().any(|line| line.contains(name) && line.contains(says));
        assert!(says.is_empty() || is_said, "{name}: {said}");
        fs::remove_file(path).unwrap();
    }
}

/// Copies of a library, each with one field of a header that is wrong.
fn damaged(library: &[u8], folder: &Path) -> Vec<PathBuf> {
    let word = |at: usize| u64::from_le_bytes(library[at..at + 8].try_into().unwrap());
    let half = |at: usize| u16::from_le_bytes(library[at..at + 2].try_into().unwrap());
    let place = |word: u64| usize::try_from(word).unwrap();
    let header = [(24, 8), (32, 8), (40, 8), (52, 2), (54, 2), (56, 2), (58, 2), (60, 2), (62, 2)];
    let of_programs = [(4, 4), (8, 8), (16, 8), (32, 8), (40, 8)];
    let of_sections = [(4, 4), (16, 8), (24, 8), (32, 8), (40, 4), (56, 8)];
    let programs = (0..usize::from(half(56))).map(|index| place(word(32)) + index * 56);
    let sections = (0..usize::from(half(60))).map(|index| place(word(40)) + index * 64);
    let fields = header.into_iter();
    let fields = fields.chain(programs.flat_map(|at| of_programs.map(|(field, bytes)| (at + field, bytes))));
    let fields = fields.chain(sections.flat_map(|at| of_sections.map(|(field, bytes)| (at + field, bytes))));
    let values = [0, 1, 1 << 40, u64::MAX];
    let changes = fields.flat_map(|(at, bytes)| values.map(|value| (at, bytes, value)));
    let written = changes.enumerate().map(|(index, (at, bytes, value))| {
        let mut damaged = library.to_vec();
        damaged[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        let path = folder.join(format!("damaged-{index}.so"));
        fs::write(&path, damaged).unwrap();
        path
    });
    written.collect()
}

#[test]
fn files_with_any_wrong_field_of_a_header_do_no_harm() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let library = fs::read(compile::map_files()).unwrap();
    let files = damaged(&library, folder.path());
    assert!(files.len() > 500, "{}", files.len());
    profile(&files);
}
