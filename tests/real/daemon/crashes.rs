//! The daemon is killed at random moments: its files remain readable, and nothing of it stays in the kernel or in the profiled
//! process.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use fastrand::Rng;
use nix::sys::signal::Signal;

use crate::support::bounded::{LONG, SOON, until};
use crate::support::bpf_objects::{BpfObjects, Count};
use crate::support::daemon::{Daemon, Place, working};
use crate::support::jjleak::{Jjleak, PROGRAM};
use crate::support::ledger::Ledger;
use crate::support::privilege::{is_long, require_bpf};
use crate::support::probes::{self, Code, Places, Text};

/// Phase in which the daemon is killed. Any moment is a valid test case, so that sleeping is acceptable.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// It reads its configuration and history.
    Starting,
    /// It loads programs and attaches them.
    Attaching,
    /// It profiles.
    Profiling,
    /// It writes a profile, its flame graph and the index.
    Writing,
}

const PHASES: [Phase; 4] = [Phase::Attaching, Phase::Writing, Phase::Starting, Phase::Profiling];

/// Starts a daemon, and waits for a moment in this phase.
fn start_until(phase: Phase, place: &Place, random: &mut Rng) -> Daemon {
    // The daemon does not report how far it is within a phase: crashes come at random moments of it.
    let mut pause = |most: u64| std::thread::sleep(Duration::from_micros(random.u64(..most * 1000)));
    if let Phase::Starting = phase {
        let daemon = place.spawn(|command| command);
        pause(300);
        return daemon;
    }
    let mut daemon = place.start();
    daemon.signal(Signal::SIGUSR1);
    daemon.until("profiling ", SOON);
    match phase {
        Phase::Starting | Phase::Attaching => pause(1500),
        Phase::Profiling => pause(6000),
        Phase::Writing => {
            let before = place.kept().len();
            until(LONG, "another profile", || place.kept().len() > before);
            pause(30);
        }
    }
    daemon
}

#[test]
fn killed_at_any_moment_it_leaves_a_history_that_can_be_read_and_no_probe() {
    require_bpf!();
    let rounds = if is_long() { 100 } else { 10 };
    let place = Place::new("kills");
    place.configure("", &place.served_on_request());
    let (program, _said) = working(&place);
    let pid = program.id();
    let mut random = Rng::with_seed(8);
    let mut read = BTreeSet::<PathBuf>::new();
    let mut probed = 0;
    let untouched = Code::in_files(pid);
    for round in 0..rounds {
        let _quiet = probes::quiet();
        untouched.await_again(pid);
        let daemon = start_until(PHASES[round % PHASES.len()], &place, &mut random);
        let mut objects = BpfObjects::default();
        objects.note(daemon.pid());
        probed += usize::from(untouched.is_probed(pid));
        daemon.kill();

        untouched.await_again(pid);
        until(LONG, "the end of all maps, programs and links", || objects.left() == Count::default());
        for profile in place.kept().into_iter().filter(|path| !read.contains(path)).collect::<Vec<_>>() {
            let bytes = std::fs::read(&profile).unwrap();
            let taken_of = jjleak::pprof::read(&bytes).unwrap().profile.process.pid;
            assert_eq!(taken_of, pid, "round {round}: {}", profile.display());
            read.insert(profile);
        }
    }
    assert!(probed >= rounds / 4, "there were probes in {probed} of {rounds} rounds only");
    assert_all_is_served(&place, read.len());
}

/// Fails unless a new daemon lists this number of profiles, and renders each.
fn assert_all_is_served(place: &Place, count: usize) {
    let daemon = place.start();
    let said = format!("{:?}", daemon.said);
    assert!(!said.contains("Mended") || said.contains("unread: 0"), "{said}");
    let (_, list) = place.ask("GET /api/v1/profiles?limit=1000");
    let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
    let ids: Vec<_> =
        list["profiles"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), count);
    for id in ids {
        for (file, part) in [("report.html", "</html>"), ("flame.svg", "</svg>")] {
            let (head, body) = place.ask(&format!("GET /profiles/{id}/{file}"));
            assert!(head.starts_with("HTTP/1.1 200 "), "{id}: {head}");
            assert!(String::from_utf8_lossy(&body).trim_end().ends_with(part), "{id}/{file}");
        }
    }
    daemon.end();
}

/// To remove a breakpoint, the kernel needs a thread that is not being killed: a jjleak that is killed while it attaches or
/// detaches could leave some.
#[test]
fn killed_between_one_breakpoint_and_the_next_it_leaves_none() {
    require_bpf!();
    let rounds = if is_long() { 100 } else { 20 };
    let mut ledger = Ledger::start();
    let pid = ledger.pid();
    let start = || {
        let mut command = Command::new(PROGRAM);
        command.args(["-p", &pid.to_string(), "3600"]).stdout(Stdio::null());
        Jjleak::start(command)
    };
    let mut random = Rng::with_seed(9);
    let _quiet = probes::quiet();
    let untouched = Code::in_files(pid);
    untouched.await_again(pid);
    let without = Text::of(&mut ledger);
    let jjleak = start().until_attached();
    let with = Text::of(&mut ledger);
    let places = Places::of(&mut ledger, &without, &with);
    jjleak.interrupt().assert_done();
    for round in 0..rounds {
        untouched.await_again(pid);
        let some = random.usize(..=places.count());
        let mut jjleak = start();
        if round % 2 == 0 {
            jjleak.spin_until(|| places.probed() >= some);
        } else {
            jjleak = jjleak.until_attached();
            jjleak.signal(Signal::SIGINT);
            jjleak.spin_until(|| places.probed() + some <= places.count());
        }
        jjleak.kill();
    }
    untouched.await_again(pid);
}
