//! Processes, and files that they map, made to harm jjleak: each costs a bounded amount of time and memory, others are counted to
//! the byte nevertheless, and jjleak names the file where it matters.

mod bombs;
mod damaged;
mod debug_files;
mod debug_info;
mod elf;
mod entry;
mod odd;
mod run;
mod tables;
mod under_daemon;

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use self::entry::Entry;
use self::under_daemon::Confined;
use crate::support::compile;
use crate::support::ledger::Ledger;
use crate::support::privilege::{is_long, require_bpf, require_time};
use crate::support::process::status;

pub(crate) use self::run::Hostile;

/// Environment variable with the file into which the results of all entries are written.
const TABLE: &str = "JJLEAK_HOSTILE_TABLE";
/// Environment variable with a part of the names of the entries to run.
const ONLY: &str = "JJLEAK_HOSTILE_ONLY";

/// Number of entries at a time: most of their time, they wait for a profile's end.
const WORKERS: usize = 4;

/// The corpus.
fn corpus() -> Vec<Entry> {
    [bombs::all(), debug_files::all(), debug_info::all(), tables::all(), odd::all()]
        .into_iter()
        .flatten()
        .collect()
}

/// Starts this number of hostile processes, each with another trick, under the name of this program.
pub(crate) fn neighbours(count: usize, program: &Path) -> Vec<Hostile> {
    let entries = odd::all().into_iter().filter(|entry| !entry.is_slow).rev().take(count);
    entries.map(|entry| Hostile::start(&entry, Some(program))).collect()
}

/// True if all entries are run: by `cargo xtask hostile`, and in long runs.
fn runs_all() -> bool {
    is_long() || env::var_os(TABLE).is_some()
}

/// The entries of this run: a few of each file unless all are wanted.
fn wanted() -> impl Iterator<Item = Entry> + Send {
    const ONE_IN: usize = 18;
    let only = env::var(ONLY).unwrap_or_default();
    let all = runs_all() || !only.is_empty();
    let is_wanted = move |(index, entry): &(usize, Entry)| all || index % ONE_IN == 0 && !entry.is_slow;
    let entries = corpus().into_iter().enumerate().filter(is_wanted).map(|(_, entry)| entry);
    entries.filter(move |entry| entry.name.contains(&only))
}

#[test]
fn hostile_files_and_processes_cost_little_and_others_are_counted_to_the_byte() {
    require_bpf!();
    if !runs_all() {
        require_time!("`cargo xtask hostile` runs the corpus, which takes minutes");
    }
    let other = run::other();
    let entries = Mutex::new(wanted().enumerate());
    let (table, failed) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (entries, table, failed, other) = (&entries, &table, &failed, other.as_deref());
            scope.spawn(move || {
                let confined = Confined::start(worker);
                loop {
                    let Some((index, entry)) = entries.lock().unwrap().next() else { break };
                    // The others are tried, too.
                    match catch_unwind(AssertUnwindSafe(|| row(&entry, &confined, other))) {
                        Ok(row) => note(&mut table.lock().unwrap(), index, row),
                        Err(_) => failed.lock().unwrap().push(entry.name),
                    }
                }
                confined.end();
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Adds a row to the table, and writes it: what came of other entries is known although one fails.
fn note(table: &mut BTreeMap<usize, String>, index: usize, row: String) {
    table.insert(index, row);
    if let Some(path) = env::var_os(TABLE) {
        fs::write(path, table.values().map(String::as_str).collect::<String>()).unwrap();
    }
}

/// Runs an entry. Returns its row of the table.
fn row(entry: &Entry, confined: &Confined, other: Option<&Path>) -> String {
    let now = run::profile(entry);
    let (seconds, kib) = confined.profile(entry);
    let before = other.map_or_else(String::new, |other| run::by_other(entry, other));
    let said = now.said.iter().filter(|line| !line.contains("attached to "));
    let said: Vec<_> = said.map(|line| line.trim_start_matches("jjleak: ")).collect();
    let mut row = format!("| {} | {before} | {:.1} s, {} MiB", entry.name, now.seconds, now.memory_kib >> 10);
    write!(row, " | {seconds:.1} s, {} MiB | {} |", kib >> 10, said.join("; ").replace('|', "\\|")).unwrap();
    row.replace(|letter: char| letter.is_control() || letter == '\u{202e}', "\u{fffd}") + "\n"
}

#[test]
fn the_corpus_has_sixty_entries_with_names_of_their_own() {
    let mut names: Vec<_> = corpus().iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), corpus().len());
    assert!(names.len() >= 60, "{}", names.len());
}

/// Profiles an honest process that maps these files itself. Fails if jjleak takes too much memory, or miscounts.
fn profile_mapping(files: &[PathBuf]) {
    let names: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let mut command = Command::new(compile::ledger());
    command.env("LD_PRELOAD", compile::map_files()).env("JJLEAK_TEST_FILES", names.join("\n"));
    let mut ledger = Ledger::spawn(&mut command);
    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("malloc");
    let accounts = ledger.accounts();
    let memory = status(jjleak.pid(), "VmHWM:");
    accounts.assert_reported(&jjleak.interrupt().assert_done().report());
    assert!(memory <= run::MAX_MEMORY_KIB, "{memory} KiB for {names:?}");
}

#[test]
fn files_that_expand_to_gigabytes_do_not_in_jjleak() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    for (name, elf) in bombs::alone() {
        let path = folder.path().join(name);
        elf.write(&path);
        profile_mapping(std::slice::from_ref(&path));
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn files_with_any_wrong_field_of_a_header_do_no_harm() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let library = fs::read(compile::map_files()).unwrap();
    let files = damaged::damaged(&library, folder.path());
    assert!(files.len() > 500, "{}", files.len());
    profile_mapping(&files);
}
