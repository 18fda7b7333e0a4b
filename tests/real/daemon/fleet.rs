//! Many JVMs under one daemon: exactly those that leak are reported.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::support::bounded::{LONG, until};
use crate::support::daemon::{Place, profiles};
use crate::support::jjleak::Ended;
use crate::support::privilege::{is_long, require_bpf, require_program};

/// Time before the short-lived JVM is ended.
const LIFE: Duration = Duration::from_secs(4);

/// A process is suspected after half a minute of growth, and profiled for 15 s with a snapshot every other second; no other
/// reasons count.
const RULES: &str = "[profile]\nduration = \"15s\"\nsettle = \"2s\"\nsnapshot = \"2s\"\nat_once = 2\nmax_overhead = \"unlimited\"\n\
    [suspect]\ngrowth_bytes = \"2MiB\"\ngrowth_percent = 0.5\nlimit_within = \"0s\"\nlimit_percent = 100.0\n\
    pressure_percent = 100.0";

#[test]
fn of_many_jvms_the_two_that_leak_are_reported_and_only_they_while_another_starts_again_and_again() {
    require_bpf!();
    require_program!("java");
    let count = if is_long() { 17 } else { 2 };
    let place = Place::new("fleet");
    let http = format!("[http]\nlisten = \"unix:{}\"", place.socket().display());
    place.configure("warm_up = \"3s\"", &format!("{RULES}\n{http}"));
    let healthy: Vec<_> = (0..count).map(|_| place.java(65_536, 100, "free")).collect();
    let (fast, slow) = (place.java(65_536, 50, "leak"), place.java(8192, 50, "leak"));
    let leaking = BTreeSet::from([fast.pid(), slow.pid()]);
    let mut daemon = place.start();

    let starts = AtomicU32::new(0);
    let said = thread::scope(|scope| {
        let (_until_dropped, stop) = channel::<()>();
        let (place, starts) = (&place, &starts);
        scope.spawn(move || {
            loop {
                let _java = place.java(65_536, 100, "free");
                starts.fetch_add(1, Ordering::Relaxed);
                if stop.recv_timeout(LIFE) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        let mut reported = BTreeSet::new();
        while reported != leaking {
            let told = daemon.until(" leaks: ", LONG);
            let pid = u32::try_from(told["pid"].as_u64().unwrap()).unwrap();
            assert!(leaking.contains(&pid), "{told}");
            reported.insert(pid);
        }
        // The others are found healthy in a profile, too.
        for java in &healthy {
            // A process that is being profiled is requested again afterwards.
            until(LONG, "a profile that is asked for", || {
                let (head, _) = place.ask(&format!("POST /api/v1/processes/{}/profile", java.pid()));
                assert!(head.starts_with("HTTP/1.1 202 ") || head.starts_with("HTTP/1.1 409 "), "{head}");
                head.starts_with("HTTP/1.1 202 ")
            });
        }
        let mut waited_for: BTreeSet<_> = healthy.iter().map(|java| u64::from(java.pid())).collect();
        while !waited_for.is_empty() {
            let told = daemon.until("was not found to leak", LONG);
            waited_for.remove(&told["pid"].as_u64().unwrap());
        }
        daemon.end()
    });

    assert!(starts.load(Ordering::Relaxed) > 3);
    let reports = said.iter().filter(|line| line["message"].as_str().unwrap().contains(" leaks: "));
    let reported: BTreeSet<_> = reports.map(|line| line["pid"].as_u64().unwrap()).collect();
    assert_eq!(reported, leaking.iter().copied().map(u64::from).collect(), "{said:#?}");
    let of_fast = profiles(&place.state())
        .into_iter()
        .rfind(|path| path.to_str().unwrap().ends_with(&format!("-{}.pb.gz", fast.pid())));
    let of_fast = of_fast.unwrap();
    let report = Ended::of(["report".as_ref(), of_fast.as_os_str()]).assert_done();
    assert!(report.stdout.contains("Pace.forget"), "{}", report.stdout);
    let picture = of_fast.to_str().unwrap().replace(".pb.gz", ".svg");
    assert!(fs::read_to_string(picture).unwrap().contains("Pace.forget"));
}
