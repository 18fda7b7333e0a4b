//! Honest processes that leak, among hostile ones.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::hosts::hostile;
use crate::support::compile;
use crate::support::daemon::{Place, working};
use crate::support::privilege::{require_bpf, require_time};
use crate::support::process::status;

/// Eight processes at a time, each for as long as a verdict takes.
const RULES: &str = "[profile]\nduration = \"15s\"\nsettle = \"1s\"\nsnapshot = \"1s\"\nat_once = 8\nback_off = \"1s\"\n\
    max_overhead = \"unlimited\"\n\
    [suspect]\nlimit_within = \"0s\"\nlimit_percent = 100.0\npressure_percent = 100.0\ngrowth_bytes = \"1TiB\"";
/// Processes of each kind, and time.
const COUNT: usize = 20;
const TIME: Duration = Duration::from_secs(600);
/// Time by which the honest processes must have been found to leak.
const FOUND: Duration = Duration::from_secs(300);
/// Interval at which profiles are requested and memory is read.
const BEAT: Duration = Duration::from_secs(1);
/// Growth of memory from the first third of the time to the last: caches fill up, and hostile processes come and go.
const MAX_GROWTH_KIB: u64 = 24 << 10;

/// PIDs of the processes that leak, as far as is known.
fn leaking(place: &Place) -> BTreeSet<u32> {
    let (head, body) = place.ask("GET /api/v1/processes");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let answer: Value = serde_json::from_slice(&body).unwrap();
    let processes = answer["processes"].as_array().unwrap().iter();
    let leaking =
        processes.filter(|process| process["finding"]["leaking"].as_u64().is_some_and(|sites| sites > 0));
    leaking.map(|process| process["pid"].as_u64().unwrap().try_into().unwrap()).collect()
}

#[test]
fn leaks_of_honest_processes_are_found_among_hostile_ones_and_memory_stays_flat() {
    require_bpf!();
    require_time!("takes ten minutes (--long)");
    let place = Place::new("beside");
    place.configure(
        "warm_up = \"1s\"",
        &format!("{RULES}\n[http]\nlisten = \"unix:{}\"", place.socket().display()),
    );
    let program = place.other_program(compile::hostile());
    let bad = hostile::neighbours(COUNT, &program);
    let good: Vec<_> = (0..COUNT).map(|_| working(&place)).collect();
    let daemon = place.start();
    let honest: BTreeSet<_> = good.iter().map(|(process, _)| process.id()).collect();
    let mut found = BTreeSet::new();
    let mut memory = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < TIME {
        let is_late = begin.elapsed() > FOUND && !honest.is_subset(&found);
        assert!(!is_late, "found {found:?} of {honest:?}");
        for pid in bad.iter().map(hostile::Hostile::pid).chain(honest.iter().copied()) {
            // Others have ended, or are being profiled.
            place.ask(&format!("POST /api/v1/processes/{pid}/profile"));
        }
        // The daemon scans once a second; more requests would find the same.
        sleep(BEAT);
        found.extend(leaking(&place));
        memory.push(status(daemon.pid(), "VmRSS:"));
    }
    daemon.end();
    let third = memory.len() / 3;
    let median = |part: &[u64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    };
    let (first, last) = (median(&memory[..=third]), median(&memory[memory.len() - third - 1..]));
    println!("{COUNT} of each for {:?}: {first} KiB, then {last} KiB", begin.elapsed());
    assert!(last <= first + MAX_GROWTH_KIB, "{first} KiB, then {last} KiB");
}
