//! Processes with their own PIDs and files, as in a container, attached to from the host, where their PIDs differ.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::accounts::{Accounts, assert_nothing_lost, losses};
use crate::support::bounded::{LONG, until};
use crate::support::compile;
use crate::support::daemon::Place;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::ledger::Ledger;
use crate::support::privilege::require_program;

/// A seccomp filter that allows all system calls (linux/filter.h: `BPF_RET | BPF_K`, `SECCOMP_RET_ALLOW`).
const ALLOW_ALL: [u8; 8] = [6, 0, 0, 0, 0, 0, 0xff, 0x7f];

/// A container: a root with the files that the ledger program needs, and a command that runs it there.
struct Container {
    root: TempDir,
    command: Command,
}

impl Container {
    /// As a container runtime does it: all namespaces new, a pivoted root, a user without capabilities, no new privileges, and a
    /// seccomp filter.
    fn sandboxed() -> Self {
        let root = root();
        let filter = root.path().join("filter");
        fs::write(&filter, ALLOW_ALL).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "exec 9<\"$0\" && exec bwrap --seccomp 9 \"$@\""]).arg(filter);
        command.args([
            "--unshare-all",
            "--uid",
            "4711",
            "--gid",
            "4712",
            "--cap-drop",
            "ALL",
            "--die-with-parent",
        ]);
        command.arg("--bind").arg(root.path()).args(["/", "--proc", "/proc", "--dev", "/dev", "/ledger"]);
        Self { root, command }
    }

    /// Two nested PID and user namespaces.
    fn nested() -> Self {
        let root = root();
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount", "--net", "--ipc", "--uts", "--cgroup", "sh", "-c"]);
        command.arg("mount -t proc proc \"$0/proc\" && exec chroot \"$0\" /ledger").arg(root.path());
        Self { root, command }
    }

    /// Files on an overlay, as in an image: the mapped files differ from those found by path.
    fn layered() -> Self {
        let root = root();
        let script = "mount -t tmpfs layers \"$0/upper\" && mkdir \"$0/upper/new\" \"$0/upper/work\" && \
             mount -t overlay -o lowerdir=\"$0\",upperdir=\"$0/upper/new\",workdir=\"$0/upper/work\" overlay /mnt && \
             mount -t proc proc /mnt/proc && exec chroot /mnt /ledger";
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount", "sh", "-c", script]).arg(root.path());
        Self { root, command }
    }

    fn start(&mut self) -> Ledger {
        Ledger::spawn_in(&mut self.command)
    }
}

/// A folder with the files that the ledger program needs, for use as its root.
fn root() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let needed = Command::new("ldd").arg(compile::ledger()).output().unwrap().stdout;
    let needed = String::from_utf8(needed).unwrap();
    let libraries = needed.split_whitespace().filter(|word| word.starts_with('/'));
    for path in libraries.map(Path::new) {
        let folder = root.path().join(path.parent().unwrap().strip_prefix("/").unwrap());
        fs::create_dir_all(&folder).unwrap();
        compile::copy(path, &folder);
    }
    compile::copy(compile::ledger(), root.path());
    for folder in ["proc", "dev", "upper"] {
        fs::create_dir(root.path().join(folder)).unwrap();
    }
    root
}

/// `-p`, threads that end, and the inner PID.
fn is_exact(mut container: Container) {
    let mut ledger = container.start();
    ledger.set_up("ending_threads");
    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("ending_threads");
    let recorded = ledger.accounts();
    let report = jjleak.interrupt().assert_done().report();

    assert_nothing_lost(&report);
    assert!(report.process.container_pid.is_some());
    // The program's accounting excludes the C library's own frees at the end of a thread.
    assert!(report.unknown_frees > 0);
    assert_eq!(report.notes["freed_by_c_library"], report.unknown_frees);
    assert_eq!(Accounts { unknown_frees: 0, ..Accounts::of(&report) }, recorded);
}

/// `--mmap`.
fn is_exact_with_mappings(mut container: Container) {
    let mut ledger = container.start();
    let options = ["--mmap", "--format", "json"];
    let jjleak = ledger.attach(&options);
    ledger.run("map");
    let report = jjleak.interrupt().assert_done().report();
    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
}

/// `--mmap`, after the process executes another program.
fn is_exact_with_mappings_after_exec(mut container: Container) {
    let mut ledger = container.start();
    let jjleak = ledger.attach(&["--mmap", "--format", "json"]);
    ledger.exec();
    ledger.run("map");
    let report = jjleak.interrupt().assert_done().report();
    // The loader also maps memory before the new program starts its accounting.
    let mut counted = Accounts::of(&report);
    counted.sites.retain(|site, _| site.starts_with("site_"));
    assert_eq!(counted, ledger.accounts());
    assert_eq!(report.notes["exec"], 1);
    assert_nothing_lost(&report);
}

/// `--follow`: a child, and the program that it executes, whose file is removed before the report.
fn children_are_followed(mut container: Container) {
    let mut ledger = container.start();
    let jjleak = ledger.attach(&["--follow", "--format", "json"]);
    ledger.run("malloc");
    let of_parent = ledger.accounts();
    ledger.fork();
    ledger.exec();
    ledger.run("calloc");
    fs::remove_file(container.root.path().join("ledger")).unwrap();
    let of_child = ledger.accounts();
    ledger.end_child();
    let parent = ledger.pid();
    let ended = jjleak.interrupt().assert_done();

    of_parent.assert_reported(&ended.report_on(parent));
    let report = ended.reports().into_iter().find(|report| report.process.pid != parent).unwrap();
    of_child.assert_reported(&report);
    assert_eq!(losses(&report), BTreeMap::new(), "{:#?}", ended.stderr);
}

/// `--name`: a running process, and a later one from the same files, which is accounted from its first allocation on.
fn is_found_by_name(mut container: Container) {
    let mut ledger = container.start();
    let jjleak = Jjleak::attached(["--name", "^ledger$", "--format", "json"]);
    ledger.open_accounts();
    ledger.run("malloc");
    let mut second = container.start();
    second.run("calloc");
    let ended = jjleak.interrupt().assert_done();

    for ledger in [&mut ledger, &mut second] {
        let report = ended.report_on(ledger.pid());
        ledger.accounts().assert_reported(&report);
        assert!(report.process.container_pid.is_some());
    }
}

/// The daemon: a profile on request, read from its history.
fn is_profiled_by_the_daemon(mut container: Container) {
    let place = Place::new("contained");
    let configuration = place.configure("", &place.served_on_request());
    let text = fs::read_to_string(&configuration).unwrap();
    let names =
        |line: &str| if line.starts_with("names = ") { "names = [\"^ledger$\"]" } else { line }.to_owned();
    fs::write(&configuration, text.lines().map(names).collect::<Vec<_>>().join("\n")).unwrap();
    let mut ledger = container.start();
    let daemon = place.start();
    let (head, _) = place.ask(&format!("POST /api/v1/processes/{}/profile", ledger.pid()));
    assert!(head.starts_with("HTTP/1.1 202 "), "{head}");
    // Counting has begun when there is a first profile.
    until(LONG, "a profile", || !daemon.profiles().is_empty());
    ledger.open_accounts();
    ledger.run("malloc");
    let recorded = ledger.accounts();
    daemon.end();

    let last = place.kept().pop().expect("a profile");
    let report = Ended::of(["report", "--format", "json", last.to_str().unwrap()]).assert_done().report();
    assert_eq!(report.process.pid, ledger.pid());
    let mut counted = Accounts::of(&report);
    counted.sites.retain(|site, _| site.starts_with("site_"));
    assert_eq!(counted.sites, recorded.sites);
    assert_nothing_lost(&report);
}

/// Tests that run in each kind of container.
macro_rules! in_containers {
    ($($kind:ident: $program:literal;)+) => {
        $(
            mod $kind {
                use super::*;

                #[test]
                fn a_process_is_exact_and_known_by_both_its_pids() {
                    require_program!($program);
                    is_exact(Container::$kind());
                }

                #[test]
                fn mappings_are_counted() {
                    require_program!($program);
                    is_exact_with_mappings(Container::$kind());
                }

                #[test]
                fn children_and_what_they_run_are_followed() {
                    require_program!($program);
                    children_are_followed(Container::$kind());
                }

                #[test]
                fn processes_are_found_by_name() {
                    require_program!($program);
                    is_found_by_name(Container::$kind());
                }

                #[test]
                fn the_daemon_profiles_a_process() {
                    require_program!($program);
                    is_profiled_by_the_daemon(Container::$kind());
                }
            }
        )+
    };
}

in_containers! {
    sandboxed: "bwrap";
    nested: "unshare";
}

#[test]
fn a_process_on_layers_of_files_is_exact() {
    require_program!("unshare");
    is_exact(Container::layered());
    is_exact_with_mappings(Container::layered());
}

#[test]
fn mappings_are_counted_after_exec() {
    require_program!("bwrap");
    for container in [Container::sandboxed(), Container::nested()] {
        is_exact_with_mappings_after_exec(container);
    }
}

#[test]
fn system_wide_has_processes_of_containers() {
    require_program!("bwrap");
    let mut container = Container::sandboxed();
    let mut ledger = container.start();

    let jjleak = Jjleak::attached(["--system-wide", "--max-processes", "1024", "--format", "json"]);
    ledger.open_accounts();
    ledger.run("malloc");
    let mut second = container.start();
    second.run("calloc");
    let ended = jjleak.interrupt().assert_done();

    for ledger in [&mut ledger, &mut second] {
        ledger.accounts().assert_reported(&ended.report_on(ledger.pid()));
    }
}

/// Runs a shell command, in which "$0" is jjleak, in a new PID namespace.
fn contained(script: &str) -> Ended {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, PROGRAM]);
    Jjleak::start(command).end()
}

#[test]
fn jjleak_in_a_container_says_whom_it_cannot_profile() {
    require_program!("unshare");
    let refused = [
        ("exec \"$0\" --system-wide", "following processes needs the host's PIDs"),
        (
            // The child of the inner unshare is the process in the inner namespace.
            "unshare --pid --fork --kill-child sleep 1000 & until pid=$(pgrep -x sleep); do :; done; exec \"$0\" -p $pid",
            "is in a nested PID namespace",
        ),
        ("umount -l /proc; exec \"$0\" -p 1", "/proc belongs to another PID namespace"),
    ];
    for (script, why) in refused {
        let ended = contained(script);

        assert_eq!(ended.status.code(), Some(3), "{script}: {:#?}", ended.stderr);
        assert!(ended.stderr.iter().any(|line| line.contains(why)), "{script}: {:#?}", ended.stderr);
    }
}
