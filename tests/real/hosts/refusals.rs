//! Hosts and targets that jjleak cannot work with: one line with the failure and its cause, one with the remedy, the exit code,
//! and nothing left behind.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::ledger::Ledger;
use crate::support::privilege::{self, require_bpf};
use crate::support::probes::{self, Text};
use crate::support::process::Process;

/// Runs jjleak after a shell command, in a private mount namespace.
fn jjleak_after(shell_command: &str, arguments: &[&str]) -> Ended {
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", &format!("{shell_command} && exec \"$0\" \"$@\""), PROGRAM])
        .args(arguments);
    command.stdout(Stdio::piped());
    Jjleak::start(command).end()
}

#[test]
fn a_user_without_privileges_is_advised_to_use_sudo() {
    let _quiet = probes::quiet();
    let mut ledger = Ledger::start();
    // Other users may not be able to enter the build's folders.
    let folder = TempDir::new().unwrap();
    let program = compile::copy(Path::new(PROGRAM), folder.path());
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let pid = ledger.pid().to_string();
    let before = nix::unistd::geteuid().is_root().then(|| Text::of(&mut ledger));

    let mut command = match before {
        Some(_) => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
            command.arg("--bounding-set=-all").arg(&program);
            command
        }
        None => Command::new(&program),
    };
    command.args(["-p", &pid]).stdout(Stdio::piped());
    let ended = Jjleak::start(command).end();

    ended.assert_failed(3, "not allowed to load BPF programs", "run it with sudo");
    if let Some(before) = before {
        before.assert_unchanged(&mut ledger);
    }
}

#[test]
fn a_kernel_without_btf_is_refused() {
    let _quiet = probes::quiet();
    require_bpf!();
    let mut ledger = Ledger::start();
    let before = Text::of(&mut ledger);

    let ended = jjleak_after("mount -t tmpfs none /sys/kernel/btf", &["-p", &ledger.pid().to_string()]);

    ended.assert_failed(3, "no BTF", "CONFIG_DEBUG_INFO_BTF");
    before.assert_unchanged(&mut ledger);
}

#[test]
fn a_kernel_without_uprobes_is_refused() {
    let _quiet = probes::quiet();
    require_bpf!();
    let mut ledger = Ledger::start();
    let before = Text::of(&mut ledger);

    let mount = "mount -t tmpfs none /sys/bus/event_source/devices";
    let ended = jjleak_after(mount, &["-p", &ledger.pid().to_string()]);

    ended.assert_failed(3, "no uprobes", "CONFIG_UPROBE_EVENTS");
    before.assert_unchanged(&mut ledger);
}

#[test]
fn a_process_that_does_not_exist_is_refused() {
    require_bpf!();

    // Above the kernel's maximum PID (PID_MAX_LIMIT is 2^22).
    let ended = Ended::of(["-p", "4194305"]);

    ended.assert_failed(4, "no process has the PID 4194305", "check the PID");
}

#[test]
fn a_kernel_thread_is_refused() {
    require_bpf!();
    // A container with its own PIDs shows none.
    if fs::read_to_string("/proc/2/comm").unwrap_or_default().trim_end() != "kthreadd" {
        return privilege::record("a_kernel_thread_is_refused", "PID 2 is no kernel thread here");
    }

    let ended = Ended::of(["-p", "2"]);

    ended.assert_failed(
        4,
        "process 2 is a kernel thread or a zombie",
        "choose a process that runs a program",
    );
}

#[test]
fn a_process_that_has_ended_is_refused() {
    require_bpf!();
    let zombie = Process::spawn(&mut Command::new("true"));
    let pid = Pid::from_raw(zombie.id().try_into().unwrap());
    waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();

    let ended = Ended::of(["-p", &pid.to_string()]);

    ended.assert_failed(4, "is a kernel thread or a zombie", "choose a process that runs a program");
}

#[test]
fn a_thread_is_refused_and_its_process_named() {
    require_bpf!();
    let mut ledger = Ledger::start();
    ledger.set_up("threads");
    let pid = ledger.pid().to_string();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut names = threads.map(|thread| thread.unwrap().file_name().into_string().unwrap());
    let thread = names.find(|name| *name != pid).unwrap();

    let ended = Ended::of(["-p", &thread]);

    ended.assert_failed(4, &format!("{thread} is a thread of process {pid}"), &format!("use -p {pid}"));
}

#[test]
fn a_process_without_an_allocator_is_refused() {
    require_bpf!();
    let bare = Process::spawn(&mut Command::new(compile::bare()));

    let ended = Ended::of(["-p", &bare.id().to_string()]);

    ended.assert_failed(1, "maps no allocator", "profile a process that uses");
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    const HELP: &str = "jjleak --help";
    for (arguments, what, remedy) in [
        (&["-p", "1", "--format", "png"][..], "png", HELP),
        (&["-p", "1", "--colour"], "--colour", HELP),
        (&["-p", "none"], "none: not a PID", "jjleak --name none"),
        (&["-p", "1", "-z", "10", "-Z", "9"], "--min-size 10 is larger than --max-size 9", HELP),
        (&["-c", "'open"], "--command", HELP),
    ] {
        Ended::of(arguments).assert_failed(2, what, remedy);
    }
}

#[test]
fn a_32_bit_program_is_refused_and_named_as_such() {
    require_bpf!();
    let mut command = Command::new(compile::narrow());
    let process = Process::spawn(&mut command);
    let pid = process.id().to_string();

    let ended = Ended::of(["-p", &pid]);
    let doctor = Command::new(PROGRAM).args(["doctor", "-p", &pid]).output().unwrap();

    ended.assert_failed(1, "runs a 32-bit program (i386)", "profile the 64-bit build of this program");
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.contains("NO   64-bit program: it runs a 32-bit program (i386)"), "{doctor}");
}

/// Environment variable that makes jjleak's filtered child perform a call that its filter forbids, as a return probe does on a
/// kernel without the fix.
const FORBIDDEN_CALL: &str = "JJLEAK_TEST_FORBIDDEN_CALL";

/// A jjleak that finds a kernel that kills filtered processes for return probes, or this kernel.
fn jjleak(kills: bool, arguments: &[&str]) -> Ended {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdout(Stdio::piped());
    if kills {
        command.env(FORBIDDEN_CALL, "1");
    }
    Jjleak::start(command).end()
}

#[test]
fn a_filtered_process_is_refused_where_the_kernel_kills_it_for_return_probes() {
    require_bpf!();
    let filtered = compile::filtered().to_str().unwrap();
    let mut sleep = Command::new(filtered);
    sleep.args(["/bin/sh", "-c", "read line"]).stdin(Stdio::piped());
    let mut process = Process::spawn(&mut sleep);
    let pid = process.id().to_string();
    let status = format!("/proc/{pid}/status");
    let begin = std::time::Instant::now();
    while !fs::read_to_string(&status).unwrap().contains("Seccomp:\t2") {
        assert!(begin.elapsed().as_secs() < 10, "it has no filter");
    }

    let refused = jjleak(true, &["-p", &pid]);
    let profiled = jjleak(false, &["-p", &pid, "0.1", "1"]);

    refused.assert_failed(3, "may have a system call filter (seccomp)", "boot a kernel with the fix");
    profiled.assert_done();
    assert!(process.try_wait().unwrap().is_none(), "it is unharmed");
}

#[test]
fn nobody_is_followed_where_the_kernel_kills_filtered_processes_for_return_probes() {
    require_bpf!();

    let refused = jjleak(true, &["--follow", "--", "/bin/true"]);
    let unfiltered = jjleak(true, &["--", "/bin/true"]);

    refused.assert_failed(3, "may have a system call filter (seccomp)", "without --follow");
    unfiltered.assert_done();
}
