//! Long run of the daemon, with processes that come and go and clients that send requests: its resource usage does not grow.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::bounded::{SOON, until};
use crate::support::bpf_objects::{BpfObjects, Count};
use crate::support::daemon::{Daemon, Place, working};
use crate::support::java::Java;
use crate::support::lines::Lines;
use crate::support::privilege::{is_long, require_bpf, require_program};
use crate::support::process::Process;

/// Environment variable with the duration in minutes (`cargo xtask soak --minutes N`).
const MINUTES: &str = "JJLEAK_SOAK_MINUTES";
const SHORT: Duration = Duration::from_secs(75);
const LONG: Duration = Duration::from_secs(600);
/// Interval between measurements. Before each, a profile of a process is requested.
const BEAT: Duration = Duration::from_secs(1);
/// Number of beats after which a native program and the JVM are replaced.
const LIFE: u32 = 3;
const LIFE_OF_JVM: u32 = 20;
/// Maximum size of profiles with their index.
const STATE_BYTES: u64 = 1 << 20;
/// State for the next daemon is stored beside them: this size for each process that runs or has just ended.
const LEFT_BYTES: u64 = 10 << 10;
const PROCESSES: u64 = 6;
/// Two processes at a time, each for five to ten seconds.
const RULES: &str = "[profile]\nduration = \"5s\"\nsettle = \"1s\"\nsnapshot = \"1s\"\nat_once = 2\nback_off = \"1s\"\n\
    [suspect]\nlimit_within = \"0s\"\nlimit_percent = 100.0\npressure_percent = 100.0\ngrowth_bytes = \"1TiB\"";

/// A quantity that must not grow: its median in the last third of the time is compared with that in the first.
struct Measure {
    name: &'static str,
    /// Allowed growth, in per cent and absolute: it varies with the processes that are profiled at the moment, and with freed
    /// memory that the C library retains.
    percent: u64,
    more: u64,
}

const MEASURES: [Measure; 6] = [
    Measure { name: "resident memory, KiB", percent: 10, more: 8 << 10 },
    Measure { name: "descriptors", percent: 20, more: 8 },
    Measure { name: "threads", percent: 0, more: 2 },
    Measure { name: "BPF maps", percent: 20, more: 4 },
    Measure { name: "BPF programs", percent: 20, more: 10 },
    Measure { name: "BPF links", percent: 20, more: 8 },
];

/// One measurement.
struct Sample {
    measures: [u64; MEASURES.len()],
    state_bytes: u64,
}

impl Sample {
    fn of(daemon: &Daemon, objects: &mut BpfObjects, state: &Path) -> Self {
        let pid = daemon.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_ascii_whitespace().next().unwrap().parse().unwrap()
        };
        objects.note(pid);
        let Count { maps, programs, links } = objects.left();
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        let [descriptors, maps, programs, links] = [descriptors, maps, programs, links].map(|it| it as u64);
        let measures = [field("VmRSS:"), descriptors, field("Threads:"), maps, programs, links];
        Self { measures, state_bytes: bytes_in(state) }
    }
}

/// Bytes of all files in a folder, some of which are being removed.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_in(&entry.path()),
        about => about.map_or(0, |about| about.len()),
    });
    bytes.sum()
}

fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    values[values.len() / 2]
}

/// Table of each quantity in the first and in the last third; true if all are within limits.
fn judge(samples: &[Sample]) -> (String, bool) {
    let third = samples.len() / 3;
    let (first, last) = (&samples[..third], &samples[samples.len() - third..]);
    let mut table = String::new();
    let mut is_flat = true;
    let mut row = |name: &str, [first, last, allowed]: [u64; 3]| {
        let verdict = if last <= allowed { "flat" } else { "GROWS" };
        is_flat &= last <= allowed;
        writeln!(table, "{name:<24} {first:>12} {last:>12} {allowed:>12}  {verdict}").unwrap();
    };
    for (index, measure) in MEASURES.iter().enumerate() {
        let [first, last] =
            [first, last].map(|part| median(part.iter().map(|sample| sample.measures[index])));
        row(measure.name, [first, last, first + first * measure.percent / 100 + measure.more]);
    }
    // It grows up to its bound, and never beyond.
    let most = |samples: &[Sample]| samples.iter().map(|sample| sample.state_bytes).max().unwrap();
    row("state directory, bytes", [most(first), most(samples), STATE_BYTES + PROCESSES * LEFT_BYTES]);
    let title = format!("{:<24} {:>12} {:>12} {:>12}\n", "", "first third", "last third", "allowed");
    (title + &table, is_flat)
}

/// The profiled programs: some stay, others are replaced.
struct Targets<'a> {
    place: &'a Place,
    lasting: [(Process, Lines); 2],
    passing: (Process, Lines),
    jvm: Java,
}

impl<'a> Targets<'a> {
    fn start(place: &'a Place) -> Self {
        Self { place, lasting: [working(place), working(place)], passing: working(place), jvm: jvm(place) }
    }

    /// Replaces the programs whose time is over.
    fn turn(&mut self, beat: u32) {
        if beat.is_multiple_of(LIFE) {
            self.passing = working(self.place);
        }
        if beat.is_multiple_of(LIFE_OF_JVM) {
            self.jvm = jvm(self.place);
        }
    }

    fn pids(&self) -> [u32; 4] {
        let [first, second] = self.lasting.each_ref().map(|(process, _)| process.id());
        [first, self.passing.0.id(), second, self.jvm.pid()]
    }
}

fn jvm(place: &Place) -> Java {
    place.java(8192, 20, "leak")
}

#[test]
fn after_any_time_the_daemon_takes_no_more_than_it_took_at_first() {
    require_bpf!();
    require_program!("java");
    let minutes = env::var(MINUTES).ok().map(|minutes| minutes.parse::<u32>().unwrap());
    let length =
        minutes.map_or(if is_long() { LONG } else { SHORT }, |minutes| Duration::from_secs(60) * minutes);
    let place = Place::new("soak");
    let http = format!("[http]\nlisten = \"unix:{}\"", place.socket().display());
    place.configure("rescan = \"10s\"", &format!("{RULES}\n{http}"));
    let mut targets = Targets::start(&place);
    let bound = format!("state.max_bytes={STATE_BYTES}B");
    let daemon = place.spawn(|command| command.args(["--set", &bound])).until_it_watches();

    let (begin, mut samples, mut objects) = (Instant::now(), Vec::new(), BpfObjects::default());
    for (beat, turn) in (1..).zip([0, 1, 2, 3].into_iter().cycle()) {
        targets.turn(beat);
        // The request fails if the process is not watched yet, or is being profiled.
        place.ask(&format!("POST /api/v1/processes/{}/profile", targets.pids()[turn]));
        for path in ["/", "/metrics", "/api/v1/profiles"] {
            assert!(place.ask(&format!("GET {path}")).0.starts_with("HTTP/1.1 200 "), "{path}");
        }
        // The soak's own pace: it lasts for a time, and waits for nothing.
        sleep(BEAT);
        let at = begin.elapsed();
        // At first, it reads files and programs that are new to it.
        if at > length / 6 {
            samples.push(Sample::of(&daemon, &mut objects, &place.state()));
        }
        if at > length {
            break;
        }
    }
    let metrics = String::from_utf8(place.ask("GET /metrics").1).unwrap();
    let count = |name: &str| -> u64 {
        metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
    };
    let profiles = count("jjleak_profiles_total ");
    let said = daemon.end();

    let (table, is_flat) = judge(&samples);
    println!("{} looks in {length:?}, {profiles} processes profiled\n{table}", samples.len());
    assert!(is_flat, "{table}");
    assert!(profiles >= length.as_secs() / 60, "only {profiles} processes were profiled");
    assert!(said.iter().all(|line| line["level"] != "ERROR"), "{said:#?}");
    until(SOON, "the end of all maps, programs and links", || objects.left() == Count::default());
}
