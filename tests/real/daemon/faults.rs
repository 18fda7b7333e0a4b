//! Faults in the daemon's environment while it runs: its files are removed, and the clock is set.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;

use crate::support::bounded::{LONG, SOON, until};
use crate::support::compile;
use crate::support::daemon::{Daemon, ON_REQUEST, Place, working};
use crate::support::jjleak::Ended;
use crate::support::privilege::require_bpf;

/// Longer than the default retention of profiles.
const JUMP: Duration = Duration::from_secs(40 * 86_400);

/// Time of a profile according to its name: since 1970, by the clock of that moment.
fn taken(profile: &Path) -> Duration {
    let name = profile.file_name().unwrap().to_str().unwrap();
    Duration::from_millis(name.split('-').next().unwrap().parse().unwrap())
}

/// Fails unless a profile can be rendered.
fn assert_readable(profile: &Path) {
    Ended::of(["report".as_ref(), profile.as_os_str()]).assert_done();
}

#[test]
fn a_state_directory_that_is_removed_is_made_again_and_the_next_daemon_knows_what_came_since() {
    require_bpf!();
    let place = Place::new("removed");
    place.configure("", &place.served_on_request());
    let (_program, _said) = working(&place);
    let mut daemon = place.start();
    daemon.signal(Signal::SIGUSR1);
    daemon.until("profiling ", SOON);
    until(LONG, "a profile", || !place.kept().is_empty());
    // Removal fails while files are being written.
    until(SOON, "the removal", || fs::remove_dir_all(place.state()).is_ok());
    until(LONG, "a profile in a new directory", || !place.kept().is_empty());
    assert!(place.ask("GET /healthz").0.starts_with("HTTP/1.1 200 "));
    daemon.end();

    let kept = place.kept();
    let daemon = place.start();
    let (_, list) = place.ask("GET /api/v1/profiles");
    let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
    assert_eq!(list["profiles"].as_array().unwrap().len(), kept.len(), "{list}");
    daemon.end();
    for profile in &kept {
        assert_readable(profile);
    }
}

/// Starts a daemon whose wall clock has this offset.
fn start_with_clock(place: &Place, offset: Duration) -> Daemon {
    set_clock(place, offset);
    let (library, file) = (compile::clock(), place.path("clock"));
    place.spawn(|command| command.env("LD_PRELOAD", library).env("CLOCK_FILE", file)).until_it_watches()
}

fn set_clock(place: &Place, offset: Duration) {
    let (file, whole) = (place.path("clock"), place.path("clock.new"));
    fs::write(&whole, offset.as_secs().to_string()).unwrap();
    fs::rename(whole, file).unwrap();
}

#[test]
fn a_clock_that_is_set_forward_and_back_again_costs_no_profile_and_profiles_are_taken_meanwhile() {
    require_bpf!();
    let place = Place::new("clock");
    place.configure("", ON_REQUEST);
    let (_program, _said) = working(&place);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let is_ahead = |profile: &Path| taken(profile) > now() + JUMP / 2;
    let count = |ahead: bool| place.kept().iter().filter(|profile| is_ahead(profile) == ahead).count();

    let daemon = start_with_clock(&place, Duration::ZERO);
    daemon.signal(Signal::SIGUSR1);
    until(LONG, "a profile", || count(false) > 0);
    daemon.end();
    let before = place.kept();

    // By this clock, all profiles are too old.
    let daemon = start_with_clock(&place, JUMP);
    assert_eq!(place.kept(), before);
    daemon.signal(Signal::SIGUSR1);
    until(LONG, "a profile of the future", || count(true) > 0);
    let kept = count(false);
    set_clock(&place, Duration::ZERO);
    until(LONG, "a profile of the present", || count(false) > kept);
    set_clock(&place, JUMP);
    let ahead = count(true);
    until(LONG, "another profile of the future", || count(true) > ahead);
    let said = daemon.end();
    assert!(said.iter().all(|line| line["level"] != "ERROR"), "{said:#?}");

    let kept = place.kept();
    assert!(before.iter().all(|profile| kept.contains(profile)));
    start_with_clock(&place, Duration::ZERO).end();
    assert_eq!(place.kept(), kept);
    for profile in &kept {
        assert_readable(profile);
    }
}
