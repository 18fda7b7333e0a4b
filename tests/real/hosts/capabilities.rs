//! The smallest set of capabilities that suffices, and jjleak's messages if one of them is missing.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::accounts::assert_nothing_lost;
use crate::support::bounded::{LONG, SOON};
use crate::support::compile;
use crate::support::daemon::{Place, driven};
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::require_program;
use crate::support::process::Process;

/// The capabilities in SECURITY.md and the service unit.
const ENOUGH: [&str; 5] = ["bpf", "perfmon", "sys_ptrace", "dac_read_search", "checkpoint_restore"];

/// Two users who are not root and may not read each other's files.
const USER: &str = "65534";
const TARGETS_USER: &str = "4711";

/// A jjleak that other users can execute, and a folder that its user can write.
struct Installed {
    folder: TempDir,
    program: PathBuf,
}

impl Installed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = compile::copy(Path::new(PROGRAM), folder.path());
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        Self { folder, program }
    }

    /// Runs jjleak as a user other than root, with exactly these capabilities.
    fn run(&self, capabilities: &[&str], arguments: &[&str]) -> Jjleak {
        let mut command = self.command(capabilities);
        command.args(arguments).stdout(Stdio::piped());
        Jjleak::start(command)
    }

    fn command(&self, capabilities: &[&str]) -> Command {
        let set = capabilities.iter().fold("-all".to_owned(), |set, capability| set + ",+" + capability);
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_owned()]);
        command
            .args(["--inh-caps", "--ambient-caps", "--bounding-set"].map(|which| format!("{which}={set}")));
        command.arg(&self.program).env("XDG_CACHE_HOME", self.folder.path());
        command
    }
}

/// The ledger program, run by a user who is neither root nor jjleak's. Its file and that of one of its libraries are deleted.
fn target(folder: &Path) -> Ledger {
    let program = compile::copy(compile::ledger(), folder);
    let library = compile::copy(compile::stacks_library(), folder);
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={TARGETS_USER}"), format!("--regid={TARGETS_USER}")]);
    let ledger = Ledger::spawn(command.arg("--clear-groups").arg(&program).env("LD_PRELOAD", &library));
    fs::remove_file(program).unwrap();
    fs::remove_file(library).unwrap();
    ledger
}

/// All capabilities except this one.
fn without(one: &str) -> Vec<&'static str> {
    ENOUGH.into_iter().filter(|capability| *capability != one).collect()
}

fn warnings(ended: &Ended) -> Vec<&str> {
    ended.stderr.iter().map(String::as_str).filter(|line| line.starts_with(" WARN")).collect()
}

#[test]
fn five_capabilities_are_enough_for_another_users_process() {
    require_program!("setpriv");
    let installed = Installed::new();
    let mut ledger = target(installed.folder.path());
    let pid = ledger.pid().to_string();

    let jjleak = installed.run(&ENOUGH, &["-p", &pid, "--format", "json"]).until_attached();
    ledger.open_accounts();
    ledger.run("malloc");
    let ended = jjleak.interrupt().assert_done();

    let report = ended.report();
    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
    assert_eq!(warnings(&ended), [""; 0]);
}

#[test]
fn without_one_that_everything_needs_jjleak_says_which() {
    require_program!("setpriv");
    let installed = Installed::new();
    let ledger = target(installed.folder.path());
    let pid = ledger.pid().to_string();

    for (missing, what) in [
        ("bpf", "needs root, or CAP_BPF and CAP_PERFMON"),
        ("perfmon", "needs root, or CAP_BPF and CAP_PERFMON"),
        ("sys_ptrace", "needs root or CAP_SYS_PTRACE"),
    ] {
        let ended = installed.run(&without(missing), &["-p", &pid]).end();
        ended.assert_failed(3, what, "CAP_SYS_PTRACE");
    }
}

#[test]
fn without_one_that_little_needs_jjleak_says_what_is_worse() {
    require_program!("setpriv");
    let installed = Installed::new();
    let ledger = target(installed.folder.path());
    let pid = ledger.pid().to_string();

    for (missing, what) in [
        ("dac_read_search", "[vdso]: its code is unwound by frame pointers: Permission denied"),
        ("checkpoint_restore", "Operation not permitted (os error 1) (as it is mapped)"),
    ] {
        let jjleak = installed.run(&without(missing), &["-p", &pid, "--format", "json"]).until_attached();
        let ended = jjleak.interrupt().assert_done();
        let said = warnings(&ended);
        assert!(said.iter().any(|line| line.contains(what)), "{missing}: {said:#?}");
    }
}

#[test]
fn a_process_without_its_main_thread_needs_more_and_jjleak_says_so() {
    require_program!("setpriv");
    let installed = Installed::new();
    let mut program =
        Process::spawn(Command::new(compile::headless()).stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut output = Lines::of("headless", program.stdout.take().unwrap());
    let mut input = program.stdin.take().unwrap();
    output.skip_to("ready", SOON);
    let arguments = ["-p", &program.id().to_string(), "3600", "--format", "json"];
    let mut jjleak = installed.run(&ENOUGH, &arguments).until_attached();

    input.write_all(b"1").unwrap();

    let said = jjleak.wait_for(" WARN");
    assert!(said.contains("attach uprobes one by one: this needs root or CAP_SYS_ADMIN"), "{said}");
    assert_eq!(jjleak.interrupt().report().lost["probes_unbound"], 1);
}

#[test]
fn doctor_lists_what_is_missing() {
    require_program!("setpriv");
    let installed = Installed::new();
    for missing in ENOUGH {
        let ended = installed.run(&without(missing), &["doctor"]).end();
        let name = format!("CAP_{}", missing.to_uppercase());
        assert!(ended.stdout.contains(&name), "{missing}: {}", ended.stdout);
    }
    let ended = installed.run(&ENOUGH, &["doctor"]).end().assert_done();
    assert!(!ended.stdout.contains("CAP_"), "{}", ended.stdout);
}

/// The capability that `older-kernels.conf` adds to [`ENOUGH`], for receiving process events.
const TO_LISTEN: &str = "net_admin";

/// The effective capabilities of each thread of a process, by their names in `setpriv`.
fn capabilities_of_threads(pid: u32) -> Vec<Vec<&'static str>> {
    /// Capabilities by number (include/uapi/linux/capability.h).
    const NUMBERS: [(&str, u32); 6] = [
        ("bpf", 39),
        ("perfmon", 38),
        ("sys_ptrace", 19),
        ("dac_read_search", 2),
        ("checkpoint_restore", 40),
        (TO_LISTEN, 12),
    ];
    let of_thread = |thread: fs::DirEntry| {
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        let set = u64::from_str_radix(set.trim(), 16).unwrap();
        let named = NUMBERS.iter().fold(0, |named, (_, number)| named | 1u64 << number);
        assert_eq!(set & !named, 0, "{set:x}");
        Some(NUMBERS.iter().filter(|(_, number)| set >> number & 1 == 1).map(|(name, _)| *name).collect())
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // Threads may end during the scan.
    threads.filter_map(|thread| of_thread(thread.ok()?)).collect()
}

/// Fails unless every thread has exactly the capabilities in [`ENOUGH`].
fn assert_enough(pid: u32) {
    let threads = capabilities_of_threads(pid);
    assert!(!threads.is_empty() && threads.iter().all(|capabilities| *capabilities == ENOUGH), "{threads:?}");
}

/// As in its unit: a user other than root, and no `CAP_SYS_ADMIN`.
#[test]
fn the_daemon_finds_a_leak_with_what_its_unit_gives_and_keeps_no_more_than_profiling_takes() {
    require_program!("setpriv");
    let installed = Installed::new();
    let place = Place::new("unit");
    let changes = [
        // Extended by the same time if there is no verdict by then; this suffices even on a loaded machine.
        ("duration = \"60s\"", "duration = \"30s\""),
        ("settle = \"1s\"", "settle = \"2s\"\nmax_overhead = \"1000%\""),
    ];
    let rules = changes.iter().fold(place.served_on_request(), |rules, (from, to)| rules.replace(from, to));
    place.configure("rescan = \"1h\"", &rules);
    fs::set_permissions(place.path(""), Permissions::from_mode(0o777)).unwrap();
    let copy = compile::copy(compile::verdicts(), installed.folder.path());
    let target = || {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={TARGETS_USER}"), format!("--regid={TARGETS_USER}")]);
        command.arg("--clear-groups").arg(place.program(&copy));
        driven(command, "pace 100000 20")
    };
    let with = |capabilities: &[&str]| {
        let mut command = installed.command(capabilities);
        command.arg("daemon");
        place.spawn_as(command).until_it_watches()
    };
    let (program, _said) = target();

    // It drops the capabilities beyond that.
    let daemon = with(&[&ENOUGH[..], &[TO_LISTEN]].concat());
    assert_enough(daemon.pid());
    daemon.end();

    let mut daemon = with(&ENOUGH);
    let (head, _) = place.ask(&format!("POST /api/v1/processes/{}/profile", program.id()));
    assert!(head.starts_with("HTTP/1.1 202 "), "{head}");
    // It reports what it cannot do, and what it does instead.
    let unbounded = daemon.until("CAP_SYS_ADMIN", LONG);
    let told = unbounded["message"].as_str().unwrap();
    assert!(told.contains("everything is counted until a profile shows that it costs too much"), "{told}");
    assert_eq!(unbounded["level"], "WARN");
    assert_enough(daemon.pid());
    let told = daemon.until(&format!("(pid {}) ", program.id()), LONG);
    assert!(told["message"].as_str().unwrap().contains(" leaks: "), "{:#?}", daemon.said);
    let report = Ended::of(["report".as_ref(), place.kept().last().unwrap().as_os_str()]).assert_done();
    assert!(report.stdout.contains("forget_message"), "{}", report.stdout);

    // Either it receives events of process starts, or it says that it does not.
    if !daemon.has_said("process events are unavailable") {
        let (other, _said) = target();
        daemon.until(&format!("(pid {})", other.id()), SOON);
    }
    daemon.end();
}
