//! Files of other tools whose stacks have names.

use std::fs;
use std::process::Command;

use jjleak::render::json::Document;

use crate::support::compile;
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
