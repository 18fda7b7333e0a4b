//! `jjleak heap`: bytes by class equal the program's own ledger within their errors, with every JDK and collector that is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use jjleak::render::json::Document;

use crate::support::java::{COLLECTORS, Java, Jdk, classes, java_frames, jdks};
use crate::support::jjleak::{Ended, Jjleak};
use crate::support::process::Process;

/// Bytes that the program allocates.
const BYTES: u64 = 1 << 30;
/// Largest error, in standard errors: one in 17,000 estimates is further off.
const STANDARD_ERRORS: f64 = 4.;

/// Estimate of a class.
#[derive(Debug, Default, Clone, Copy)]
struct Estimate {
    bytes: u64,
    variance: f64,
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn by_class(document: &Document) -> BTreeMap<String, Estimate> {
    let mut classes = BTreeMap::<String, Estimate>::new();
    for stack in &document.stacks {
        let class = &stack.frames[0];
        assert_eq!(class.kind, "class");
        let estimate = classes.entry(class.symbol.clone()).or_default();
        estimate.bytes += stack.allocated.bytes;
        estimate.variance += stack.live_error.map_or(0., |error| (error.bytes as f64).powi(2));
    }
    classes
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn assert_as_the_ledger_says(jdk: &Jdk, options: &[&str]) {
    let what = format!("JDK {} {options:?}", jdk.release);
    let mut java = Java::start_heap(&jdk.java(), &[options, &["-Xmx256m"]].concat());
    let jjleak = Jjleak::attached(["heap", "-p", &java.pid().to_string(), "--format", "json", "600", "1"]);
    let lines = java.ask(&BYTES.to_string());
    let document = jjleak.interrupt().assert_done().report();

    let estimates = by_class(&document);
    let mut ledger_bytes = 0;
    for line in lines {
        let (class, bytes) = line.split_once(' ').unwrap();
        let truth: u64 = bytes.parse().unwrap();
        ledger_bytes += truth;
        let estimate = estimates.get(class).copied().unwrap_or_default();
        let error = estimate.bytes as f64 - truth as f64;
        // A thread's end takes what it has allocated since its last sample along.
        // The error that a right estimate has, where this one is low.
        let larger = (truth as f64 / estimate.bytes.max(1) as f64).max(1.);
        let slack = STANDARD_ERRORS * (estimate.variance * larger).sqrt() + 0.01 * truth as f64;
        assert!(error.abs() <= slack, "{what}: {class}: {truth}, estimated {estimate:?}");
    }
    let all = document.allocated.bytes as f64 / ledger_bytes as f64;
    assert!((0.98..1.02).contains(&all), "{what}: {all} of the ledger's bytes");
    let complete = document.stacks.iter().filter(|stack| stack.status == "complete").count();
    assert!(complete * 1000 >= document.stacks.len() * 995, "{what}: {complete} stacks are complete");
    let is_called_by = |class: &str, method: &str| {
        document.stacks.iter().any(|stack| {
            stack.frames[0].symbol == class && stack.frames.get(1).is_some_and(|frame| frame.symbol == method)
        })
    };
    assert!(is_called_by("long[]", "HeapClasses.longs"), "{what}");
    assert!(is_called_by("byte[]", "HeapClasses.bytes"), "{what}");
}

#[test]
fn bytes_by_class_are_those_of_the_programs_ledger() {
    for jdk in jdks().into_iter().filter(|jdk| jdk.release != "8") {
        for options in COLLECTORS.into_iter().filter(|options| jdk.takes(options)) {
            assert_as_the_ledger_says(&jdk, options);
        }
    }
}

#[test]
fn a_launched_compiler_is_followed_from_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/java/HeapClasses.java");
    let out = folder.path().to_str().unwrap();
    let javac = ["heap", "--strict", "--format", "json", "600", "1", "--", "javac", "-d", out];
    let ended = Ended::of(javac.into_iter().chain([source.to_str().unwrap()])).assert_done();
    let document = ended.report();
    assert!(document.allocated.bytes > 4 << 20, "{}", document.allocated.bytes);
    assert!(by_class(&document).contains_key("byte[]"));
}

#[test]
fn a_program_that_ends_is_counted_to_its_end() {
    for jdk in jdks().into_iter().filter(|jdk| jdk.release != "8") {
        let (java, bytes) = (jdk.java(), BYTES.to_string());
        let launch = ["heap", "--strict", "--format", "json", "600", "1", "--", java.to_str().unwrap()];
        let program = ["-Xmx256m", "-cp", classes().to_str().unwrap(), "HeapClasses", &bytes];
        let ended = Ended::of(launch.into_iter().chain(program)).assert_done();
        let allocated = ended.report().allocated.bytes;
        // The JVM's start allocates some MiB more; ended threads miss at most a buffer.
        assert!((BYTES * 98 / 100..BYTES * 103 / 100).contains(&allocated), "{}: {allocated}", jdk.release);
    }
}

#[test]
fn classes_of_one_name_are_told_apart_by_their_loaders() {
    for jdk in jdks().into_iter().filter(|jdk| jdk.release != "8") {
        for options in COLLECTORS.into_iter().filter(|options| jdk.takes(options)) {
            let mut java = Java::start_loaders(&jdk.java(), &[options, &["-Xmx64m"]].concat());
            let pid = java.pid().to_string();
            let jjleak = Jjleak::attached(["heap", "-p", &pid, "--strict", "--format", "json", "600", "1"]);
            java.ask("20");
            let classes = by_class(&jjleak.interrupt().assert_done().report());

            let what = format!("JDK {} {options:?}: {:?}", jdk.release, classes.keys());
            let own = classes["Loaders$Page"].bytes;
            let is_plugin = |class: &str| class.starts_with("Loaders$Page [Loaders$Plugin @");
            let of_plugins = classes.iter().filter(|(class, _)| is_plugin(class));
            let mut bytes: Vec<_> = of_plugins.map(|(_, estimate)| estimate.bytes).collect();
            bytes.sort_unstable();
            assert_eq!(bytes.len(), 2, "{what}");
            for (bytes, times) in [own, bytes[0], bytes[1]].into_iter().zip([1, 2, 4]) {
                let expected = times * 20 * 100_000 * 56;
                assert!(
                    (expected * 8 / 10..expected * 13 / 10).contains(&bytes),
                    "{what}: {bytes} of {expected}"
                );
            }
        }
    }
}

#[test]
fn the_text_names_classes_and_who_allocates_them() {
    let jdk = jdks().into_iter().find(|jdk| jdk.release != "8").unwrap();
    let mut java = Java::start_heap(&jdk.java(), &["-Xmx256m"]);
    let jjleak = Jjleak::attached(["heap", "-p", &java.pid().to_string(), "600", "1", "--format", "text"]);
    java.ask(&BYTES.to_string());
    let text = jjleak.interrupt().stdout;
    assert!(text.lines().count() <= 30, "{text}");
    assert!(text.contains("allocated in the Java heap"), "{text}");
    assert!(text.contains("HeapClasses.bytes HeapClasses.java:"), "{text}");
}

#[test]
fn a_bound_that_cannot_be_kept_ends_the_figures_and_is_a_loss() {
    let jdk = jdks().into_iter().rfind(|jdk| jdk.release != "8").unwrap();
    let mut java = Java::start_heap(&jdk.java(), &["-Xmx256m", "-XX:TLABSize=2k", "-XX:-ResizeTLAB"]);
    let pid = java.pid().to_string();
    let bound = ["--max-overhead", "0.1", "--strict", "--format", "json", "600", "1"];
    let mut jjleak = Jjleak::attached(["heap", "-p", &pid].into_iter().chain(bound));
    for _ in 0..20 {
        java.ask(&BYTES.to_string());
    }
    jjleak.wait_for(" WARN objects are no longer followed");
    let ended = jjleak.interrupt();

    assert_eq!(ended.status.code(), Some(5), "{:?}", ended.stderr);
    assert_eq!(ended.report().lost["unfollowed_allocator"], 1);
}

#[test]
fn a_process_without_a_jvm_is_refused_with_the_next_step() {
    let process = Process::spawn(Command::new("sleep").arg("600"));
    let ended = Ended::of(["heap", "-p", &process.id().to_string()]);
    ended.assert_failed(1, "runs no HotSpot JVM", "name the process of a JVM");
}

/// Ways of keeping objects, each with a class that grows. The last one keeps none.
const WAYS: [(&str, &str); 8] = [
    ("list", "Kept$Item"),
    ("map", "Kept$Value"),
    ("cache", "Kept$Page"),
    ("loader", "Kept$Loader"),
    ("local", "Kept$Session"),
    ("listener", "Kept$Listener"),
    ("soft", "Kept$Softened"),
    ("churn", "Kept$Garbage"),
];

#[test]
fn the_classes_that_are_kept_are_named_on_request() {
    /// Place among the classes that have grown: beside the objects, arrays and nodes that hold them grow.
    const PLACES: usize = 5;
    let jdk = jdks().into_iter().find(|jdk| jdk.release != "8").unwrap();
    for (way, class) in WAYS {
        let mut java = Java::start_kept(&jdk.java(), &["-Xmx256m"], way);
        let pid = java.pid().to_string();
        let jjleak = Jjleak::attached(["heap", "-p", &pid, "--histogram", "--format", "json", "600", "1"]);
        java.ask("200000");
        let ended = jjleak.interrupt().assert_done();
        let said = ended.stderr.join("\n");
        assert!(said.contains("it stops for a full collection"), "{said}");
        let report = ended.report();
        let grown = report.kept.iter().filter(|kept| kept.grown_bytes > 20_000).take(PLACES);
        let named: Vec<_> = grown.map(|kept| kept.class.as_str()).collect();
        assert_eq!(named.contains(&class), way != "churn", "{way}: {named:?}");
        if let Some(kept) =
            report.kept.iter().find(|kept| kept.class == class && way != "loader" && way != "churn")
        {
            assert_eq!(kept.grown_objects, 200_000, "{way}");
        }
    }
}

#[test]
fn a_jvm_that_must_not_be_asked_is_followed_without_histograms() {
    let jdk = jdks().into_iter().find(|jdk| jdk.release != "8").unwrap();
    let mut java = Java::start_kept(&jdk.java(), &["-Xmx256m", "-XX:+DisableAttachMechanism"], "list");
    let pid = java.pid().to_string();
    let jjleak = Jjleak::attached(["heap", "-p", &pid, "--histogram", "--format", "json", "600", "1"]);
    java.ask("200000");
    let ended = jjleak.interrupt().assert_done();
    let said = ended.stderr.join("\n");
    assert!(
        said.contains("has given no class histogram: it runs with -XX:+DisableAttachMechanism"),
        "{said}"
    );
    assert!(ended.report().kept.is_empty());
    assert!(ended.report().allocated.bytes > 5 << 20);
}

/// A JDK whose library has no symbols but exported ones, as Alpine's. Its other files are links to those of a JDK.
fn stripped(jdk: &Jdk, folder: &Path) {
    let home = jdk.java().canonicalize().unwrap().ancestors().nth(2).unwrap().to_owned();
    let (bin, server) = (folder.join("bin"), folder.join("lib/server"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&server).unwrap();
    fs::copy(home.join("bin/java"), bin.join("java")).unwrap();
    for entry in fs::read_dir(home.join("lib")).unwrap().map(Result::unwrap) {
        if entry.file_name() != "server" {
            symlink(entry.path(), folder.join("lib").join(entry.file_name())).unwrap();
        }
    }
    symlink(home.join("conf"), folder.join("conf")).unwrap();
    let status = Command::new("strip")
        // Without its build ID, debug symbols that are installed for the JDK are not those of the copy.
        .args(["--strip-all", "--remove-section=.note.gnu.build-id", "--remove-section=.gnu_debuglink", "-o"])
        .args([server.join("libjvm.so"), home.join("lib/server/libjvm.so")])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_library_without_symbols_is_refused_and_lost_in_a_launched_process() {
    let jdk = jdks().into_iter().find(|jdk| jdk.release != "8").unwrap();
    let folder = tempfile::tempdir().unwrap();
    stripped(&jdk, folder.path());
    let java = folder.path().join("bin/java");

    let process = Java::start_heap(&java, &[]);
    let ended = Ended::of(["heap", "-p", &process.pid().to_string()]);
    ended.assert_failed(
        1,
        "has no symbols of the functions that announce objects",
        "install the debug symbols",
    );
    let doctor = Ended::of(["doctor", "-p", &process.pid().to_string()]).stdout;
    let said = "  NO   who allocates in the Java heap (jjleak heap): libjvm.so has no symbols";
    assert!(doctor.contains(said), "{doctor}");

    let launched =
        ["heap", "--strict", "--format", "json", "600", "1", "--", java.to_str().unwrap(), "-version"];
    let ended = Ended::of(launched);
    ended.assert_failed(5, "unfollowed_allocator", "see the report for what each loss means");
}

/// Number of rounds: enough that the callers are compiled, and inlined into each other.
const ROUNDS: u32 = 1500;

#[test]
fn call_paths_are_those_that_the_jvm_walks_itself() {
    for jdk in jdks().into_iter().filter(|jdk| jdk.release != "8") {
        for options in [&["-Xmx256m"][..], &["-Xmx256m", "-XX:TieredStopAtLevel=1"], &["-Xmx256m", "-Xint"]] {
            let what = format!("JDK {} {options:?}", jdk.release);
            let mut java = Java::start_walked(&jdk.java(), options);
            let pid = java.pid().to_string();
            let jjleak = Jjleak::attached(["heap", "-p", &pid, "--format", "json", "600", "1"]);
            let walked: BTreeSet<_> = java.ask(&ROUNDS.to_string()).into_iter().collect();
            let document = jjleak.interrupt().assert_done().report();

            let arrays = document.stacks.iter().filter(|stack| {
                stack.frames[0].symbol == "byte[]" && stack.frames[1].symbol.starts_with("Walked")
            });
            // StackWalker leaves out the classes that the JVM makes for lambda expressions.
            let shown = |frame: &String| !frame.contains("$$Lambda");
            let said: BTreeSet<_> = arrays
                .map(|stack| java_frames(stack).into_iter().filter(shown).collect::<Vec<_>>().join(" "))
                .collect();
            assert!(walked.len() >= 10, "{what}: {walked:#?}");
            let (missed, invented): (Vec<_>, Vec<_>) =
                (walked.difference(&said).collect(), said.difference(&walked).collect());
            assert!(
                missed.is_empty() && invented.is_empty(),
                "{what}: {missed:#?} are missed, {invented:#?} invented"
            );
        }
    }
}
