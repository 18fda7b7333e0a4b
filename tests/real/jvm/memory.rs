//! `jjleak memory` of a JVM: figures equal those of the JVM's own beans, for every JDK and collector that is installed.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;

use crate::support::bounded::SOON;
use crate::support::java::{COLLECTORS, Java, Jdk, jdks};
use crate::support::jjleak::Ended;

/// What the beans allocate between two answers, and a region of the heap.
const SLACK: u64 = 4 << 20;

/// Maximum size of the heap.
const MAX_HEAP: u64 = 256 << 20;

/// Figures by name, as the beans say.
type Figures = BTreeMap<String, Vec<u64>>;

fn figures(java: &mut Java) -> Figures {
    let lines = java.ask("figures");
    let figure = |line: &String| {
        let mut words = line.split(' ').map(str::to_owned).peekable();
        let mut name = words.next().unwrap();
        if let Some(second) = words.next_if(|word| word.parse::<i64>().is_err()) {
            name = format!("{name} {second}");
        }
        // A maximum that is not set is -1.
        (name, words.map(|word| word.parse().unwrap_or_default()).collect())
    };
    lines.iter().map(figure).collect()
}

fn scanned(pid: u32) -> Value {
    let ended = Ended::of(["memory", "-p", &pid.to_string(), "--format", "json"]).assert_done();
    serde_json::from_str(&ended.stdout).unwrap()
}

/// A figure of a row.
fn detail(report: &Value, kind: &str, name: &str) -> Option<u64> {
    let rows = report["rows"].as_array().unwrap();
    rows.iter().find(|row| row["kind"] == kind).and_then(|row| row["details"][name].as_u64())
}

/// Figures of the beans before and after a scan, with the scan: no collection came between, and nothing changed while it was read.
fn undisturbed(java: &mut Java, what: &str) -> (Figures, Value, Figures) {
    let begin = Instant::now();
    let mut disturbed = Vec::new();
    // A concurrent collection can take long on a busy host.
    while begin.elapsed() < SOON {
        let before = figures(java);
        let report = scanned(java.pid());
        let after = figures(java);
        if before["collections"] == after["collections"] && report["unknown"] == Value::Array(Vec::new()) {
            return (before, report, after);
        }
        disturbed = vec![
            report["unknown"].to_string(),
            format!("{:?}, then {:?}", before["collections"], after["collections"]),
        ];
    }
    panic!("{what}: {disturbed:?}");
}

fn assert_as_the_beans_say(jdk: &Jdk, options: &[&str]) {
    let what = format!("JDK {} {options:?}", jdk.release);
    let mut java = Java::start_memory(&jdk.java(), &[options, &["-Xms128m", "-Xmx256m"]].concat());
    let (before, report, after) = undisturbed(&mut java, &what);

    let rows = report["rows"].as_array().unwrap();
    let sum: u64 = rows.iter().map(|row| row["resident_bytes"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), report["rss_bytes"].as_u64(), "{what}");
    let used = detail(&report, "java_heap", "used_bytes").unwrap_or_else(|| panic!("{what}: {report}"));
    let expected = before["heap"][0].saturating_sub(SLACK)..=after["heap"][0] + SLACK;
    assert!(expected.contains(&used), "{what}: {used} used, {expected:?}");
    let committed = detail(&report, "java_heap", "committed_bytes").unwrap();
    // The beans of some collectors leave out what is committed and not in use: a survivor space, or where eden was.
    let bean = before["heap"][1];
    assert!((bean..=MAX_HEAP).contains(&committed), "{what}: {committed} committed, {bean}");
    let loaded = detail(&report, "metaspace", "classes_loaded").unwrap();
    let expected = before["classes"][0]..=after["classes"][0];
    assert!(expected.contains(&loaded), "{what}: {loaded} classes, {expected:?}");
    let direct =
        ["reserved_bytes", "capacity_bytes", "count"].map(|name| detail(&report, "direct_buffers", name));
    assert_eq!(direct, [0, 1, 2].map(|at| Some(before["buffers direct"][at])), "{what}: {report}");
    let stacks = rows.iter().find(|row| row["name"] == "Java threads");
    assert!(stacks.is_some_and(|row| row["resident_bytes"].as_u64() > Some(0)), "{what}");
}

#[test]
fn figures_of_a_jvm_are_those_of_its_beans() {
    for jdk in jdks() {
        for options in COLLECTORS.into_iter().filter(|options| jdk.takes(options)) {
            assert_as_the_beans_say(&jdk, options);
        }
    }
}
