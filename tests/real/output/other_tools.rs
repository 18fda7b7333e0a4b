//! Files of other tools whose stacks have names.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use jjleak::render::json::Document;
use serde_json::Value;

use crate::support::compile;
use crate::support::java::classes;
use crate::support::jjleak::Ended;
use crate::support::privilege::require_program;

/// Live and allocated bytes and objects of stacks through a function.
fn through(report: &Document, function: &str) -> [u64; 4] {
    let of_function =
        report.stacks.iter().filter(|stack| stack.frames.iter().any(|frame| frame.symbol == function));
    of_function.fold([0; 4], |[a, b, c, d], stack| {
        let (live, allocated) = (&stack.live, &stack.allocated);
        [a + live.bytes, b + live.objects, c + allocated.bytes, d + allocated.objects]
    })
}

#[test]
fn a_file_of_heaptrack_has_what_the_program_has_allocated() {
    require_program!("heaptrack");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app");
    let mut heaptrack = Command::new("heaptrack");
    heaptrack.arg("--output").arg(&file).arg(compile::sampled());
    assert!(heaptrack.output().unwrap().status.success());
    let written = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();

    let ended = Ended::of(["report", written.to_str().unwrap(), "--format", "json"]).assert_done();

    let report = ended.report();
    let large: u64 = (50_000..52_000).map(|index| 20_000 + index % 7).sum();
    assert_eq!(through(&report, "keep_small"), [10_000_000, 50_000, 10_000_000, 50_000]);
    assert_eq!(through(&report, "keep_large"), [large, 2000, large, 2000]);
    assert_eq!(through(&report, "pass"), [0, 0, 60_000_000, 20_000]);
    assert_eq!(report.process.comm, "sampled");
    let lines = report.stacks.iter().flat_map(|stack| &stack.frames);
    let lines: Vec<_> = lines.filter(|frame| frame.symbol == "keep_small").map(|frame| frame.line).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| *line > 0), "{lines:?}");
}

#[test]
fn collapsed_stacks_come_back_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.collapsed");
    let text = "main;java/util/ArrayList.add;malloc 4096\nmain;operator new(unsigned long);malloc 12\n";
    fs::write(&file, text).unwrap();
    let again = folder.path().join("again");

    let arguments =
        ["report", file.to_str().unwrap(), "--format", "collapsed", "--out", again.to_str().unwrap()];
    let ended = Ended::of(arguments).assert_done();

    let written = fs::read_to_string(&again).unwrap();
    assert_eq!(written, text.replace("java/util/", "java.util."));
    let said = ended.stderr.join("\n");
    assert!(said.contains("do not say what their numbers count"), "{said}");
}

/// Bytes by class and stack in the events of a recording, as the JDK's own tool prints them.
fn by_jfr(recording: &Path, event: &str, field: &str) -> BTreeMap<Vec<String>, u64> {
    let mut jfr = Command::new("jfr");
    jfr.args(["print", "--json", "--stack-depth", "2048", "--events", event]).arg(recording);
    let output = jfr.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut stacks = BTreeMap::new();
    for event in printed["recording"]["events"].as_array().unwrap() {
        let values = &event["values"];
        let mut stack = vec![in_source(values["objectClass"]["name"].as_str().unwrap())];
        for frame in values["stackTrace"]["frames"].as_array().into_iter().flatten() {
            let method = &frame["method"];
            let class = in_source(method["type"]["name"].as_str().unwrap());
            let name = method["name"].as_str().unwrap();
            stack.push(format!("{class}.{name} {}", frame["lineNumber"].as_u64().unwrap_or_default()));
        }
        *stacks.entry(stack).or_default() += values[field].as_u64().unwrap();
    }
    stacks
}

#[test]
fn a_recording_of_a_jdk_has_the_figures_and_stacks_of_jfr() {
    require_program!("jfr");
    let folder = tempfile::tempdir().unwrap();
    // Events of buffers, and samples alone.
    let settings =
        ["jdk.ObjectAllocationInNewTLAB#enabled=true,jdk.ObjectAllocationOutsideTLAB#enabled=true", ""];
    for (number, settings) in settings.into_iter().enumerate() {
        let recording = folder.path().join(format!("{number}.jfr"));
        let options = ["settings=profile", &format!("filename={}", recording.display()), settings].join(",");
        let mut java = Command::new("java");
        java.arg(format!("-XX:StartFlightRecording={}", options.trim_end_matches(',')));
        java.arg("-cp").arg(classes()).args(["HeapClasses", "200000000"]);
        let output = java.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

        let ended = Ended::of(["report", recording.to_str().unwrap(), "--format", "json"]).assert_done();

        let mut expected = if number == 0 {
            by_jfr(&recording, "jdk.ObjectAllocationInNewTLAB", "tlabSize")
        } else {
            by_jfr(&recording, "jdk.ObjectAllocationSample", "weight")
        };
        if number == 0 {
            for (class, bytes) in by_jfr(&recording, "jdk.ObjectAllocationOutsideTLAB", "allocationSize") {
                *expected.entry(class).or_default() += bytes;
            }
        }
        let report = ended.report();
        let mut found = BTreeMap::<_, u64>::new();
        for stack in &report.stacks {
            let (class, frames) = stack.frames.split_first().unwrap();
            assert_eq!(class.kind, "class");
            let frames = frames.iter().map(|frame| format!("{} {}", frame.symbol, frame.line));
            let stack_shown: Vec<_> = [class.symbol.clone()].into_iter().chain(frames).collect();
            *found.entry(stack_shown).or_default() += stack.allocated.bytes;
        }
        assert_eq!(found, expected);
        assert!(found.keys().flatten().any(|frame| frame.starts_with("HeapClasses.work ")));
    }
}

/// The name of a class in source notation.
fn in_source(name: &str) -> String {
    match name {
        "[B" => "byte[]".to_owned(),
        "[I" => "int[]".to_owned(),
        "[J" => "long[]".to_owned(),
        "[C" => "char[]".to_owned(),
        _ => match name.strip_prefix("[L").and_then(|element| element.strip_suffix(';')) {
            Some(element) => format!("{}[]", element.replace('/', ".")),
            None => name.replace('/', "."),
        },
    }
}
