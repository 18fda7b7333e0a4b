//! The daemon: watches real processes, profiles the one that grows, and stores the result.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;

use crate::support::bounded::{LONG, SOON, until};
use crate::support::daemon::{ON_REQUEST, Place, ask, profiles, working};
use crate::support::jjleak::Ended;
use crate::support::privilege::require_bpf;

#[test]
fn a_signal_has_a_process_profiled_and_its_last_profile_is_kept_or_reported_as_missing() {
    require_bpf!();
    let place = Place::new("asked");
    place.configure("", ON_REQUEST);
    let (program, _said) = working(&place);
    let mut daemon = place.start();
    daemon.signal(Signal::SIGUSR1);
    let told = daemon.until("profiling ", SOON);
    assert!(told["message"].as_str().unwrap().contains(&format!("pid {}", program.id())), "{told}");
    until(LONG, "a profile", || !daemon.profiles().is_empty());
    let before = daemon.profiles().len();
    let said = daemon.end();
    let kept = profiles(&place.state()).len();
    // On a busy machine, the last profile may not be ready in time, which the daemon reports.
    let is_late = said.iter().any(|line| line["message"].as_str().unwrap().contains("did not stop in time"));
    assert!(kept > before || is_late, "{kept} profiles, {before} before: {said:#?}");
}

/// Accepts a request and answers with success. Returns its body.
fn take_request(listener: &TcpListener) -> Vec<u8> {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(&stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_lowercase();
        if let Some(bytes) = line.strip_prefix("content-length: ") {
            length = bytes.parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    body
}

#[test]
fn what_was_found_is_sent_when_somebody_takes_it_also_after_a_restart() {
    require_bpf!();
    let place = Place::new("sent");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let configure = |address: SocketAddr| {
        place.configure(
            "",
            &format!("{ON_REQUEST}\n[push]\nto = \"pprof\"\nurl = \"http://{address}/profiles\""),
        );
    };
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    configure(closed);
    let (_program, _said) = working(&place);
    let mut daemon = place.start();
    daemon.signal(Signal::SIGUSR1);
    daemon.until("profiling ", SOON);
    until(LONG, "a profile", || !daemon.profiles().is_empty());
    daemon.end();
    let queue = place.state().join("push");
    assert_eq!(fs::read_dir(&queue).unwrap().count(), 1);

    configure(address);
    let daemon = place.start();
    let sent = take_request(&listener);
    assert_eq!(sent, fs::read(profiles(&place.state()).pop().unwrap()).unwrap());
    until(SOON, "an empty queue", || fs::read_dir(&queue).unwrap().count() == 0);
    daemon.end();
}

#[test]
fn a_full_disk_is_reported_and_as_soon_as_there_is_room_profiles_are_kept_again() {
    require_bpf!();
    let place = Place::new("full");
    place.configure("", ON_REQUEST);
    let state = place.state();
    fs::create_dir(&state).unwrap();
    let _mounted = Mounted::new(&state);
    let (_program, _said) = working(&place);
    let mut daemon = place.start();
    let filler = state.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    drop(file);
    daemon.signal(Signal::SIGUSR1);
    let told = daemon.until("cannot store the profile", LONG);
    assert!(told["message"].as_str().unwrap().contains("No space left on device"), "{told}");
    assert_eq!(daemon.profiles().len(), 0);
    fs::remove_file(&filler).unwrap();
    until(LONG, "a profile", || !daemon.profiles().is_empty());
    daemon.end();
}

#[test]
fn a_configuration_is_checked_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jjleak.toml");
    let check = |text: &str| {
        fs::write(&path, text).unwrap();
        Ended::of(["daemon", "--check-config", "--config", path.to_str().unwrap()])
    };
    assert!(check("[watch]\ninterval = \"5s\"\n").assert_done().stdout.ends_with("jjleak.toml: valid\n"));
    check("[watch]\n\ninterval = \"5 parsecs\"\n").assert_failed(
        2,
        "jjleak.toml:3: `5 parsecs` is not a duration",
        "correct it",
    );
    let missing = folder.path().join("missing.toml");
    let missing = Ended::of(["daemon", "--check-config", "--config", missing.to_str().unwrap()]);
    missing.assert_failed(2, "cannot read", "correct it");
}

#[test]
fn a_configuration_that_is_wrong_is_refused_on_reload_and_one_that_is_right_holds_at_once() {
    require_bpf!();
    let place = Place::new("reload");
    let path = place.configure("", ON_REQUEST);
    let (_program, _said) = working(&place);
    let mut daemon = place.start();
    let right = fs::read_to_string(&path).unwrap();
    fs::write(&path, right.replace("interval = \"1s\"", "interval = \"1 s s\"")).unwrap();
    daemon.signal(Signal::SIGHUP);
    let refused = daemon.until("cannot reload", SOON);
    assert!(refused["message"].as_str().unwrap().contains("jjleak.toml:8: "), "{refused}");
    // It continues to watch.
    daemon.signal(Signal::SIGUSR1);
    daemon.until("profiling ", SOON);
    fs::write(&path, right.replace("interval = \"1s\"", "interval = \"2s\"")).unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.until("reloaded the configuration", SOON);
    daemon.end();
}

#[test]
fn anyone_who_may_open_its_socket_has_a_process_profiled_and_sees_what_was_found() {
    require_bpf!();
    let place = Place::new("served");
    let socket = place.socket();
    place.configure("", &format!("{}\nmax_connections = 4", place.served_on_request()));
    let (program, _said) = working(&place);
    let mut daemon = place.start();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    let pid = program.id();
    let (head, _) = ask(&socket, &format!("POST /api/v1/processes/{pid}/profile"));
    assert!(head.starts_with("HTTP/1.1 202 "), "{head}");
    daemon.until("profiling ", SOON);
    let latest = format!("GET /debug/pprof/heap?pid={pid}");
    until(LONG, "a profile", || ask(&socket, &latest).0.starts_with("HTTP/1.1 200 "));
    let profile = jjleak::pprof::read(&ask(&socket, &latest).1).unwrap().profile;
    assert_eq!(profile.process.pid, pid);
    let metrics = String::from_utf8(ask(&socket, "GET /metrics").1).unwrap();
    assert!(metrics.contains("jjleak_processes{state=\"profiling\"} 1\n"), "{metrics}");
    assert!(metrics.contains(&format!("jjleak_process_resident_bytes{{pid=\"{pid}\"")), "{metrics}");
    // Idle clients are disconnected, and later ones are served.
    let silent: Vec<_> = (0..4).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    assert!(ask(&socket, "GET /healthz").0.starts_with("HTTP/1.1 200 "));
    drop(silent);
    daemon.end();
    assert!(!socket.exists());
}

/// A small tmpfs, mounted until dropped.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn new(folder: &'a Path) -> Self {
        mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some("size=512k")).unwrap();
        Self(folder)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // A lazy unmount: it goes with its last user.
        let _ = umount2(self.0, MntFlags::MNT_DETACH);
    }
}
