//! Pushes profiles to a local server, in each protocol and with each kind of response.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use prost::Message;

use super::{Destination, Kind, Pusher, Status};
use crate::render::sample;

/// A received request.
struct Received {
    line: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// A server that sends these responses, one per request.
struct Server {
    url: String,
    received: Receiver<Received>,
}

fn receiver(answers: Vec<Vec<u8>>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = mpsc::channel();
    thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().unwrap();
            let request = read(&stream);
            (&stream).write_all(&answer).unwrap();
            // The test may already have ended.
            let _ = sender.send(request);
        }
    });
    Server { url, received }
}

fn read(stream: &TcpStream) -> Received {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let headers: BTreeMap<_, _> = lines[1..]
        .iter()
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    Received { line: lines[0].clone(), headers, body }
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn ok() -> Vec<u8> {
    answer("200 OK", "", b"")
}

fn destination(kind: Kind, url: &str) -> Destination {
    Destination {
        kind,
        url: url.to_owned(),
        token: Some("secret".to_owned()),
        headers: BTreeMap::from([("X-Scope-OrgID".to_owned(), "team".to_owned())]),
        labels: BTreeMap::from([("host.name".to_owned(), "web-1".to_owned())]),
    }
}

fn profile() -> Vec<u8> {
    let mut file = Vec::new();
    crate::pprof::write(&sample::profile(), &mut file).unwrap();
    file
}

fn start(kind: Kind, url: &str, folder: &Path) -> Pusher {
    Pusher::start(destination(kind, url), folder, 1 << 20).unwrap()
}

fn next(receiver: &Server) -> Received {
    receiver.received.recv_timeout(Duration::from_secs(60)).expect("a request")
}

fn until(pusher: &Pusher, is_so: impl Fn(&Status) -> bool) -> Status {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let status = pusher.status();
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < end, "{status:?}");
        thread::yield_now();
    }
}

#[test]
fn pyroscope_gets_a_form_with_the_file_and_knows_whose_it_is() {
    let receiver = receiver(vec![ok()]);
    let folder = tempfile::tempdir().unwrap();
    let pusher = start(Kind::Pyroscope, &receiver.url, folder.path());
    pusher.push(&profile()).unwrap();

    let request = next(&receiver);
    assert!(request.line.starts_with("POST /ingest?name=leaky"), "{}", request.line);
    for part in ["host_name%3Dweb-1", "pid%3D", "format=pprof", "from=", "until="] {
        assert!(request.line.contains(part), "no {part}: {}", request.line);
    }
    assert_eq!(request.headers["authorization"], "Bearer secret");
    assert_eq!(request.headers["x-scope-orgid"], "team");
    let boundary = request.headers["content-type"].split_once("boundary=").unwrap().1.to_owned();
    let parts = split(&request.body, format!("--{boundary}").as_bytes());
    assert!(parts[1].ends_with(&[profile().as_slice(), b"\r\n"].concat()));
    assert!(String::from_utf8_lossy(parts[2]).contains("\"inuse_space\""));
    assert_eq!(parts[3], b"--\r\n");
    let status = until(&pusher, |status| status.sent == 1);
    assert_eq!(status, Status { sent: 1, ..Status::default() });
}

/// Splits bytes at each occurrence of a separator.
fn split<'a>(text: &'a [u8], by: &[u8]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(place) = rest.windows(by.len()).position(|window| window == by) {
        pieces.push(&rest[..place]);
        rest = &rest[place + by.len()..];
    }
    pieces.push(rest);
    pieces
}

#[test]
fn a_collector_gets_what_its_own_messages_decode() {
    let receiver = receiver(vec![ok()]);
    let folder = tempfile::tempdir().unwrap();
    let pusher = start(Kind::Otlp, &receiver.url, folder.path());
    pusher.push(&profile()).unwrap();

    let request = next(&receiver);
    assert!(request.line.starts_with("POST /v1development/profiles "), "{}", request.line);
    let mut message = Vec::new();
    GzDecoder::new(request.body.as_slice()).read_to_end(&mut message).unwrap();
    let message = ExportProfilesServiceRequest::decode(message.as_slice()).unwrap();
    assert_eq!(message.resource_profiles[0].scope_profiles[0].profiles.len(), 4);
    until(&pusher, |status| status.sent == 1);
}

#[test]
fn another_store_gets_the_file_as_it_is() {
    let receiver = receiver(vec![ok()]);
    let folder = tempfile::tempdir().unwrap();
    let pusher = start(Kind::Pprof, &format!("{}/api/put?kind=heap", receiver.url), folder.path());
    pusher.push(&profile()).unwrap();

    let request = next(&receiver);
    assert!(request.line.starts_with("POST /api/put?kind=heap "), "{}", request.line);
    assert_eq!(request.body, profile());
}

#[test]
fn failed_profiles_are_retried_in_order() {
    let busy = answer("503 Service Unavailable", "Retry-After: 0\r\n", b"not now");
    let receiver = receiver(vec![busy, ok(), ok()]);
    let folder = tempfile::tempdir().unwrap();
    let pusher = start(Kind::Pprof, &receiver.url, folder.path());
    let mut other = sample::profile();
    other.process.comm = "other".to_owned();
    let mut second = Vec::new();
    crate::pprof::write(&other, &mut second).unwrap();
    pusher.push(&profile()).unwrap();
    pusher.push(&second).unwrap();

    let bodies: Vec<_> = (0..3).map(|_| next(&receiver).body).collect();
    assert_eq!(bodies, [profile(), profile(), second]);
    let status = until(&pusher, |status| status.sent == 2);
    assert_eq!(status, Status { sent: 2, failures: 1, ..Status::default() });
}

#[test]
fn refused_profiles_are_discarded_and_counted() {
    let refusal = answer("422 Unprocessable Entity", "", b"bad \x1b[2J profile");
    let receiver = receiver(vec![refusal, ok()]);
    let folder = tempfile::tempdir().unwrap();
    let pusher = start(Kind::Pprof, &receiver.url, folder.path());
    pusher.push(&profile()).unwrap();
    let status = until(&pusher, |status| status.refused == 1);
    assert_eq!(status.last_error.as_deref(), Some(r"422 Unprocessable Entity: bad \u{1b}[2J profile"));

    pusher.push(&profile()).unwrap();
    until(&pusher, |status| status.sent == 1 && status.waiting == 0);
}

#[test]
fn a_collector_that_rejects_profiles_of_an_accepted_request_refuses_them() {
    let partial = ExportProfilesPartialSuccess { rejected_profiles: 4, error_message: "too many".to_owned() };
    let refusal = ExportProfilesServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    let receiver = receiver(vec![answer("200 OK", "", &refusal)]);
    let folder = tempfile::tempdir().unwrap();
    let pusher = start(Kind::Otlp, &receiver.url, folder.path());
    pusher.push(&profile()).unwrap();

    let status = until(&pusher, |status| status.refused == 1);
    assert_eq!(status.last_error.as_deref(), Some("4 profiles rejected: too many"));
}

#[test]
fn redirects_are_not_followed_to_protect_the_token() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let location = format!("Location: http://{}/\r\n", elsewhere.local_addr().unwrap());
    let receiver = receiver(vec![answer("307 Temporary Redirect", &location, b"")]);
    let folder = tempfile::tempdir().unwrap();
    let pusher = start(Kind::Pprof, &receiver.url, folder.path());
    pusher.push(&profile()).unwrap();

    let status = until(&pusher, |status| status.refused + status.failures > 0);
    assert_eq!(status.refused, 1, "{status:?}");
    assert!(elsewhere.accept().is_err());
}

#[test]
fn queued_profiles_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody listens on this port any more.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pusher = start(Kind::Pprof, &format!("http://{closed}"), folder.path());
    pusher.push(&profile()).unwrap();
    let status = until(&pusher, |status| status.failures > 0);
    assert_eq!((status.waiting, status.sent), (1, 0));
    drop(pusher);

    let receiver = receiver(vec![ok()]);
    let pusher = start(Kind::Pprof, &receiver.url, folder.path());
    assert_eq!(next(&receiver).body, profile());
    until(&pusher, |status| status.sent == 1 && status.waiting == 0);
}

#[test]
fn a_damaged_file_in_the_queue_is_discarded_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("0000000000000000.pb.gz"), b"\x1f\x8bnonsense").unwrap();
    let pusher = start(Kind::Pprof, "http://127.0.0.1:9", folder.path());
    let status = until(&pusher, |status| status.refused == 1);
    assert!(status.last_error.unwrap().starts_with("damaged profile: "));
}

#[test]
fn a_name_cannot_add_labels_to_a_series() {
    let mut hostile = sample::profile();
    hostile.process.comm = "x{host=other},".to_owned();
    let mut file = Vec::new();
    crate::pprof::write(&hostile, &mut file).unwrap();
    let request = destination(Kind::Pyroscope, "http://h/").request(&file).unwrap();
    let name = &request.query.iter().find(|(key, _)| *key == "name").unwrap().1;
    assert!(name.starts_with("x_host_other__{host_name=web-1,pid="), "{name}");
    assert_eq!(request.url, "http://h/ingest");
}
