//! Heap profiles that programs write themselves, under the daemon.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::fs::symlink;
use std::thread;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;

use crate::output::heap_profiles::JEMALLOC;
use crate::output::heap_series::{KEEPING, profiles};
use crate::support::bounded::{LONG, SOON, until};
use crate::support::daemon::{Place, ask};
use crate::support::privilege::{require_bpf, require_library};

/// A heap profile of one stack.
const HEAP: &str = "heap_v2/1\n  t*: 1: 4096 [0: 0]\n@ 0x1000\n  t*: 1: 4096 [0: 0]\nMAPPED_LIBRARIES:\n1000-2000 r-xp 0 0:0 7 /none\n";

/// Configuration with these sources of heap profiles.
fn configure(place: &Place, from: &[&str]) {
    let dumps = format!("[dumps]\nfrom = {from:?}\ninterval = \"1s\"\nmax_bytes = \"1MiB\"");
    place.configure("", &format!("{}\n{dumps}", place.served_on_request()));
}

fn source(place: &Place, from: &str) -> Value {
    let (_, body) = ask(&place.socket(), "GET /api/v1/dumps");
    let body: Value = serde_json::from_slice(&body).unwrap();
    let sources = body["sources"].as_array().unwrap();
    sources.iter().find(|source| source["from"] == from).unwrap().clone()
}

/// A server that sends this text with each answer.
fn serve(text: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/heap", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            let length = text.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}")
                .unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        }
    });
    address
}

#[test]
fn what_grows_from_one_heap_profile_to_the_next_is_found_by_the_daemon() {
    require_bpf!();
    require_library!(JEMALLOC);
    let (place, written) = (Place::new("dumps"), tempfile::tempdir().unwrap());
    let dumps = place.path("dumps");
    fs::create_dir(&dumps).unwrap();
    let pattern = format!("{}/*.heap", dumps.display());
    configure(&place, &[&pattern]);
    let mut daemon = place.start();
    // It watches no process.
    for path in profiles(&written) {
        fs::rename(&path, dumps.join(path.file_name().unwrap())).unwrap();
    }

    let told = daemon.until(" leaks, by its heap profiles ", LONG);
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("keep_large") && message.contains("report: curl --unix-socket "), "{told}");
    let known = source(&place, &pattern);
    assert_eq!((known["read"].as_u64(), known["failed"].as_u64()), (Some(KEEPING as u64), Some(0)));
    let process = &known["processes"][0];
    assert!(process["leaking"].as_u64() == Some(1) && process["judged"] == true, "{known}");
    let site = process["leaking_sites"][0].as_str().unwrap();
    assert!(site.contains("keep_large"), "{known}");
    let rate = process["leak_bytes_per_s"].as_f64().unwrap();
    assert!((80_000. ..130_000.).contains(&rate), "a MiB in ten seconds, not {rate} bytes a second");
    let id = process["profile"].as_str().unwrap();
    let (head, report) = ask(&place.socket(), &format!("GET /profiles/{id}/report.html"));
    assert!(head.contains(" 200 ") && String::from_utf8_lossy(&report).contains("keep_large"), "{head}");
    let (_, page) = ask(&place.socket(), "GET /");
    let page = String::from_utf8_lossy(&page).into_owned();
    let (_, table) = page.split_once("<h2>Heap profiles</h2>").unwrap();
    assert!(table.split("</table>").next().unwrap().contains("keep_large"), "{page}");
    daemon.end();
}

#[test]
fn what_is_no_heap_profile_holds_up_no_other() {
    require_bpf!();
    let (place, heap) = (Place::new("placed"), serve(HEAP));
    let dumps = place.path("dumps");
    let pattern = format!("{}/*", dumps.display());
    fs::create_dir(&dumps).unwrap();
    // Nobody writes to the pipe.
    mkfifo(&dumps.join("pipe"), Mode::S_IRUSR).unwrap();
    symlink(dumps.join("pipe"), dumps.join("linked")).unwrap();
    File::create(dumps.join("large")).unwrap().set_len(1 << 40).unwrap();
    configure(&place, &[&pattern, &heap]);
    let daemon = place.start();

    until(SOON, "two heap profiles", || source(&place, &heap)["read"].as_u64().unwrap() > 1);
    until(SOON, "the failure", || source(&place, &pattern)["failed"].as_u64() == Some(1));

    let error = source(&place, &pattern)["error"].as_str().unwrap().to_owned();
    assert!(error.contains("large") && error.contains("it has more than 1048576 bytes"), "{error}");
    daemon.end();
}

#[test]
fn servers_are_asked_again_and_again_and_what_they_cannot_send_is_reported_once() {
    require_bpf!();
    let place = Place::new("served");
    let heap = serve(HEAP);
    let other = serve("no heap profile\n");
    let large = serve(Box::leak(format!("heap_v2/1\n{}", "@ 0x1000\n".repeat(200_000)).into_boxed_str()));
    configure(&place, &[&heap, &other, &large]);
    let mut daemon = place.start();

    let failing = |address: &str| source(&place, address)["failed"].as_u64().unwrap() > 1;
    until(SOON, "two attempts", || failing(&other) && failing(&large));
    until(SOON, "two heap profiles", || source(&place, &heap)["read"].as_u64().unwrap() > 1);

    let process = &source(&place, &heap)["processes"];
    assert_eq!((process[0]["live_bytes"].as_u64(), process[1].is_null()), (Some(4096), true), "{process}");
    let (_, metrics) = ask(&place.socket(), "GET /metrics");
    let metrics = String::from_utf8(metrics).unwrap();
    assert!(metrics.contains(&format!("jjleak_dumps_failing{{from=\"{other}\"}} 1\n")), "{metrics}");
    assert!(metrics.contains(&format!("jjleak_dumps_failing{{from=\"{heap}\"}} 0\n")), "{metrics}");
    let told = daemon.until("cannot read a heap profile", SOON);
    assert_eq!(told["level"], "WARN");
    let said = daemon.end();
    let of = |address: &str, why: &str| {
        let messages = said.iter().filter_map(|line| line["message"].as_str());
        messages.filter(|message| message.contains(address) && message.contains(why)).count()
    };
    assert_eq!(
        (of(&other, "cannot read"), of(&large, "it has more than 1048576 bytes")),
        (1, 1),
        "{said:#?}"
    );
}
