//! The daemon as a service: restarts, its bound, hostile processes, systemd notifications, and its web pages.

use std::fs;
use std::io::{self, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::bounded::{LONG, SOON, until};
use crate::support::browser::Browser;
use crate::support::daemon::{Daemon, ON_REQUEST, Place, ask, working, working_at};
use crate::support::jjleak::PROGRAM;
use crate::support::lines::Lines;
use crate::support::privilege::{require_bpf, require_program};
use crate::support::process::Process;

/// Configures a daemon that listens on a Unix socket, with these changes.
fn configure(place: &Place, changes: &[(&str, &str)]) -> std::path::PathBuf {
    let socket = place.path("socket");
    let http = format!("listen = \"unix:{}\"", socket.display());
    let sections = changes.iter().fold(ON_REQUEST.replace("listen = \"off\"", &http), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    place.configure("", &sections);
    socket
}

/// The daemon's data on its only process.
fn process(socket: &Path) -> Value {
    let answer: Value = serde_json::from_slice(&ask(socket, "GET /api/v1/processes").1).unwrap();
    assert_eq!(answer["processes"].as_array().unwrap().len(), 1, "{answer}");
    answer["processes"][0].clone()
}

/// Requests a profile of the only process and waits until one is stored.
fn profile(daemon: &mut Daemon) {
    let kept = daemon.profiles().len();
    daemon.signal(Signal::SIGUSR1);
    daemon.until("profiling ", SOON);
    until(LONG, "a profile", || daemon.profiles().len() > kept);
}

#[test]
fn neither_a_restart_nor_a_kill_forgets_what_was_found_and_whom_to_leave_in_peace() {
    require_bpf!();
    let place = Place::new("resumed");
    let socket = configure(&place, &[("back_off = \"1s\"", "back_off = \"1h\"")]);
    let (program, _said) = working(&place);
    let mut daemon = place.start();
    profile(&mut daemon);
    // Either a verdict, or the statement that there is none.
    until(LONG, "an end of waiting for a verdict", || {
        let finding = &process(&socket)["finding"];
        finding["judged"] == true || finding["estimate"]["can_be_judged"] == false
    });
    let last = daemon.end().into_iter().rev().find_map(|line| line["profile"].as_str().map(str::to_owned));

    let mut daemon = place.start();
    assert!(daemon.has_said("resumed 1 processes"), "{:#?}", daemon.said);
    let known = process(&socket);
    assert_eq!(
        (known["state"].as_str(), known["finding"]["profile"].as_str()),
        (Some("back_off"), last.as_deref())
    );
    assert!(known["live_history"].as_array().unwrap().len() > 1, "{known}");

    // The daemon is killed while it profiles a process that was not in back-off: profiling may be the cause, so that the next
    // daemon backs off.
    drop(program);
    let (other, _said) = working(&place);
    until(SOON, "another process instead", || {
        let answer: Value = serde_json::from_slice(&ask(&socket, "GET /api/v1/processes").1).unwrap();
        let watched: Vec<_> = answer["processes"].as_array().unwrap().iter().map(|it| &it["pid"]).collect();
        watched == [&Value::from(other.id())]
    });
    assert_eq!(process(&socket)["state"], "watching");
    profile(&mut daemon);
    until(SOON, "a word for the next daemon", || {
        let left = fs::read_to_string(place.state().join("watched"));
        left.is_ok_and(|left| left.contains("\"standing\":\"profiled\""))
    });
    daemon.kill();
    let daemon = place.start();
    let known = process(&socket);
    assert_eq!((&known["pid"], &known["state"]), (&Value::from(other.id()), &Value::from("back_off")));
    daemon.end();
}

#[test]
fn what_costs_more_than_is_allowed_is_counted_in_windows_and_not_judged_and_that_is_said() {
    require_bpf!();
    let place = Place::new("bounded");
    // A verdict takes four times as long as `settle`: on a slow machine, everything may be counted for some seconds, and could
    // be judged.
    let bound = "settle = \"6s\"\nmax_overhead = \"1%\"";
    let socket =
        configure(&place, &[("settle = \"1s\"", bound), ("duration = \"60s\"", "duration = \"30s\"")]);
    let (_program, _said) = working_at(&place, "pace 1000000 1");
    let mut daemon = place.start();
    profile(&mut daemon);
    until(LONG, "an estimate", || !process(&socket)["finding"]["estimate"].is_null());
    let told = daemon.until(" cannot be judged: ", LONG);
    let told = told["message"].as_str().unwrap();
    assert!(
        told.contains("costs more than profile.max_overhead allows") && told.contains("windows of time"),
        "{told}"
    );
    let finding = process(&socket)["finding"].clone();
    assert_eq!(
        (&finding["judged"], &finding["estimate"]["can_be_judged"]),
        (&Value::Bool(false), &Value::Bool(false))
    );
    let metrics = String::from_utf8(ask(&socket, "GET /metrics").1).unwrap();
    let estimated = metrics.lines().find(|line| line.starts_with("jjleak_process_profile_estimated{"));
    assert!(estimated.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
    daemon.end();
}

#[test]
fn systemd_is_notified_that_it_is_ready_what_it_does_that_it_lives_and_that_it_ends() {
    require_bpf!();
    let place = Place::new("notify");
    configure(&place, &[]);
    let path = place.path("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    systemd.set_read_timeout(Some(SOON)).unwrap();
    let hear = |wanted: &str| {
        let mut message = [0; 4096];
        loop {
            let length = systemd.recv(&mut message).unwrap_or_else(|error| panic!("{wanted}: {error}"));
            if String::from_utf8_lossy(&message[..length]).lines().any(|line| line.starts_with(wanted)) {
                break;
            }
        }
    };
    let daemon = place
        .spawn(|command| command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "2000000"))
        .until_it_watches();
    hear("READY=1");
    hear("STATUS=watching 0 processes");
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    daemon.signal(Signal::SIGHUP);
    hear("RELOADING=1");
    hear("READY=1");
    daemon.signal(Signal::SIGTERM);
    hear("STOPPING=1");
    daemon.end();
}

#[test]
fn the_journal_gets_the_priority_of_each_message_and_others_are_not() {
    require_bpf!();
    let place = Place::new("journal");
    let path = place.configure("", &ON_REQUEST.replace("listen = \"off\"", "listen = \"unix:/dev/null\""));
    // The journal names the file.
    let said = |is_journal: bool| {
        let mut log = tempfile::tempfile().unwrap();
        let about = log.metadata().unwrap();
        let journal = format!("{}:{}", about.dev(), about.ino() + u64::from(!is_journal));
        let mut command = Command::new(PROGRAM);
        command.args(["daemon", "--set", "log.format=text", "--config"]).arg(&path);
        command.env("JOURNAL_STREAM", journal).stdin(Stdio::null()).stderr(log.try_clone().unwrap());
        // A folder instead of a socket, which ends it, and a damaged index, which it warns about before.
        fs::create_dir_all(place.state()).unwrap();
        fs::write(place.state().join("index"), "damaged\n").unwrap();
        assert_eq!(Process::spawn(&mut command).end(SOON).code(), Some(1));
        log.rewind().unwrap();
        io::read_to_string(log).unwrap()
    };
    let is_told = |said: &str, start: &str| said.lines().any(|line| line.starts_with(start));
    let (journal, other) = (said(true), said(false));
    assert!(is_told(&journal, "<4>") && journal.contains("repaired the history"), "{journal}");
    assert!(!is_told(&other, "<") && other.contains("repaired the history"), "{other}");
}

#[test]
fn the_page_shows_processes_and_leads_to_their_profiles() {
    require_program!("chromium");
    let place = Place::new("page");
    place.configure("", &ON_REQUEST.replace("listen = \"off\"", "listen = \"tcp:127.0.0.1:0\""));
    let (program, _said) = working(&place);
    let mut daemon = place.start();
    let listening =
        daemon.said.iter().find_map(|line| line["message"].as_str()?.strip_prefix("listening on "));
    let url = listening.unwrap().to_owned();
    profile(&mut daemon);

    until(LONG, "another snapshot", || daemon.profiles().len() > 1);
    let mut browser = Browser::visit(&url);
    assert_eq!(
        browser.evaluate("document.querySelectorAll('#profiles tbody tr').length"),
        serde_json::json!(1)
    );
    let text = |browser: &mut Browser, of: &str| {
        browser.evaluate(&format!("document.querySelector('{of}').innerText")).as_str().unwrap().to_owned()
    };
    let row = text(&mut browser, "#processes tbody tr");
    assert!(row.contains(&format!("pid {}", program.id())) && row.contains("profiling"), "{row}");
    let links =
        "[...document.querySelectorAll('#profiles tbody tr:first-child a')].map(link => link.textContent)";
    let names = browser.evaluate(links);
    let [series, names @ ..] = &names.as_array().unwrap()[..] else { panic!("{names}") };
    assert_eq!(names, ["report", "flame\u{a0}graph", "pprof"]);
    assert!(series.as_str().unwrap().ends_with(" snapshots"), "{series}");
    let link =
        |number: u32| format!("document.querySelectorAll('#profiles tbody tr:first-child a')[{number}].href");
    let [series, report, flame] =
        [0, 1, 2].map(|number| browser.evaluate(&link(number)).as_str().unwrap().to_owned());
    browser.assert_quiet();
    browser.go(&series);
    let snapshots = browser.evaluate("document.querySelectorAll('#profiles tbody tr').length");
    assert!(snapshots.as_u64() > Some(1), "{snapshots}");
    browser.assert_quiet();
    browser.go(&report);
    let report = text(&mut browser, "body");
    assert!(report.contains("Live: not freed yet"), "{report}");
    browser.assert_quiet();
    browser.go(&flame);
    assert!(browser.evaluate("document.querySelectorAll('#frames g').length").as_u64() > Some(3));
    browser.assert_quiet();
    drop(browser);
    daemon.end();
}

/// A process name that no other test uses.
fn python_name() -> String {
    format!("py{}", std::process::id())
}

/// Starts a Python program under the name of a test, and waits until it is ready.
fn python(place: &Place, script: &str) -> Process {
    let python = place.path(&python_name());
    if !python.exists() {
        std::os::unix::fs::symlink(fs::canonicalize("/usr/bin/python3").unwrap(), &python).unwrap();
    }
    let mut command = Command::new(python);
    command.args(["-c", script]).current_dir(place.path(""));
    let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = Lines::of("python", process.stdout.take().unwrap());
    assert_eq!(said.next(LONG), "ready");
    process
}

/// Starts programs as fast as possible until dropped.
struct Storm(Child);

impl Storm {
    fn begin() -> Self {
        let script = "while :; do /bin/true & /bin/true & wait; done";
        Self(Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn hostile_processes_cost_their_own_profiles_and_no_others() {
    require_program!("python3");
    let place = Place::new("hostile");
    let changes = [
        ("duration = \"60s\"", "duration = \"10s\"\nat_once = 4\nmax_overhead = \"unlimited\""),
        ("settle = \"1s\"", "settle = \"2s\""),
    ];
    let socket = configure(&place, &changes);
    let path = place.path("jjleak.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("names = [", &format!("names = [\"^{}$\", ", python_name()))).unwrap();

    // An invalid library, mapped as executable, and a malformed perf map.
    let mapped = "f = open('libjvm.so', 'r+b'); import mmap\n\
        m = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)\n";
    let nonsense: Vec<u8> =
        (0..1_000_000_u32).map(|number| (number.wrapping_mul(number) % 251) as u8).collect();
    fs::write(place.path("libjvm.so"), [b"\x7fELF\x02\x01\x01", &nonsense[..]].concat()).unwrap();
    let end = "print('ready', flush=True); import sys; sys.stdin.read()";
    let library = python(&place, &format!("{mapped}{end}"));
    let map = format!("/tmp/perf-{}.map", library.id());
    fs::write(&map, &nonsense).unwrap();
    // Thousands of threads.
    let threads = "import threading; threading.stack_size(32768); e = threading.Event()\n\
        [threading.Thread(target=e.wait, daemon=True).start() for _ in range(3000)]\n";
    let threads = python(&place, &format!("{threads}{end}"));
    // A process that constantly maps and unmaps, and one that ends while it is profiled.
    let mapping = "import mmap, threading\n\
        def work():\n  while True: mmap.mmap(-1, 1 << 20).close()\n\
        threading.Thread(target=work, daemon=True).start()\n";
    let mapping = python(&place, &format!("{mapping}{end}"));
    let mut ending = python(&place, end);
    let _storm = Storm::begin();

    let (good, _said) = working(&place);
    let mut daemon = place.start();
    let request = |process: &Process| {
        let (head, _) = ask(&socket, &format!("POST /api/v1/processes/{}/profile", process.id()));
        assert!(head.starts_with("HTTP/1.1 202 "), "{head}");
    };
    for process in [&library, &threads, &mapping, &ending] {
        request(process);
    }
    until(LONG, "a profile of the one that ends", || {
        let metrics = String::from_utf8(ask(&socket, "GET /metrics").1).unwrap();
        metrics.contains("jjleak_profiles_total 4\n")
    });
    ending.stdin.as_mut().unwrap().flush().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(ending.id().try_into().unwrap()), Signal::SIGKILL)
        .unwrap();
    // Under this load, one profile may be too short for a verdict.
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < LONG, "{:#?}", daemon.said);
        request(&good);
        let outcome = daemon.until(&format!("(pid {}) ", good.id()), LONG);
        if outcome["message"].as_str().unwrap().contains(" leaks: ") {
            assert!(outcome["leaking"].as_u64() > Some(0), "{outcome}");
            break;
        }
    }
    assert!(ask(&socket, "GET /healthz").0.starts_with("HTTP/1.1 200 "));
    daemon.end();
    fs::remove_file(map).unwrap();
}
