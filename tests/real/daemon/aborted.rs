//! Clients that request reports and do not wait for them.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use nix::sys::signal::Signal;

use crate::support::bounded::{LONG, SOON, until};
use crate::support::daemon::{Place, working};
use crate::support::privilege::{is_long, require_bpf};
use crate::support::process::status;

/// Requests in long runs, and in others.
const MANY: u64 = 10_000;
const FEW: u64 = 500;
/// Clients at a time.
const CLIENTS: u64 = 8;
/// Maximum time until a client gives up: some do at once, some while the report is rendered.
const MAX_PATIENCE_US: u64 = 20_000;
/// Growth of the highest resident memory after the first tenth of the requests.
const MAX_GROWTH_KIB: u64 = 16 << 10;

/// Requests reports, and disconnects from each before it is complete.
fn abort(place: &Place, paths: &[String], requests: u64, seed: u64) {
    let mut random = Rng::with_seed(seed);
    for _ in 0..requests {
        let path = random.choice(paths).unwrap();
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: jjleak\r\n\r\n").unwrap();
        let patience = Duration::from_micros(random.u64(1..MAX_PATIENCE_US));
        stream.set_read_timeout(Some(patience)).unwrap();
        if random.bool() {
            // Ends with the first part of the answer, or with patience.
            let _ = stream.read(&mut [0; 64]);
        }
        // The daemon may have hung up.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn abort_at_once(place: &Place, paths: &[String], requests: u64) {
    thread::scope(|scope| {
        for seed in 0..CLIENTS {
            scope.spawn(move || abort(place, paths, requests / CLIENTS, seed));
        }
    });
}

#[test]
fn reports_that_nobody_waits_for_are_rendered_one_at_a_time_and_memory_stays_flat() {
    require_bpf!();
    let place = Place::new("gone");
    place.configure("", &place.served_on_request());
    let (_program, _said) = working(&place);
    let mut daemon = place.start();
    daemon.signal(Signal::SIGUSR1);
    daemon.until("profiling ", SOON);
    until(LONG, "a profile", || !daemon.profiles().is_empty());
    let kept = daemon.profiles().remove(0);
    let id = kept.file_name().unwrap().to_str().unwrap().trim_end_matches(".pb.gz").to_owned();
    let paths = ["report.html", "flame.svg", "profile.pb.gz", "series"];
    let paths: Vec<_> = paths.iter().map(|path| format!("/profiles/{id}/{path}")).collect();
    for path in &paths {
        let (head, _) = place.ask(&format!("GET {path}"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
    }
    let requests = if is_long() { MANY } else { FEW };
    abort_at_once(&place, &paths, requests / 10);
    let before = status(daemon.pid(), "VmHWM:");

    abort_at_once(&place, &paths, requests);

    let after = status(daemon.pid(), "VmHWM:");
    println!("{requests} aborted requests: {before} KiB, then {after} KiB");
    assert!(after <= before + MAX_GROWTH_KIB, "{before} KiB, then {after} KiB");
    let (head, body) = place.ask(&format!("GET {}", paths[0]));
    assert!(head.starts_with("HTTP/1.1 200 ") && body.ends_with(b"</html>\n"), "{head}");
    daemon.end();
}
