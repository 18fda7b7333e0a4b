//! Misbehaving surroundings: stdout and stderr, senders of signals, and names crafted to do harm.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use jjleak::render::json::Document;
use nix::sys::signal::Signal;

use crate::support::accounts::{Accounts, call_site};
use crate::support::bounded::{SOON, until};
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

/// A command that runs jjleak from a shell with these redirections.
fn redirected(redirections: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" \"$@\" {redirections}"), PROGRAM]).args(arguments);
    command.stdout(Stdio::piped());
    command
}

#[test]
fn a_stderr_that_takes_nothing_is_no_reason_to_stop() {
    require_bpf!();
    let ledger = Ledger::start();
    let pid = ledger.pid().to_string();
    for redirection in ["2>/dev/full", "2>&-"] {
        let ended =
            Jjleak::start(redirected(redirection, &["-p", &pid, "0.1", "1", "-v"])).end().assert_done();
        assert_eq!(ended.files(), [format!("jjleak-{pid}.svg")], "{redirection}");
    }
}

#[test]
fn a_flame_graph_can_go_to_stdout() {
    require_bpf!();
    let ledger = Ledger::start();

    let arguments = ["-p", &ledger.pid().to_string(), "0.1", "1", "--format", "svg", "--out", "/dev/stdout"];
    let ended = Ended::of(arguments).assert_done();

    assert!(ended.stdout.trim_end().ends_with("</svg>"), "{}", ended.stdout);
    assert_eq!(ended.files(), [""; 0]);
}

#[test]
fn a_run_whose_only_reader_goes_away_ends() {
    require_bpf!();
    let ledger = Ledger::start();

    let arguments = ["-p", &ledger.pid().to_string(), "0.1", "--format", "text"];
    let jjleak = Jjleak::attached_unread(arguments).without_stdout();

    jjleak.end().assert_done();
}

#[test]
fn two_signals_at_once_are_one() {
    require_bpf!();
    let mut ledger = Ledger::start();

    // As timeout(1) sends them: to its child, and to its child's process group.
    let jjleak = ledger.attach(&["--format", "json,svg"]);
    ledger.run("malloc");
    jjleak.signal(Signal::SIGTERM);
    jjleak.signal(Signal::SIGTERM);
    let ended = jjleak.end().assert_done();

    ledger.accounts().assert_reported(&ended.report());
    assert_eq!(ended.files(), [format!("jjleak-{}.svg", ledger.pid())]);
}

#[test]
fn a_name_cannot_steer_the_terminal() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let hostile = folder.path().join("a\u{1b}[2Jb");
    symlink(compile::early(), &hostile).unwrap();

    let ended = Ended::of(["--format", "json", "--", hostile.to_str().unwrap(), "0"]).assert_done();

    assert!(ended.stderr.iter().all(|line| !line.contains('\u{1b}')), "{:#?}", ended.stderr);
    assert!(ended.stderr.iter().any(|line| line.contains("a\u{fffd}[2Jb")), "{:#?}", ended.stderr);
}

#[test]
fn a_command_can_be_started_through_the_dynamic_loader() {
    require_bpf!();
    let loader = "/lib64/ld-linux-x86-64.so.2";
    assert!(Path::new(loader).exists(), "x86-64 programs of glibc have their loader there");

    let early = compile::early().to_str().unwrap();
    let ended = Ended::of(["--format", "json", "--", loader, early, "0"]).assert_done();

    Accounts::parse(ended.stdout.lines()).assert_reported(&ended.report());
}

#[test]
fn exec_is_noticed_inside_a_pid_namespace() {
    require_bpf!();
    let mut command = Command::new("unshare");
    command.args(["-pf", "--mount-proc", PROGRAM, "--format", "json", "3600"]);
    command.args(["--", "sh", "-c", "exec \"$0\" 7"]).arg(compile::early()).stdout(Stdio::piped());

    let ended = Jjleak::start(command).end();

    // The PIDs that the kernel side sees differ from those of jjleak.
    assert_eq!(ended.report().notes["exec"], 1, "{:#?}", ended.stderr);
}

/// Ends a program's main thread and lets the other one allocate once jjleak has printed `said`. Returns jjleak's report, and the
/// number of the other thread's allocations in it.
fn without_its_main_thread(options: &[&str], said: &str) -> (Document, u64) {
    let mut program =
        Process::spawn(Command::new(compile::headless()).stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut output = Lines::of("headless", program.stdout.take().unwrap());
    output.skip_to("ready", SOON);
    let mut input = program.stdin.take().unwrap();
    let pid = program.id().to_string();
    let mut jjleak = Jjleak::attached(["-p", &pid, "3600", "--format", "json"].iter().chain(options));
    input.write_all(b"1").unwrap();
    jjleak.wait_for(said);
    input.write_all(b"2").unwrap();
    output.skip_to("done", SOON);
    let report = jjleak.interrupt().assert_done().report();
    // The main thread's end causes allocations of the C library.
    let counted = report.stacks.iter().filter(|stack| call_site(stack) == "site_headless");
    let counted = counted.map(|stack| stack.live.objects).sum();
    (report, counted)
}

#[test]
fn a_bound_that_the_main_thread_takes_along_is_reported_and_nothing_is_probed_without_it() {
    require_bpf!();

    let warning = " WARN the cost of profiling is no longer bounded, and allocations are no longer counted";
    let (_, counted) = without_its_main_thread(&["--max-overhead", "1"], warning);

    assert_eq!(counted, 0);
}

#[test]
fn the_other_threads_are_counted_after_the_main_thread_has_ended() {
    require_bpf!();

    let (report, counted) = without_its_main_thread(&[], " WARN the probed thread of process");

    assert_eq!(counted, 100, "{report:#?}");
    assert_eq!(report.lost["probes_unbound"], 1);
}

#[test]
fn a_process_whose_main_thread_has_ended_is_profiled_beside_others() {
    require_bpf!();
    let mut program =
        Process::spawn(Command::new(compile::headless()).stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut output = Lines::of("headless", program.stdout.take().unwrap());
    output.skip_to("ready", SOON);
    let mut input = program.stdin.take().unwrap();
    let pid = program.id();
    input.write_all(b"1").unwrap();
    until(SOON, "the end of the main thread", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ")
    });

    let mut ledger = Ledger::start();
    let jjleak = ledger.attach(&["--format", "json", "-p", &pid.to_string()]);
    input.write_all(b"2").unwrap();
    output.skip_to("done", SOON);
    ledger.run("malloc");
    let ended = jjleak.interrupt().assert_done();

    ledger.accounts().assert_reported(&ended.report_on(ledger.pid()));
    let report = ended.report_on(pid);
    let counted = report.stacks.iter().filter(|stack| call_site(stack) == "site_headless");
    assert_eq!(counted.map(|stack| stack.live.objects).sum::<u64>(), 100);
}
