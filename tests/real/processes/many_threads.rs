//! A process with the maximum number of threads does not impair the watching of others.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use jjleak::render::json::StackDocument;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::bounded::{HOURLONG, LONG, until};
use crate::support::compile;
use crate::support::daemon::{Place, working};
use crate::support::jjleak::Ended;
use crate::support::lines::Lines;
use crate::support::privilege::{is_long, require, require_bpf};
use crate::support::process::Process;

const SHORT: u64 = 2_000;
const LONG_RUN: u64 = 100_000;
/// Minimum number of threads for this test.
const LEAST: u64 = 500;
/// Threads and mappings left to the rest of the host.
const RESERVE: u64 = 4_000;

fn number(file: &str) -> u64 {
    fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

/// Number of threads, wanted or allowed by this host for one process, and number of stacks that can have a separate guard. The
/// program detects other limits itself.
fn most() -> (u64, u64) {
    let wanted = if is_long() { LONG_RUN } else { SHORT };
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let used: u64 = load.split(['/', ' ']).nth(4).unwrap().parse().unwrap();
    let of_host = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
    let threads = wanted.min(of_host.saturating_sub(used + RESERVE));
    // A guard and the stack after it are one mapping each.
    (threads, threads.min(number("/proc/sys/vm/max_map_count").saturating_sub(RESERVE) / 2))
}

/// A process with many threads.
struct Multitude {
    process: Process,
    said: Lines,
    threads: u64,
}

impl Multitude {
    fn start(place: &Place) -> Self {
        let (threads, guarded) = most();
        let mut command = Command::new(place.other_program(compile::multitude()));
        command.args([threads, guarded].map(|count| count.to_string()));
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut said = Lines::of("the multitude", process.stdout.take().unwrap());
        let ready = said.next(HOURLONG);
        let threads = ready.strip_prefix("ready ").unwrap().parse().unwrap();
        assert!(threads >= LEAST, "only {threads} threads could be made");
        println!("{threads} threads, {guarded} of them with a guard");
        Self { process, said, threads }
    }

    /// Makes each of them allocate.
    fn work(&mut self) {
        writeln!(self.process.stdin.as_mut().unwrap()).unwrap();
        assert_eq!(self.said.next(HOURLONG), "done");
    }

    fn kill(&self) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
    }
}

/// A daemon that listens, and profiles two processes at a time until there is a verdict.
fn place() -> Place {
    let place = Place::new("many");
    // Extended by the same time if there is no verdict by then; this suffices despite the load of all those threads.
    let duration = if is_long() { "600s" } else { "60s" };
    let duration = format!("duration = \"{duration}\"\nat_once = 2\nmax_overhead = \"unlimited\"");
    let changes = [("duration = \"60s\"", duration.as_str()), ("settle = \"1s\"", "settle = \"2s\"")];
    let rules = changes.iter().fold(place.served_on_request(), |rules, (from, to)| rules.replace(from, to));
    place.configure("", &rules);
    place
}

/// A metric of the daemon.
fn metric(place: &Place, name: &str) -> f64 {
    let metrics = String::from_utf8(place.ask("GET /metrics").1).unwrap();
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

/// Waits for this number of scans, and prints their cost.
fn looks(place: &Place, count: f64, what: &str) {
    let now = || (metric(place, "jjleak_looks_total"), metric(place, "process_cpu_seconds_total"));
    let (begin, (looks, cpu)) = (Instant::now(), now());
    until(LONG, "looks at processes", || metric(place, "jjleak_looks_total") >= looks + count);
    let resident = metric(place, "process_resident_memory_bytes") / f64::from(1 << 20);
    println!(
        "{what}: {count} looks in {:?}, {:.2} s of CPU, {resident:.1} MiB resident",
        begin.elapsed(),
        now().1 - cpu
    );
}

/// The blocks that each thread has kept and freed, and the losses, according to a profile.
fn counted(place: &Place, pid: u32) -> (u64, u64, BTreeMap<String, u64>) {
    let of_pid = format!("-{pid}.pb.gz");
    let last = place.kept().into_iter().rfind(|path| path.to_str().unwrap().ends_with(&of_pid)).unwrap();
    let report = Ended::of(["report".as_ref(), last.as_os_str(), "--format".as_ref(), "json".as_ref()]);
    let report = report.assert_done().report();
    let is_member = |stack: &&StackDocument| stack.frames.iter().any(|frame| frame.symbol == "site_member");
    let members = || report.stacks.iter().filter(is_member);
    let allocated = members().map(|stack| stack.allocated.objects).sum();
    (allocated, members().map(|stack| stack.live.objects).sum(), report.lost)
}

#[test]
fn one_process_with_as_many_threads_as_there_may_be_is_counted_and_costs_no_other_its_verdict() {
    require_bpf!();
    require!((most().0 < LEAST).then(|| format!("fewer than {LEAST} more threads are allowed here")));
    let place = place();
    let mut multitude = Multitude::start(&place);
    let pid = multitude.process.id();
    // A process that is not watched yet, or is in back-off, has to be requested again.
    let request = |pid: u32| {
        until(LONG, "a profile that is asked for", || {
            place.ask(&format!("POST /api/v1/processes/{pid}/profile")).0.starts_with("HTTP/1.1 202 ")
        });
    };
    let mut daemon = place.start();
    looks(&place, 5., "watched");

    request(pid);
    daemon.until(&format!("(pid {pid})"), LONG);
    until(LONG, "a profile", || !place.kept().is_empty());
    multitude.work();
    looks(&place, 5., "profiled");
    let (good, _said) = working(&place);
    request(good.id());
    let told = daemon.until(&format!("(pid {}) ", good.id()), HOURLONG);
    assert!(told["message"].as_str().unwrap().contains(" leaks: "), "{:#?}", daemon.said);
    let ended = || metric(&place, "jjleak_processes{state=\"profiling\"}") < 1.;
    until(HOURLONG, "the end of its profile", ended);
    let (allocated, live, lost) = counted(&place, pid);
    println!("{allocated} allocations, {live} live, lost {lost:?}");
    assert!(lost.values().all(|count| *count == 0), "{lost:?}");
    assert_eq!((allocated, live), (2 * multitude.threads, multitude.threads));

    // Killed while it is profiled; it takes long to end.
    request(pid);
    until(LONG, "its profile", || metric(&place, "jjleak_processes{state=\"profiling\"}") > 0.);
    multitude.kill();
    let begin = Instant::now();
    looks(&place, 5., "ending");
    until(HOURLONG, "the end of the multitude", || {
        let answer: Value = serde_json::from_slice(&place.ask("GET /api/v1/processes").1).unwrap();
        answer["processes"].as_array().unwrap().iter().all(|process| process["pid"] != pid)
    });
    println!("seen to have ended after {:?}", begin.elapsed());
    assert!(place.ask("GET /healthz").0.starts_with("HTTP/1.1 200 "));
    // The end of so many threads may take longer than the time limit of a profile.
    until(HOURLONG, "an end of all profiles", || metric(&place, "jjleak_profiles_stuck") < 1.);
    daemon.end();
}
