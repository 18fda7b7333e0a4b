//! Commands that jjleak starts itself: all allocations count, from the first one, which comes before `main`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::accounts::{Accounts, assert_nothing_lost};
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::privilege::require_bpf;

/// The report must equal the accounting that the program printed to the same stdout.
fn assert_exact(ended: &Ended) {
    let report = ended.report();
    let accounts = Accounts::parse(ended.stdout.lines());
    assert_eq!(accounts.sites["site_constructor"].live_objects, 100, "what is allocated before main");
    accounts.assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn a_command_is_counted_from_its_first_allocation_and_its_status_is_reported() {
    require_bpf!();
    let early = compile::early().to_str().unwrap();

    let ended = Ended::of(["--format", "json", "--", early, "7"]).assert_done();

    assert_exact(&ended);
    assert!(
        ended.stderr.iter().any(|line| line.ends_with("has ended: exit status: 7")),
        "{:#?}",
        ended.stderr
    );
}

/// musl's loader is its C library. The main thread of this program allocates nothing.
#[test]
fn a_command_of_musl_is_counted_from_its_first_allocation() {
    require_bpf!();
    let program = compile::every_way_of_musl();

    let ended = Ended::of(["--format", "json", "--", program.to_str().unwrap(), "1000"]).assert_done();

    let report = ended.report();
    assert_nothing_lost(&report);
    let printed = ended.stdout.lines().filter_map(|line| line.strip_prefix("by_")?.split_once(' '));
    let bytes: u64 = printed.map(|(_, bytes)| bytes.parse::<u64>().unwrap()).sum();
    let stacks = report.stacks.iter();
    let own = stacks.filter(|stack| stack.frames.iter().any(|frame| frame.symbol.starts_with("by_")));
    assert!(bytes > 0);
    assert_eq!(own.map(|stack| stack.live.bytes).sum::<u64>(), bytes);
}

#[test]
fn a_command_line_is_split_like_in_a_shell() {
    require_bpf!();
    let early = compile::early().to_str().unwrap();

    let ended = Ended::of(["--format", "json", "-c", &format!("'{early}' '0'")]).assert_done();

    assert_exact(&ended);
    assert!(
        ended.stderr.iter().any(|line| line.ends_with("has ended: exit status: 0")),
        "{:#?}",
        ended.stderr
    );
}

#[test]
#[ignore = "counts are exact, but a program that ends within a second of its exec has no names yet"]
fn a_command_that_becomes_another_program_is_counted_as_that() {
    require_bpf!();
    let early = compile::early().to_str().unwrap();

    let ended = Ended::of(["--format", "json", "--", "sh", "-c", "exec \"$0\" 7", early]).assert_done();

    assert_exact(&ended);
}

#[test]
fn a_command_that_becomes_another_program_again_and_again_keeps_the_accounting_of_the_last() {
    require_bpf!();
    // More often than images can be distinguished. A busy machine needs the pauses, to read the tables in between.
    let script = "[ $(($0 % 40)) -eq 39 ] && sleep 1; [ $0 -gt 0 ] && exec env sh -c \"$1\" $(($0 - 1)) \"$1\"; exec \"$EARLY\" 7";
    let early = compile::early().to_str().unwrap();
    // Without the libraries that sh and env have mapped in other runs: jjleak would read them first.
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["--format", "json", "--", "sh", "-c", script, "150", script]);
    command.env("EARLY", early).env("XDG_CACHE_HOME", cache.path()).stdout(Stdio::piped());

    let ended = Jjleak::start(command).end().assert_done();

    println!("{:#?}", ended.stderr);
    let (report, accounts) = (ended.report(), Accounts::parse(ended.stdout.lines()));
    assert_eq!(report.notes["exec"], 301);
    assert_nothing_lost(&report);
    assert_eq!((report.live, report.allocated), (accounts.live(), accounts.allocated()));
}

#[test]
fn a_command_that_outlives_the_run_goes_on_alone() {
    require_bpf!();

    let mut jjleak = Jjleak::attached(["0.1", "1", "--format", "json", "--", "sleep", "60"]);
    let line = jjleak.wait_for("jjleak: sleep keeps running as process ");
    let status = jjleak.wait();

    let pid = line.rsplit(' ').next().unwrap();
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(state.contains("(sleep) S"), "not asleep: {state}");
}

#[test]
fn jjleak_raises_its_limit_of_open_files_and_the_command_keeps_its_own() {
    require_bpf!();
    let mut command = Command::new("sh");
    let limits = "ulimit -Sn; grep 'open files' /proc/$PPID/limits";
    command.args(["-c", "ulimit -Sn 256 && exec \"$0\" -- sh -c \"$1\"", PROGRAM, limits]);
    command.stdout(Stdio::piped());

    let ended = Jjleak::start(command).end().assert_done();

    let stdout: Vec<_> = ended.stdout.lines().collect();
    let [own, raised] = &stdout[..2] else { unreachable!("two lines") };
    assert_eq!(*own, "256");
    let raised: Vec<_> = raised.split_whitespace().collect();
    assert!(raised[3] == raised[4] && raised[3] != "256", "{raised:?}");
}

#[test]
fn a_command_that_is_killed_is_distinguished_from_one_that_ends() {
    require_bpf!();

    let ended = Ended::of(["--format", "json", "--", "sh", "-c", "kill -KILL $$"]).assert_done();

    assert_eq!(ended.reports().len(), 1);
    assert!(
        ended.stderr.iter().any(|line| line.ends_with("has ended: signal: 9 (SIGKILL)")),
        "{:#?}",
        ended.stderr
    );
}

#[test]
fn a_command_that_ends_while_it_is_loaded_is_gone_before_jjleak_is_attached() {
    require_bpf!();
    let orphan = compile::orphan().to_str().unwrap();

    let ended = Ended::of(["--", orphan]);

    ended.assert_failed(4, "ended before it loaded an allocator: exit status 127", "runs without jjleak");
}

#[test]
fn a_command_that_is_not_there_is_named() {
    require_bpf!();

    let ended = Ended::of(["--", "/nonexistent/command"]);

    ended.assert_failed(4, "starting \"/nonexistent/command\" failed", "check that the command exists");
}

#[test]
fn a_command_without_an_allocator_is_refused_and_does_not_stay() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let bare = compile::copy(compile::bare(), folder.path());

    let ended = Ended::of(["--", bare.to_str().unwrap()]);

    ended.assert_failed(1, "maps no allocator", "profile a process that uses");
    assert!(!runs(&bare), "{} still runs", bare.display());
}

/// Returns true if a process runs this program.
fn runs(program: &Path) -> bool {
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    processes.filter_map(|process| fs::read_link(process.join("exe")).ok()).any(|path| path == program)
}
