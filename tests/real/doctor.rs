//! `jjleak doctor`: says what can be told of a process, and leaves it alone.

use std::process::{Command, Output, Stdio};

use crate::support::compile;
use crate::support::jjleak::PROGRAM;
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

fn doctor(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("doctor").args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    println!("{text}");
    text
}

fn examined(process: &Process) -> Output {
    doctor(&["-p", &process.id().to_string()])
}

#[test]
fn the_host_alone_can_be_looked_at() {
    require_bpf!();
    let output = doctor(&[]);
    assert_eq!(output.status.code(), Some(0));
    let text = text(&output);
    assert!(text.starts_with("Host\n  yes  privilege"), "{text}");
    assert!(!text.contains("NO ") && !text.contains("Process"), "{text}");
}

#[test]
fn a_process_is_told_its_allocator_its_stacks_and_its_names() {
    require_bpf!();
    let process =
        Process::spawn(Command::new(compile::ledger()).stdin(Stdio::piped()).stdout(Stdio::piped()));

    let output = examined(&process);

    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = text(&output);
    let line = |ends: &str| text.lines().find(|line| line.ends_with(ends)).unwrap().to_owned();
    let ledger = line("/ledger");
    assert!(ledger.trim_start().starts_with("whole ") && ledger.contains("all, lines"), "{text}");
    assert!(line("/libc.so.6").trim_start().starts_with("whole "), "{text}");
    assert!(text.contains("yes  glibc in libc.so.6: "), "{text}");
}

#[test]
fn a_program_without_an_allocator_cannot_be_profiled() {
    require_bpf!();
    let process = Process::spawn(Command::new(compile::bare()).stdin(Stdio::piped()).stdout(Stdio::piped()));

    let output = examined(&process);

    assert_eq!(output.status.code(), Some(1));
    let text = text(&output);
    assert!(text.contains("NO   allocator that jjleak knows"), "{text}");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("maps no allocator that jjleak knows\njjleak: to do: "), "{stderr}");
}

#[test]
fn what_doctor_cannot_look_at_is_an_error_with_a_remedy() {
    for (arguments, code) in [(&["-p", "4194305"][..], 4), (&["-p", "0"], 2), (&["--top", "3"], 2)] {
        let output = doctor(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("to do: "), "{arguments:?}");
    }
}
