use std::process::Command;

use regex::Regex;

use super::cat::{Cat, cats};
use super::*;
use crate::daemon::config::{Count, Pattern};
use crate::daemon::handover::{Handover, SavedProcess};

#[test]
fn a_process_is_found_scanned_and_dropped_when_it_has_ended() {
    let (mut watcher, _) = Watcher::new();
    let (first, config) = (Cat::start(), cats());
    assert!(watcher.scan(Duration::ZERO, &config).found.contains(&first.pid()));
    assert!(watcher.get_mut(first.pid()).unwrap().case.last().resident > 0);
    let second = Cat::start();
    let (pid, due) = (second.pid(), config.watch.rescan.0);
    assert!(watcher.scan(due, &config).found.contains(&pid));
    drop(second);
    assert!(watcher.scan(due, &config).ended.contains(&pid));
    assert!(watcher.get_mut(pid).is_none() && watcher.get_mut(first.pid()).is_some());
}

#[test]
fn a_new_process_is_found_by_the_next_scan_where_process_events_are_available() {
    let (mut watcher, error) = Watcher::new();
    let config = cats();
    watcher.scan(Duration::ZERO, &config);
    let cat = Cat::start();
    let found = watcher.scan(Duration::from_secs(1), &config).found;
    assert_eq!(found.contains(&cat.pid()), error.is_none());
}

/// Two processes with a name that no other test's processes have, and a configuration that watches only them: of the others,
/// one that ends during a scan would leave its place empty.
fn two_cats(name: &str) -> (Cat, Cat, Config) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::os::unix::fs::symlink("/bin/cat", &path).unwrap();
    let start = || Cat::answering(&mut Command::new(&path));
    let mut config = cats();
    config.watch.names = vec![Pattern(Regex::new(&format!("^{name}$")).unwrap())];
    (start(), start(), config)
}

#[test]
fn a_process_that_does_not_answer_is_counted_and_asked_again() {
    let (mut watcher, _) = Watcher::new();
    let (first, second, mut config) = two_cats("cat-that-is-silent");
    config.watch.names.clear();
    config.watch.jvms = true;
    let silent = Process::open(first.pid()).unwrap();
    let (hold, end) = std::sync::mpsc::channel::<()>();
    let question: Question<bool> = Box::new(move || end.recv().is_ok());
    assert!(watcher.are_jvms.ask([(subject(&silent).unwrap(), question)], ANSWERS_TIMEOUT).is_empty());

    assert!(!watcher.scan(Duration::ZERO, &config).found.contains(&silent.pid));
    assert_eq!(watcher.silent.iter().copied().collect::<Vec<_>>(), [silent.pid]);
    config.watch.names = vec![Pattern(Regex::new("^cat-that-is-s").unwrap())];
    let found = watcher.scan(config.watch.rescan.0, &config).found;
    assert!(found.contains(&silent.pid), "its name is enough");
    config.watch.names.clear();
    watcher.apply_config(&config);
    assert!(watcher.get_mut(silent.pid).is_some() && watcher.get_mut(second.pid()).is_none());

    drop(hold);
    watcher.watched.clear();
    let is_asked = |watcher: &mut Watcher, at: u32| {
        watcher.scan(config.watch.rescan.0 * at, &config);
        watcher.silent().eq(&0)
    };
    assert!((2..100).any(|at| is_asked(&mut watcher, at)), "it is asked again");
}

#[test]
fn max_processes_is_kept_and_changed_rules_apply_at_once() {
    let (mut watcher, _) = Watcher::new();
    let (_first, _second, mut config) = two_cats("cat-of-two");
    config.watch.max_processes = Count(1);
    watcher.scan(Duration::ZERO, &config);
    assert_eq!(watcher.iter().count(), 1);
    assert!(watcher.turned_away() >= 1);
    config.watch.names.clear();
    watcher.apply_config(&config);
    assert_eq!(watcher.iter().count(), 0);
}

#[test]
fn a_process_beyond_the_limit_counts_once_however_often_it_is_scanned() {
    let (mut watcher, _) = Watcher::new();
    let (_first, second, mut config) = two_cats("cat-beyond");
    config.watch.max_processes = Count(1);
    watcher.scan(Duration::ZERO, &config);
    watcher.new.insert(second.pid(), SCANS_OF_NEW);
    watcher.scan(Duration::from_secs(1), &config);
    let before = watcher.turned_away();
    watcher.new.insert(second.pid(), SCANS_OF_NEW);
    watcher.starts = None;
    watcher.scan(Duration::from_secs(2), &config);
    assert_eq!(watcher.turned_away(), before);
}

#[test]
fn an_exec_is_noticed_even_without_process_events() {
    let (mut watcher, _) = Watcher::new();
    watcher.starts = None;
    let script = "read line; echo $line; read line; exec cat";
    let mut shell = Cat::answering(Command::new("sh").args(["-c", script]));
    let (pid, mut config) = (shell.pid(), cats());
    config.watch.names = vec![Pattern(Regex::new("^(sh|cat)$").unwrap())];
    assert!(watcher.scan(Duration::ZERO, &config).found.contains(&pid));
    shell.send("line\n");
    shell.echo("x");
    let changes = watcher.scan(config.watch.rescan.0, &config);
    assert!(changes.ended.contains(&pid) && changes.found.contains(&pid), "{changes:?}");
    assert_eq!(watcher.get_mut(pid).unwrap().process.comm, "cat");
}

#[test]
fn a_process_is_resumed_and_another_one_with_its_pid_is_not() {
    let (folder, config) = (tempfile::tempdir().unwrap(), cats());
    let (cat, other) = (Cat::start(), Cat::start());
    let (mut first, _) = Watcher::new();
    first.scan(Duration::ZERO, &config);
    for pid in [cat.pid(), other.pid()] {
        first.get_mut(pid).unwrap().case.request(Duration::ZERO);
        first.get_mut(pid).unwrap().case.begin(Duration::ZERO);
    }
    // As if a new process had the other's PID.
    first.get_mut(other.pid()).unwrap().process.start_time -= 1;
    let (mut handover, _) = Handover::open(folder.path()).unwrap();
    handover.write(first.iter().map(SavedProcess::of).collect());

    let (mut second, _) = Watcher::new();
    second.restore(Handover::open(folder.path()).unwrap().1);
    let changes = second.scan(Duration::from_secs(1), &config);

    let state = |watcher: &mut Watcher, pid| watcher.get_mut(pid).unwrap().case.state().name();
    assert_eq!((state(&mut second, cat.pid()), state(&mut second, other.pid())), ("back_off", "watching"));
    assert!(changes.resumed >= 1 && changes.forgotten >= 1, "{changes:?}");
}

#[test]
fn a_process_that_has_just_started_is_young() {
    let cat = Cat::start();
    let age = crate::daemon::core::since_boot().saturating_sub(started(&Process::open(cat.pid()).unwrap()));
    assert!(age < Duration::from_secs(60), "{age:?}");
}

#[test]
fn a_process_whose_executable_was_replaced_on_disk_is_still_the_same() {
    let (folder, config) = (tempfile::tempdir().unwrap(), cats());
    let path = folder.path().join("cat");
    fs::copy("/bin/cat", &path).unwrap();
    let cat = Cat::answering(&mut Command::new(&path));
    let (mut watcher, _) = Watcher::new();
    watcher.scan(Duration::ZERO, &config);
    let left: Vec<_> =
        watcher.iter().filter(|it| it.process.pid == cat.pid()).map(SavedProcess::of).collect();
    fs::remove_file(&path).unwrap();
    let exe = fs::read_link(cat.pid().proc_file("exe")).unwrap();
    assert!(exe.to_str().unwrap().ends_with(" (deleted)"));
    let changes = watcher.scan(config.watch.rescan.0, &config);
    assert!(!changes.ended.contains(&cat.pid()), "{changes:?}");

    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    Handover::open(&state).unwrap().0.write(left);
    let (mut next, _) = Watcher::new();
    next.restore(Handover::open(&state).unwrap().1);
    let changes = next.scan(Duration::ZERO, &config);
    assert_eq!((changes.resumed, changes.forgotten), (1, 0));
}

#[test]
fn a_process_that_has_executed_another_program_is_not_resumed() {
    let (folder, config) = (tempfile::tempdir().unwrap(), cats());
    let cat = Cat::start();
    let (mut first, _) = Watcher::new();
    first.scan(Duration::ZERO, &config);
    first.get_mut(cat.pid()).unwrap().process.exe = "/bin/another".into();
    let left: Vec<_> = first.iter().filter(|it| it.process.pid == cat.pid()).map(SavedProcess::of).collect();
    Handover::open(folder.path()).unwrap().0.write(left);
    let (mut next, _) = Watcher::new();
    next.restore(Handover::open(folder.path()).unwrap().1);
    let changes = next.scan(Duration::ZERO, &config);
    assert_eq!((changes.resumed, changes.forgotten), (0, 1));
}
