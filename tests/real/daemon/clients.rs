//! Clients of the daemon that are numerous, slow, or send malformed requests.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::bounded::{LONG, SOON, until};
use crate::support::daemon::{Daemon, Place};
use crate::support::privilege::require_bpf;

/// A daemon that listens and watches no process.
fn listening(place: &Place, http: &str) -> Daemon {
    place.configure("", &format!("{}\n{http}", place.served_on_request()));
    place.start()
}

fn descriptors(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

#[test]
fn of_a_thousand_clients_at_the_same_time_each_is_answered_and_nothing_stays_behind() {
    const CLIENTS: u64 = 1000;
    require_bpf!();
    // Each client is a descriptor of this process.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let place = Place::new("crowd");
    let daemon = listening(&place, "");
    let before = descriptors(&daemon);

    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let path = if number % 2 == 0 { "/metrics" } else { "/api/v1/processes" };
                let client = thread::Builder::new().stack_size(128 << 10);
                let socket = place.socket();
                client.spawn_scoped(scope, move || asked_patiently(&socket, path)).unwrap()
            })
            .collect();
        for client in clients {
            let answer = client.join().unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    });

    until(SOON, "the end of all connections", || descriptors(&daemon) <= before);
    let said = daemon.end();
    assert!(said.iter().all(|line| line["level"] == "INFO"), "{said:#?}");
}

/// Sends a request and waits, however long earlier ones take.
fn asked_patiently(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: jjleak\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn clients_that_send_a_byte_now_and_then_are_sent_away_and_others_get_their_place() {
    const PLACES: usize = 4;
    require_bpf!();
    let place = Place::new("slow");
    let daemon = listening(&place, &format!("max_connections = {PLACES}"));
    let slow: Vec<_> = (0..PLACES)
        .map(|_| {
            let mut stream = UnixStream::connect(place.socket()).unwrap();
            thread::spawn(move || {
                stream.write_all(b"GET / HTTP/1.1\r\nx: ").unwrap();
                stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                // Until the daemon closes the connection.
                while stream.write_all(b"x").is_ok() {
                    if stream.read(&mut [0; 64]).is_ok_and(|read| read == 0) {
                        break;
                    }
                }
            })
        })
        .collect();
    assert!(place.ask("GET /healthz").0.starts_with("HTTP/1.1 200 "));
    for client in slow {
        client.join().unwrap();
    }
    daemon.end();
}

/// A random malformed request, valid in part.
fn nonsense(random: &mut Rng) -> Vec<u8> {
    const METHODS: [&str; 8] = ["GET", "POST", "DELETE", "HEAD", "OPTIONS", "CONNECT", "get", "\u{0}"];
    const PARTS: [&str; 16] = [
        "/",
        "..",
        "%2e%2e",
        "%2f",
        "%00",
        "profiles",
        "etc/passwd",
        "api/v1",
        "?pid=",
        "debug/pprof/heap",
        "0000000000001-1",
        "flame.svg",
        "http://[",
        "\u{e4}",
        "//",
        "processes/1/profile",
    ];
    const ENDS: [&str; 5] = [" HTTP/1.1\r\n", " HTTP/1.0\r\n", " HTTP/9.9\r\n", "\r\n", "\n"];
    const HEADERS: [&str; 8] = [
        "host: x",
        "content-length: -1",
        "content-length: 99999999999",
        "transfer-encoding: chunked",
        "authorization: Bearer",
        "expect: 100-continue",
        "upgrade: h2c",
        ": ",
    ];
    let mut request = random.choice(METHODS).unwrap().as_bytes().to_vec();
    request.extend(b" /");
    for _ in 0..random.u32(..6) {
        request.extend(random.choice(PARTS).unwrap().as_bytes());
    }
    if random.u32(..4) == 0 {
        request.extend(bytes(random, 64));
    }
    request.extend(random.choice(ENDS).unwrap().as_bytes());
    for _ in 0..random.u32(..5) {
        request.extend(random.choice(HEADERS).unwrap().as_bytes());
        request.extend(b"\r\n");
    }
    if random.u32(..8) == 0 {
        // Exceeds the maximum size of a request head.
        request.extend(b"x: ");
        request.extend(vec![b'a'; 1 << 20]);
    }
    request.extend(b"\r\n");
    request.extend(bytes(random, 10_000));
    request
}

/// Random bytes, fewer than `limit`.
fn bytes(random: &mut Rng, limit: usize) -> Vec<u8> {
    (0..random.usize(..limit)).map(|_| random.u8(..)).collect()
}

#[test]
fn whatever_comes_through_the_socket_is_answered_or_hung_up_on_and_shows_nothing_of_the_host() {
    require_bpf!();
    let place = Place::new("noise");
    let daemon = listening(&place, "");
    let mut random = Rng::with_seed(1);
    for round in 0..1000 {
        let request = nonsense(&mut random);
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_write_timeout(Some(SOON)).unwrap();
        // The daemon may have closed the connection before the end.
        let _ = stream.write_all(&request).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "round {round}");
        }
        let shown = String::from_utf8_lossy(&answer);
        let status = shown.strip_prefix("HTTP/1.1 ").or(shown.strip_prefix("HTTP/1.0 "));
        let is_fault = status.is_some_and(|status| status.starts_with('5'));
        let asked = String::from_utf8_lossy(&request[..request.len().min(200)]);
        assert!((answer.is_empty() || status.is_some()) && !is_fault, "round {round}: {asked:?}: {shown}");
        assert!(!shown.contains("root:"), "round {round}: {asked:?}: {shown}");
    }
    assert!(place.ask("GET /healthz").0.starts_with("HTTP/1.1 200 "));
    let said = daemon.end();
    assert!(said.iter().all(|line| line["level"] == "INFO"), "{said:#?}");
}
