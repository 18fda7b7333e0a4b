//! Processes that come and go while jjleak runs: none of their data stays.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::accounts::losses;
use crate::support::bounded::{self, LONG};
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::{is_long, require_bpf};
use crate::support::process::Process;
use crate::support::tables::InUse;

/// Number of successive processes, about a hundred per second.
const CHILDREN: u32 = 300;
const MANY_CHILDREN: u32 = 6000;

/// Memory for one reading of a full table, which the C library retains. In a long run, that is 6 KiB per process.
const MAX_GROWTH_KIB: u64 = 40 << 10;

/// Runs a program repeatedly, each time in a new process, until stopped.
struct Turnover {
    process: Process,
    stdout: Lines,
}

impl Turnover {
    fn start() -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "while read times; do i=0; while [ $i -lt $times ]; do $0 >/dev/null; i=$((i+1)); done; echo done; done"]);
        command.arg(compile::early()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let stdout = Lines::of("the shell", process.stdout.take().unwrap());
        Self { process, stdout }
    }

    fn begin(&mut self, times: u32) {
        use std::io::Write;
        writeln!(self.process.stdin.as_mut().unwrap(), "{times}").unwrap();
    }

    fn run(&mut self, times: u32) {
        self.begin(times);
        assert_eq!(self.stdout.next(LONG * 4), "done");
    }
}

/// Resident memory of a process in KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Waits until only one process is in the tables.
fn settle(jjleak: u32) -> InUse {
    let mut in_use = InUse::by(jjleak);
    bounded::until(LONG, "the end of all children's accounts", || {
        in_use = InUse::by(jjleak);
        in_use.processes == 1
    });
    in_use
}

fn turn_over(children: u32) -> Ended {
    let mut turnover = Turnover::start();
    let pid = turnover.process.id().to_string();
    // A ring buffer counts twice in jjleak's memory once it has wrapped.
    let small = ["--frame-buffer", "1048576"];
    let jjleak = Jjleak::attached(["-p", &pid, "--follow", "3600", "--format", "json"].iter().chain(&small));
    turnover.run(children / 3);
    let (before, memory) = (settle(jjleak.pid()), resident(jjleak.pid()));

    turnover.run(children);
    let after = settle(jjleak.pid());

    // The shell's own blocks come and go; one child has more than a thousand at its end.
    assert!(after.blocks < before.blocks + 500, "blocks stay: {after:?} after {before:?}");
    assert!(after.stacks < before.stacks + 100, "stacks stay: {after:?} after {before:?}");
    let grown = resident(jjleak.pid()).saturating_sub(memory);
    assert!(grown < MAX_GROWTH_KIB, "jjleak has grown by {grown} KiB");
    jjleak.interrupt().assert_done()
}

#[test]
fn processes_that_come_and_go_leave_nothing_behind() {
    require_bpf!();
    let children = if is_long() { MANY_CHILDREN } else { CHILDREN };

    let ended = turn_over(children);

    let reports = ended.reports();
    let of_children: Vec<_> = reports.iter().filter(|report| report.process.comm == "early").collect();
    let without_place = reports.last().unwrap().lost["process_table_full"];
    let expected = u64::from(children + children / 3);
    assert_eq!(of_children.len() as u64 + without_place, expected, "not every child has its report");
    println!("{without_place} of {expected} processes found no place");
    let first = of_children[0];
    for report in of_children {
        assert_eq!((report.live, report.allocated), (first.live, first.allocated));
        let names: Vec<_> = losses(report).into_keys().collect();
        assert!(names.is_empty() || names == ["process_table_full"], "{names:?}");
    }
}

#[test]
fn processes_that_come_and_go_leave_room_for_those_that_run() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::start_named(folder.path(), "jjleak-ran-before");
    let mut turnovers = [Turnover::start(), Turnover::start()];
    for turnover in &mut turnovers {
        turnover.begin(u32::MAX);
    }

    // While jjleak attaches, more processes begin than the table has room for.
    let options = ["--name", "/jjleak-ran-before$|/early", "--format", "json", "--max-processes", "8"];
    let jjleak = Jjleak::attached(options);
    ledger.open_accounts();
    ledger.run("malloc");
    let ended = jjleak.interrupt().assert_done();

    let report = ended.report_on(ledger.pid());
    assert_eq!(report.allocated, ledger.accounts().allocated());
    assert!(losses(&report).contains_key("process_table_full"), "there was room for all: {:?}", report.lost);
}

#[test]
fn everything_can_be_profiled_while_a_build_runs() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let sources = (0..20).map(|index| folder.path().join(format!("unit{index}.c")));
    for (index, path) in sources.enumerate() {
        fs::write(
            path,
            format!("#include <stdio.h>\nint unit{index}(void) {{ return puts(\"{index}\"); }}\n"),
        )
        .unwrap();
    }
    let build = |objects: &str| {
        let script = format!(
            "set -e; mkdir {objects}; for unit in *.c; do cc -O2 -c $unit -o {objects}/$unit.o; done"
        );
        let status =
            Command::new("/bin/sh").args(["-c", &script]).current_dir(folder.path()).status().unwrap();
        assert!(status.success(), "{status}");
    };
    build("alone");

    let jjleak = Jjleak::attached(["--system-wide", "1", "--format", "text"]);
    build("profiled");
    let in_use = InUse::by(jjleak.pid());
    let ended = jjleak.interrupt().assert_done();

    assert!(in_use.processes > 1, "nobody was profiled");
    assert!(ended.stdout.contains("too early to say what leaks"), "{}", ended.stdout);
    for index in 0..20 {
        let object =
            |folder_name: &str| fs::read(folder.path().join(folder_name).join(format!("unit{index}.c.o")));
        assert!(object("alone").unwrap() == object("profiled").unwrap(), "unit {index} is another one");
    }
}
