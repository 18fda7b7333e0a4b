//! Processes that are stopped or traced, or whose PID is reused.

use std::fs;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::accounts::assert_nothing_lost;
use crate::support::jjleak::Jjleak;
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;

fn raw(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap())
}

/// The state of a process, as a letter (proc(5)).
fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
}

#[test]
fn a_stopped_process_can_be_attached_to_and_stays_stopped() {
    require_bpf!();
    let mut ledger = Ledger::start();
    kill(raw(ledger.pid()), Signal::SIGSTOP).unwrap();

    let jjleak = Jjleak::attached(["-p", &ledger.pid().to_string(), "--format", "json"]);
    assert_eq!(state(ledger.pid()), 'T');
    kill(raw(ledger.pid()), Signal::SIGCONT).unwrap();
    ledger.open_accounts();
    ledger.run("malloc");
    kill(raw(ledger.pid()), Signal::SIGSTOP).unwrap();
    let report = jjleak.interrupt().assert_done().report();
    assert_eq!(state(ledger.pid()), 'T');
    kill(raw(ledger.pid()), Signal::SIGCONT).unwrap();

    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn a_process_that_a_debugger_traces_is_counted_all_the_same() {
    require_bpf!();
    let mut ledger = Ledger::start();
    ptrace::seize(raw(ledger.pid()), ptrace::Options::empty()).unwrap();

    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("malloc");
    let report = jjleak.interrupt().assert_done().report();

    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn a_pid_that_is_given_again_is_another_process() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["--follow", "--format", "json"]);
    let child = ledger.fork();
    ledger.open_accounts();
    ledger.run("malloc");
    let of_child = ledger.accounts();
    ledger.end_child();
    let mut other = ledger_with_pid(child);
    other.run("calloc");
    let report = jjleak.interrupt().assert_done().report_on(child);

    of_child.assert_reported(&report);
}

/// Starts the ledger program under a given free PID, while other processes take PIDs, too.
fn ledger_with_pid(pid: u32) -> Ledger {
    const ATTEMPTS: u32 = 1000;
    for _ in 0..ATTEMPTS {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let ledger = Ledger::start();
        if ledger.pid() == pid {
            return ledger;
        }
    }
    panic!("PID {pid} was not given again in {ATTEMPTS} attempts");
}
