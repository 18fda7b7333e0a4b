//! Programs that start and end before jjleak has scanned them: each is counted, or named as a loss.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jjleak::render::json::Document;
use tempfile::TempDir;

use crate::support::accounts::{Accounts, assert_nothing_lost, losses};
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::privilege::require_bpf;

/// Exit code of `--strict` if something was lost.
const LOSS: i32 = 5;

/// A copy of a static program that allocates and ends, and that no earlier run has seen.
fn unknown_program() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile::copy(compile::static_early(), folder.path());
    (folder, program)
}

/// A script that runs a program that is not among its arguments.
fn script(folder: &Path, text: &str) -> String {
    let script = folder.join("script");
    fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script.to_str().unwrap().to_owned()
}

fn strictly(options: &[&str], command: &[&str]) -> Ended {
    Ended::of([&["--strict", "--format", "json"], options, &["--"], command].concat())
}

/// Fails unless the report equals the program's accounting. The C library also allocates before `main`.
fn assert_recorded(ended: &Ended, report: &Document) {
    let mut counted = Accounts::of(report);
    counted.sites.retain(|site, _| site.starts_with("site_"));
    assert_eq!(counted, Accounts::parse(ended.stdout.lines()));
    assert_nothing_lost(report);
}

#[test]
fn a_static_program_that_a_wrappers_arguments_name_is_counted_from_its_first_run() {
    require_bpf!();
    let wrappers: [&[&str]; 5] = [
        &["sh", "-c", "cd / && exec \"$0\""],
        &["env", "A=1"],
        &["nice", "-n", "1"],
        &["timeout", "60"],
        &["setpriv", "--nnp"],
    ];
    for wrapper in wrappers {
        let (_folder, program) = unknown_program();
        // The child of timeout(1) is another process.
        let ended = strictly(&["--follow"], &[wrapper, &[program.to_str().unwrap()]].concat()).assert_done();

        let report =
            ended.reports().into_iter().rfind(|report| report.process.comm == "static-early").unwrap();
        assert_recorded(&ended, &report);
    }
    let (_folder, program) = unknown_program();
    let script = format!("x=1;exec {}", program.display());
    let ended = strictly(&[], &["sh", "-c", &script]).assert_done();
    assert_recorded(&ended, &ended.report());
}

#[test]
fn a_static_program_behind_a_script_is_a_loss_with_its_name_and_is_counted_the_next_time() {
    require_bpf!();
    for options in [&[][..], &["--follow"]] {
        let (folder, program) = unknown_program();
        let text = if options.is_empty() {
            format!("exec {}", program.display())
        } else {
            format!("{}; :", program.display())
        };
        let script = script(folder.path(), &text);
        let of_program = |ended: &Ended| {
            ended.reports().into_iter().rfind(|report| report.process.comm == "static-early").unwrap()
        };

        let first = strictly(options, &[&script]);
        let second = strictly(options, &[&script]).assert_done();

        assert_eq!(first.status.code(), Some(LOSS), "{:#?}", first.stderr);
        let report = of_program(&first);
        let named = losses(&report);
        // It may have been found while it ran.
        assert!(named.contains_key("unseen_program") || named.contains_key("late_probes"), "{named:?}");
        assert!(report.process.exe.ends_with("static-early"), "{}", report.process.exe);
        assert_recorded(&second, &of_program(&second));
    }
}

#[test]
fn programs_without_an_allocator_and_those_that_never_allocate_are_no_loss() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let silent = compile::copy(compile::silent(), folder.path());
    let script = script(folder.path(), &format!("{0}; /bin/true; {0}; exec {0}", silent.display()));

    let ended = strictly(&["--follow"], &[&script]).assert_done();

    assert_eq!(ended.reports().iter().filter(|report| report.process.comm == "silent").count(), 3);
    ended.reports().iter().for_each(assert_nothing_lost);
}

/// Blocks that the library of `loaded_late.c` allocates, and the bytes of each.
const OF_LIBRARY: (u64, u64) = (10, 5000);

#[test]
fn a_library_with_an_allocator_that_is_loaded_late_is_a_loss_and_is_counted_the_next_time() {
    require_bpf!();
    let (program, library) = compile::loading_late();
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = compile::copy(&program, here.path());
    let library = compile::copy(&library, elsewhere.path());
    let run = |wrapper: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command
            .args(["--strict", "--format", "json", "--"])
            .args(wrapper)
            .arg(&program)
            .env("LATE_LIBRARY", &library)
            .stdout(Stdio::piped());
        Jjleak::start(command).end()
    };
    let counted = |report: &Document| {
        let of_library =
            report.stacks.iter().filter(|stack| stack.frames[0].module.ends_with("libloaded-late.so"));
        let sizes = of_library.map(|stack| (stack.allocated.objects, stack.allocated.bytes));
        sizes.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };

    let first = run(&[]);
    let later = [run(&[]).assert_done(), run(&["env", "A=1"]).assert_done()];

    assert_eq!(first.status.code(), Some(LOSS), "{:#?}", first.stderr);
    let report = first.report();
    assert_eq!(losses(&report).into_keys().collect::<Vec<_>>(), ["late_probes"]);
    let (blocks, bytes) = OF_LIBRARY;
    for report in later.iter().map(Ended::report) {
        assert_eq!(counted(&report), (blocks, blocks * bytes));
        assert_nothing_lost(&report);
    }
}
