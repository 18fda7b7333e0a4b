//! Files that nobody maps any more leave their place in the unwind tables to others.

use std::path::Path;

use jjleak::processes::{Mapping, Module, ModuleFiles, ModuleTable, Pid};
use jjleak::render::json::Document;
use jjleak::unwind;

use crate::support::books::assert_nothing_lost;
use crate::support::jjleak::Jjleak;
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;

/// The program that is there all the time.
const LASTING: &str = "jjleak-lasting";
/// So many programs find room beside what lasts.
const ROOM: usize = 4;
/// Far more than that.
const PROGRAMS: usize = 25;

/// Rows of what a process maps, and of its program alone.
fn rows(ledger: &Ledger) -> (usize, usize) {
    let (mut files, mut modules) = (ModuleFiles::default(), ModuleTable::default());
    let pid = Pid::new(ledger.pid()).unwrap();
    modules.refresh(&mut files, pid, &Mapping::all(pid).unwrap());
    let of_module = |module: &Module| unwind::compile(&module.parts().unwrap()).unwrap().rows().len();
    let is_program = |module: &Module| module.path.file_name().unwrap() == LASTING;
    let counts: Vec<_> = modules.iter().map(|(_, module)| (of_module(module), is_program(module))).collect();
    let program = counts.iter().filter(|(_, is_program)| *is_program).map(|(count, _)| count).sum();
    (counts.iter().map(|(count, _)| count).sum(), program)
}

/// Starts a program, has it allocate when jjleak has looked at it, and once more then.
fn play(jjleak: &mut Jjleak, folder: &Path, name: &str) -> Ledger {
    let mut ledger = Ledger::start_named(folder, name);
    // By this, jjleak is told of it, if it does not know of it already.
    ledger.run("calloc");
    jjleak.wait_for(&format!(" INFO stacks lead through {}", folder.join(name).display()));
    ledger.run("malloc");
    ledger
}

/// Objects that were allocated with `malloc`, of whole stacks.
fn whole(report: &Document) -> u64 {
    let stacks = report.stacks.iter().filter(|stack| stack.status == "complete");
    let of_malloc = stacks.filter(|stack| stack.frames.iter().any(|frame| frame.symbol == "site_malloc"));
    of_malloc.map(|stack| stack.allocated.objects).sum()
}

#[test]
fn programs_that_come_and_go_have_whole_stacks_however_many_there_were_before() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let mut lasting = Ledger::start_named(folder.path(), LASTING);
    let (all, program) = rows(&lasting);
    // The kernel's own library has some rows, too.
    let room = (all + ROOM * program + program / 2).to_string();
    let options = ["--name", "/jjleak-(unmapped-[0-9]+|lasting)$", "--format", "json", "-v"];
    let mut jjleak = Jjleak::attached(options.iter().chain(&["--unwind-rows", &room]));
    lasting.open_books();

    let mut ended = Vec::new();
    // The first ones once more, when their place has gone to others.
    for index in (0..PROGRAMS).chain([0, 1]) {
        let mut ledger = play(&mut jjleak, folder.path(), &format!("jjleak-unmapped-{index}"));
        lasting.run("malloc");
        ended.push((ledger.pid(), ledger.books().sites["site_malloc"].allocated_objects));
        ledger.exit(0);
    }
    let report = jjleak.interrupt().assert_done();

    for (pid, expected) in ended {
        let report = report.report_on(pid);
        assert_eq!(whole(&report), expected, "{report:#?}");
        assert_nothing_lost(&report);
    }
    let of_lasting = report.report_on(lasting.pid());
    lasting.books().assert_reported(&of_lasting);
    assert_nothing_lost(&of_lasting);
    assert!(of_lasting.stacks.iter().all(|stack| stack.status == "complete"));
}
