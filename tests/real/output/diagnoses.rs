//! The cause that `jjleak memory` names, for programs that grow in known ways: in all of them, and in 19 of 20 as the likeliest. A program
//! that keeps no native memory is never said to leak it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::causes::{compile_java, run};
use crate::support::bounded::LONG;
use crate::support::java::jdks;
use crate::support::jjleak::PROGRAM;
use crate::support::lines::Lines;
use crate::support::privilege::{require_program, require_time};
use crate::support::process::Process;

/// Seconds between the scans.
const SECONDS: &str = "8";
const AT_ONCE: usize = 2;
/// Time until a JVM does the same again and again.
const WARM_UP: Duration = Duration::from_secs(3);
/// The least number of programs, and of those in twenty whose cause is named first.
const AT_LEAST: usize = 40;
const RIGHT_IN_TWENTY: usize = 19;

/// A program, and its causes: any of them is right.
struct Labelled {
    command: Vec<String>,
    causes: &'static [&'static str],
}

/// Ways to grow, with the time between two steps of 256 KiB in microseconds, and the cause.
const NATIVE: [(&str, u32, &[&str]); 27] = [
    ("small", 20_000, &["native_leak"]),
    ("small", 400_000, &["native_leak"]),
    ("large", 20_000, &["native_leak"]),
    ("large", 400_000, &["native_leak"]),
    ("zeroed", 20_000, &["native_leak"]),
    ("aligned", 20_000, &["native_leak"]),
    ("enlarge", 20_000, &["native_leak"]),
    ("churn", 1_000, &["none"]),
    ("nothing", 100_000, &["none"]),
    ("pool", 20_000, &["own_pool"]),
    ("pool", 400_000, &["own_pool"]),
    ("shared", 20_000, &["shared_memory"]),
    ("shared", 400_000, &["shared_memory"]),
    ("memfd", 20_000, &["shared_memory"]),
    ("memfd", 400_000, &["shared_memory"]),
    ("segments", 20_000, &["shared_memory"]),
    ("segments", 400_000, &["shared_memory"]),
    ("file", 20_000, &["mapped_files"]),
    ("file", 400_000, &["mapped_files"]),
    ("again", 20_000, &["mapped_again", "mapped_files"]),
    ("threads", 20_000, &["threads"]),
    ("threads", 400_000, &["threads"]),
    ("retain", 0, &["retention"]),
    ("retain-some", 0, &["retention"]),
    ("retain-all", 0, &["arenas"]),
    ("busy", 0, &["native_leak"]),
    ("busy-threads", 0, &["native_leak"]),
];
/// Ways that run in a container, too.
const IN_A_CONTAINER: [&str; 4] = ["small", "pool", "file", "retain"];

/// Programs in Java, their argument, and the cause.
const JAVA: [(&str, &str, &[&str]); 5] = [
    ("Heap", "", &["java_heap"]),
    ("Policy", "", &["heap_policy"]),
    ("Direct", "", &["direct_buffers"]),
    ("Plugins", "plugin/", &["class_loaders"]),
    ("Threads", "", &["threads"]),
];
/// Options for which the first of them is run once more.
const COLLECTORS: [&str; 4] =
    ["-XX:+UseSerialGC", "-XX:+UseParallelGC", "-XX:+UseZGC", "-XX:+UseShenandoahGC"];

fn programs(built: &Path) -> Vec<Labelled> {
    let path = |name: &str| built.join(name).display().to_string();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut all = Vec::new();
    for (number, (way, pause, causes)) in NATIVE.iter().enumerate() {
        let (program, file) = (path("grow"), path(&format!("{way}-{number}.file")));
        let command = words(&[&program, way, &pause.to_string(), &file]);
        if *pause <= 20_000 && IN_A_CONTAINER.contains(way) {
            let container = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"];
            let inside = format!("{file}.inside");
            let command = words(&[&container[..], &[&program, way, &pause.to_string(), &inside]].concat());
            all.push(Labelled { command, causes });
        }
        all.push(Labelled { command, causes });
    }
    let mut versions: Vec<_> = jdks();
    versions.dedup_by_key(|jdk| jdk.version);
    for jdk in versions {
        let java = |options: &[&str], class: &str, argument: &str| {
            let java = jdk.java().display().to_string();
            let argument = if argument.is_empty() { String::new() } else { path(argument) };
            words(&[&[&*java, "-Xmx1g"], options, &["-cp", &path(""), class, &argument]].concat())
        };
        for (class, argument, causes) in &JAVA {
            // Heaps that shrink at once would give back what was used.
            let options: &[&str] =
                if *class == "Policy" { &["-XX:MaxHeapFreeRatio=100", "-XX:+UseParallelGC"] } else { &[] };
            all.push(Labelled { command: java(options, class, argument), causes });
        }
        for collector in COLLECTORS.iter().filter(|collector| jdk.takes(&[*collector])) {
            all.push(Labelled { command: java(&[collector], "Heap", ""), causes: &["java_heap"] });
        }
        all.push(Labelled { command: java(&[], "Deflate", ""), causes: &["native_leak"] });
        all.push(Labelled {
            command: java(&[], "Files", &format!("mapped-{}", jdk.version)),
            causes: &["mapped_files"],
        });
    }
    all
}

/// The program that grows in one of many ways.
pub(super) fn grow() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("grow");
        let path = program.display().to_string();
        run("cc", &["-O1", "-g", "-pthread", "grow.c", "-o", &path]);
        program
    };
    PATH.get_or_init(build).clone()
}

/// Builds the programs; returns the folder.
fn build() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("diagnoses");
    fs::create_dir_all(&built).unwrap();
    fs::copy(grow(), built.join("grow")).unwrap();
    compile_java(&["Deflate", "Direct", "Files", "Heap", "Plugins", "Policy", "Threads"], &built);
    built
}

/// The process that a command has started, below the container's if there is one.
fn watched(process: &Child, command: &[String]) -> u32 {
    let id = process.id();
    if command[0] != "unshare" {
        return id;
    }
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

/// Causes of the growth of a program, the likeliest first.
fn diagnose(program: &Labelled) -> Vec<String> {
    let [name, arguments @ ..] = &program.command[..] else { unreachable!() };
    let mut command = Command::new(name);
    command.args(arguments.iter().filter(|argument| !argument.is_empty()));
    let mut process =
        Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()));
    if name.ends_with("java") {
        thread::sleep(WARM_UP);
    } else {
        Lines::of("the program", process.stdout.take().unwrap()).skip_to("ready", LONG);
    }
    let pid = watched(&process, &program.command).to_string();
    let mut jjleak = Command::new(PROGRAM);
    jjleak.args(["memory", "-p", &pid, SECONDS, "1", "--format", "json"]);
    let mut jjleak = Process::spawn(jjleak.stdout(Stdio::piped()));
    let mut reports = Lines::of("jjleak", jjleak.stdout.take().unwrap());
    reports.next(LONG);
    // Some wait for the first scan; others do not read.
    let _ = writeln!(process.stdin.as_mut().unwrap());
    let last: Value = serde_json::from_str(&reports.next(LONG)).unwrap();
    jjleak.end(LONG);
    let findings = last["diagnosis"].as_array().unwrap().iter();
    findings.map(|finding| finding["cause"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn programs_that_grow_in_known_ways_have_their_cause_named() {
    require_time!("it takes ten minutes");
    require_program!("javac");
    let programs = programs(&build());
    assert!(programs.len() >= AT_LEAST, "only {} programs", programs.len());
    let (next, wrong) = (Mutex::new(programs.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = { next.lock().unwrap().next() } {
                    let causes = diagnose(program);
                    println!("{:?}: {causes:?}", program.command);
                    if !program.causes.contains(&&*causes[0]) {
                        wrong.lock().unwrap().push((program, causes));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    let told: Vec<_> =
        wrong.iter().map(|(program, causes)| (&program.command, program.causes, causes)).collect();
    println!("{} of {} as labelled", programs.len() - wrong.len(), programs.len());
    assert!(wrong.len() * 20 <= programs.len() * (20 - RIGHT_IN_TWENTY), "{told:#?}");
    assert!(!told.iter().any(|(_, _, causes)| causes[0] == "native_leak"), "a false leak: {told:#?}");
}
