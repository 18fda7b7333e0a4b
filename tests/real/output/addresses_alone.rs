//! Profiles in pprof's format that have addresses alone: names come from the mapped files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jjleak::render::json::{Document, StackDocument};
use tempfile::TempDir;

use super::heap_profiles::{TCMALLOC, written_by_gperftools};
use crate::support::compile;
use crate::support::jjleak::Ended;
use crate::support::privilege::{require_library, require_program};

/// The profile that gperftools writes of the fixture at its end, as text, and the same as Go's pprof converts it without looking at any file.
fn profiles(folder: &TempDir) -> [PathBuf; 2] {
    let text = written_by_gperftools(folder);
    let pprof = folder.path().join("app.pb.gz");
    let mut go = Command::new("go");
    go.args(["tool", "pprof", "-proto", "-symbolize=none", "-output"]).arg(&pprof).arg(&text);
    assert!(go.output().unwrap().status.success());
    [text, pprof]
}

fn report(path: &Path, more: &[&str]) -> (Document, String) {
    let ended = Ended::of([&["report", path.to_str().unwrap(), "--format", "json"], more].concat());
    let ended = ended.assert_done();
    (ended.report(), ended.stderr.join("\n"))
}

/// Stacks as bytes and functions with lines.
fn stacks(report: &Document) -> Vec<(u64, Vec<(String, u32)>)> {
    let frames = |stack: &StackDocument| {
        let frames = stack.frames.iter().map(|frame| (frame.symbol.clone(), frame.line));
        frames.collect::<Vec<_>>()
    };
    let stacks = report.stacks.iter();
    let mut stacks: Vec<_> =
        stacks.map(|stack| (stack.live.bytes, frames(stack))).filter(|(bytes, _)| *bytes > 0).collect();
    stacks.sort();
    stacks
}

fn functions(report: &Document) -> Vec<String> {
    stacks(report).into_iter().flat_map(|(_, frames)| frames).map(|(symbol, _)| symbol).collect()
}

#[test]
fn names_are_those_of_the_same_profile_as_text() {
    require_program!("go");
    require_library!(TCMALLOC);
    let folder = tempfile::tempdir().unwrap();
    let [text, pprof] = profiles(&folder);

    let ((of_text, said), (of_pprof, _)) = (report(&text, &[]), report(&pprof, &[]));

    let named = stacks(&of_pprof);
    assert_eq!(named, stacks(&of_text));
    let has = |function: &str| {
        named.iter().any(|(_, frames)| frames.iter().any(|(symbol, line)| symbol == function && *line > 0))
    };
    assert!(has("keep_small") && has("keep_large") && has("main"), "{named:?}");
    assert!(!said.contains("may be wrong"), "{said}");
}

#[test]
fn names_come_from_the_root_that_is_asked_for_or_the_file_is_named() {
    require_program!("go");
    require_library!(TCMALLOC);
    let folder = tempfile::tempdir().unwrap();
    let [_, pprof] = profiles(&folder);
    let root = tempfile::tempdir().unwrap();
    let root_path = root.path().to_str().unwrap();

    let (without, said) = report(&pprof, &["--sysroot", root_path]);
    let program = compile::sampled();
    assert!(said.contains("no names for code in ") && said.contains("No such file"), "{said}");
    assert!(functions(&without).iter().all(String::is_empty), "{:?}", functions(&without));

    let copy = root.path().join(program.strip_prefix("/").unwrap());
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    fs::copy(program, copy).unwrap();
    let (with, _) = report(&pprof, &["--sysroot", root_path]);
    assert!(functions(&with).contains(&"keep_small".to_owned()), "{:?}", functions(&with));
}
