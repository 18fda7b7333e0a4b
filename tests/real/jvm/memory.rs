//! `jjleak memory` of a JVM: figures equal those of the JVM's own beans, for every JDK and collector that is installed.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;

use crate::support::bounded::SOON;
use crate::support::java::{COLLECTORS, Java, Jdk, jdks};
use crate::support::jjleak::Ended;

/// What the beans allocate between two answers, and a region of the heap.
const SLACK: u64 = 4 << 20;

/// Buffers of compilers, which come and go.
const COMPILER_BUFFERS: u64 = 64 << 10;

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

/// Figures of the beans before and after a scan, with the scan: no collection and no return of heap to the kernel came
/// between, and nothing changed while it was read.
fn undisturbed(java: &mut Java, what: &str) -> (Figures, Value, Figures) {
    let begin = Instant::now();
    let mut disturbed = Vec::new();
    // A concurrent collection can take long on a busy host.
    while begin.elapsed() < SOON {
        let before = figures(java);
        let report = scanned(java.pid());
        let after = figures(java);
        // Shenandoah returns regions a while after a collection.
        let [earlier, later] = [&before, &after].map(|said| (said["collections"][0], said["heap"][1]));
        if earlier == later && report["unknown"] == Value::Array(Vec::new()) {
            return (before, report, after);
        }
        disturbed = vec![report["unknown"].to_string(), format!("{earlier:?}, then {later:?}")];
    }
    panic!("{what}: {disturbed:?}");
}

fn assert_as_the_beans_say(jdk: &Jdk, options: &[&str]) {
    let what = format!("JDK {} {options:?}", jdk.release);
    let mut java = Java::start_memory(&jdk.java(), &[options, &["-Xms128m", "-Xmx256m"]].concat());
    let (before, report, after) = undisturbed(&mut java, &what);

    let mut code_heaps = 0;
    let rows = report["rows"].as_array().unwrap();
    let sum: u64 = rows.iter().map(|row| row["resident_bytes"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), report["rss_bytes"].as_u64(), "{what}");
    let used = detail(&report, "java_heap", "used_bytes").unwrap_or_else(|| panic!("{what}: {report}"));
    let expected = before["heap"][0].saturating_sub(SLACK)..=after["heap"][0] + SLACK;
    assert!(expected.contains(&used), "{what}: {used} used, {expected:?}");
    let committed =
        detail(&report, "java_heap", "committed_bytes").unwrap_or_else(|| panic!("{what}: {report}"));
    // The beans of some collectors leave out what is committed and not in use: a survivor space, or where eden was.
    let bean = before["heap"][1];
    assert!((bean..=MAX_HEAP).contains(&committed), "{what}: {committed} committed, {bean}");
    let loaded = detail(&report, "metaspace", "classes_loaded").unwrap_or_else(|| panic!("{what}: {report}"));
    let expected = before["classes"][0]..=after["classes"][0];
    assert!(expected.contains(&loaded), "{what}: {loaded} classes, {expected:?}");
    // JDK 11 has class space within metaspace; used, committed.
    for (name, at) in [("used_bytes", 0), ("committed_bytes", 1)] {
        let space = detail(&report, "metaspace", name).unwrap_or_else(|| panic!("{what}: {report}"));
        let expected = before["pool Metaspace"][at]..=after["pool Metaspace"][at];
        assert!(expected.contains(&space), "{what}: metaspace {name} {space}, {expected:?}");
    }
    for row in rows.iter().filter(|row| row["details"]["used_bytes"].is_u64() && row["kind"] == "code") {
        let pool = format!("pool {}", row["name"].as_str().unwrap().replace(' ', "_"));
        for (name, at) in [("used_bytes", 0), ("committed_bytes", 1)] {
            let code = row["details"][name].as_u64().unwrap();
            // The compiler works meanwhile; its buffers are in a code heap, too.
            let slack = COMPILER_BUFFERS.max(before[&pool][at] / 100);
            let expected = before[&pool][at].saturating_sub(slack)..=after[&pool][at] + slack;
            assert!(expected.contains(&code), "{what}: {pool} {name} {code}, {expected:?}");
        }
        code_heaps += 1;
    }
    assert!(code_heaps > 0, "{what}: {report}");
    let direct =
        ["reserved_bytes", "capacity_bytes", "count"].map(|name| detail(&report, "direct_buffers", name));
    assert_eq!(direct, [0, 1, 2].map(|at| Some(before["buffers direct"][at])), "{what}: {report}");
    let stacks = rows.iter().find(|row| row["name"] == "Java threads");
    assert!(stacks.is_some_and(|row| row["resident_bytes"].as_u64() > Some(0)), "{what}");
}

/// Bytes of malloc and of arenas by category, and the numbers of symbols and of strings.
type Native = (BTreeMap<String, [u64; 4]>, Vec<u64>);

fn counted(text: &str, name: &str) -> Option<u64> {
    let digits = text.split_once(name)?.1;
    digits[..digits.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()
}

/// The JVM's answers to `VM.native_memory`, `VM.symboltable` and `VM.stringtable`.
fn native(java: &mut Java) -> Native {
    let mut categories = BTreeMap::new();
    let mut entries = Vec::new();
    let mut current = String::new();
    let mut is_table = false;
    for line in java.ask("native") {
        if let Some((name, _)) = line.strip_prefix('-').and_then(|line| line.split_once('(')) {
            name.trim().clone_into(&mut current);
            categories.insert(current.clone(), [0; 4]);
        } else if ["SymbolTable statistics:", "StringTable statistics:"].contains(&line.trim()) {
            is_table = true;
        } else if let Some(entry) = line.strip_prefix("Number of entries").filter(|_| is_table) {
            entries.push(counted(&entry.replace(' ', ""), ":").unwrap());
            // Those of the archive follow.
            is_table = false;
        } else if let Some(category) = categories.get_mut(&current) {
            let known = ["(malloc=", "(arena=", "(mmap: reserved=", ", committed="];
            let is_mapped = line.contains("(mmap:");
            for (at, name) in known.iter().enumerate().filter(|(at, _)| *at < 2 || is_mapped) {
                category[at] = counted(&line, name).unwrap_or(category[at]);
            }
        }
    }
    (categories, entries)
}

fn scanned_native(pid: u32) -> Native {
    let report = scanned(pid);
    assert_eq!(report["unknown"], Value::Array(Vec::new()));
    let fields = ["malloc_bytes", "arena_bytes", "reserved_bytes", "committed_bytes"];
    let categories = report["nmt"].as_array().unwrap_or_else(|| panic!("{report}")).iter().map(|category| {
        let name = category["name"].as_str().unwrap().to_owned();
        (name, fields.map(|field| category[field].as_u64().unwrap()))
    });
    let entries = ["symbols", "strings"].map(|name| detail(&report, "symbol_tables", name).unwrap());
    (categories.collect(), entries.to_vec())
}

/// Categories that answering changes, or of which the JVM learns something only when it is asked.
const DISTURBED: [&str; 8] = [
    "Thread",
    "Thread Stack",
    "Compiler",
    "Internal",
    "Native Memory Tracking",
    "Arena Chunk",
    "Code",
    "Other",
];

#[test]
fn native_memory_and_tables_are_as_the_jvm_counts_them() {
    for jdk in jdks() {
        for level in ["summary", "detail"] {
            let what = format!("JDK {}, {level}", jdk.release);
            let options = [&format!("-XX:NativeMemoryTracking={level}"), "-Xint", "-XX:+UseSerialGC"];
            let mut java = Java::start_memory(&jdk.java(), &options);
            native(&mut java);
            let (own, own_entries) = native(&mut java);
            let (found, entries) = scanned_native(java.pid());
            let (after, after_entries) = native(&mut java);
            for (table, (before, after)) in own_entries.iter().zip(&after_entries).enumerate() {
                assert!((*before..=*after).contains(&entries[table]), "{what}: {entries:?}, {own_entries:?}");
            }
            let mut compared = 0;
            for (name, figures) in &found {
                let (Some(before), Some(after)) = (own.get(name), after.get(name)) else {
                    // jcmd adds the stacks to the threads.
                    assert_eq!(name, "Thread Stack", "{what}");
                    continue;
                };
                let is_between = (0..4)
                    .all(|at| (before[at].min(after[at])..=before[at].max(after[at])).contains(&figures[at]));
                let is_disturbed = DISTURBED.contains(&name.as_str());
                assert!(is_disturbed || is_between, "{what}, {name}: {figures:?}, {before:?} to {after:?}");
                compared += usize::from(is_between);
            }
            println!("{what}: {compared} of {} categories agree", found.len());
            assert!(compared >= 10 && compared * 10 >= found.len() * 6, "{what}: {found:?}, {own:?}");
        }
    }
}

#[test]
fn figures_of_a_jvm_are_those_of_its_beans() {
    for jdk in jdks() {
        for options in COLLECTORS.into_iter().filter(|options| jdk.takes(options)) {
            assert_as_the_beans_say(&jdk, options);
        }
    }
}
