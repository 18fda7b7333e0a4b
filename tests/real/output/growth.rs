//! `jjleak growth`: resident pages belong to the stack that touched them, and to nobody else.

use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};

use jjleak::render::json::Document;

use crate::support::bounded::SOON;
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak};
use crate::support::lines::Lines;
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

const PAGE: u64 = 4096;

/// A program that touches memory as it is told to.
struct Touching {
    process: Process,
    said: Lines,
    stdin: ChildStdin,
}

impl Touching {
    fn start() -> Self {
        let mut command = Command::new(compile::touched());
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut said = Lines::of("the touching program", process.stdout.take().unwrap());
        assert_eq!(said.next(SOON), "ready");
        let stdin = process.stdin.take().unwrap();
        Self { process, said, stdin }
    }

    fn obey(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
        assert_eq!(self.said.next(SOON), "done");
    }

    /// The report on what these commands make resident.
    fn report_on(&mut self, commands: &[&str]) -> Document {
        let pid = self.process.id().to_string();
        let jjleak = Jjleak::attached(["growth", "-p", &pid, "--format", "json", "60"]);
        for command in commands {
            self.obey(command);
        }
        let ended: Ended = jjleak.interrupt().assert_done();
        ended.report()
    }
}

/// Resident pages by a function, or by the kernel, in anonymous memory.
fn pages_by(report: &Document, function: &str) -> u64 {
    let stacks = report.stacks.iter().filter(|stack| {
        let names: Vec<_> = stack.frames.iter().map(|frame| frame.symbol.as_str()).collect();
        names.first() == Some(&"anonymous memory") && names.contains(&function)
    });
    let bytes: u64 = stacks.map(|stack| stack.live.bytes).sum();
    assert!(bytes.is_multiple_of(PAGE), "{bytes}");
    bytes / PAGE
}

fn assert_nothing_lost(report: &Document) {
    assert!(report.lost.values().all(|count| *count == 0), "{:?}", report.lost);
}

#[test]
fn pages_belong_to_the_function_that_touched_them_as_long_as_they_are_resident() {
    require_bpf!();
    let mut touching = Touching::start();
    touching.obey("touch 500");

    let report =
        touching.report_on(&["touch 1000", "release", "look 300", "fill 200", "populate 128", "huge 2"]);

    assert_eq!(report.source, "growth");
    assert_nothing_lost(&report);
    assert_eq!(
        pages_by(&report, "touch_pages"),
        500,
        "those of before do not count, nor those that were given back"
    );
    assert_eq!(pages_by(&report, "look_at_pages"), 0, "the page of zeros is not the program's");
    assert_eq!(pages_by(&report, "fill_pages"), 200, "the kernel touches them for the program");
    assert_eq!(pages_by(&report, "[filled by the kernel]"), 128);
    assert_eq!(pages_by(&report, "touch_huge_pages"), 2 * 512);
}

#[test]
fn pages_that_are_moved_belong_to_the_function_that_touched_them() {
    require_bpf!();
    let mut touching = Touching::start();
    touching.obey("touch 300");

    // Where the size is of whole huge pages, the kernel looks for more room, and aligns the address.
    let report = touching.report_on(&["move 400", "touch 200", "move 500", "move 102400", "release"]);

    assert_nothing_lost(&report);
    assert_eq!(pages_by(&report, "touch_pages"), 100, "half of those that were touched since");
    assert_eq!(pages_by(&report, "[filled by the kernel]"), 0);
}

#[test]
fn copies_after_a_fork_are_no_growth() {
    require_bpf!();
    let mut touching = Touching::start();
    touching.obey("touch 300");

    let report = touching.report_on(&["fork", "touch 200", "fork"]);

    assert_nothing_lost(&report);
    assert_eq!(pages_by(&report, "touch_pages"), 200);
    assert_eq!(pages_by(&report, "copy_pages"), 0);
}

#[test]
fn a_program_that_touches_what_it_had_does_not_grow() {
    require_bpf!();
    let mut touching = Touching::start();
    touching.obey("touch 500");
    touching.obey("release");

    let report = touching.report_on(&["look 10"]);

    assert_eq!(pages_by(&report, "touch_pages"), 0);
}

#[test]
fn options_about_allocations_are_refused() {
    let ended = Ended::of(["growth", "-p", "1", "--min-size", "64"]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(
        ended.stderr.iter().any(|line| line.contains("--min-size is about allocations")),
        "{:?}",
        ended.stderr
    );
}
