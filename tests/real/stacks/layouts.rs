//! Stacks match gdb for all layouts of a file that linkers and `patchelf` create.
//!
//! LLD, mold, gold and bfd lay out segments in different ways: each on its own pages, or several in one page of the file; code
//! after data in one segment, or in several segments. `patchelf` moves them again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::stacks::against_gdb::{Fixture, LIBRARY_SHAPES, SHAPES, assert_as_in_gdb, assert_shapes};
use crate::support::accounts::assert_nothing_lost;
use crate::support::compile;
use crate::support::jjleak::Ended;
use crate::support::oracle::Stacks;
use crate::support::privilege::{is_long, require_bpf, require_program};

/// Number of programs at a time; a test run has other tests beside this one.
const WORKERS: usize = 2;

const PIE: &[&str] = &["-pie", "-fPIE", "-Wl,-z,lazy"];
const FIXED: &[&str] = &["-no-pie", "-Wl,-z,lazy"];
const STATIC: &[&str] = &["-static", "-no-pie", "-DSTATIC"];
const STATIC_PIE: &[&str] = &["-static-pie", "-fPIE", "-DSTATIC"];

const BFD: &str = "-fuse-ld=bfd";
const GOLD: &str = "-fuse-ld=gold";
const LLD: &str = "-fuse-ld=lld";
const MOLD: &str = "-fuse-ld=mold";

/// Change of a linked file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Nothing.
    Run,
    /// `patchelf` makes room for a long run path.
    RunPath,
    /// `patchelf` makes room for the path of another interpreter.
    Interpreter,
    /// Names and lines move to a separate debug file, whose program headers have other offsets.
    Split,
}

/// A way to build the program.
struct Way {
    linker: &'static str,
    kind: &'static [&'static str],
    options: &'static [&'static str],
    then: Then,
}

const fn way(linker: &'static str, kind: &'static [&'static str]) -> Way {
    Way { linker, kind, options: &[], then: Then::Run }
}

impl Way {
    const fn options(self, options: &'static [&'static str]) -> Self {
        Self { options, ..self }
    }

    const fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }
}

/// The most distinct ways.
const WAYS: [Way; 21] = [
    way(BFD, FIXED),
    way(BFD, STATIC_PIE),
    way(BFD, PIE).options(&["-Wl,-z,noseparate-code"]),
    way(BFD, PIE).then(Then::RunPath),
    way(GOLD, PIE),
    way(GOLD, FIXED).then(Then::Interpreter),
    way(GOLD, STATIC),
    way(LLD, PIE),
    way(LLD, FIXED),
    way(LLD, STATIC),
    way(LLD, STATIC_PIE),
    way(LLD, PIE).options(&["-Wl,-z,separate-loadable-segments"]),
    way(LLD, PIE).options(&["-Wl,--no-rosegment"]),
    // `main` in a separate segment, far away.
    way(LLD, FIXED)
        .options(&["-Wl,-z,keep-text-section-prefix", "-Wl,--section-start=.text.startup=0x2000000"]),
    way(LLD, PIE).then(Then::RunPath),
    way(LLD, FIXED).then(Then::Interpreter),
    way(LLD, PIE).then(Then::Split),
    way(MOLD, PIE),
    way(MOLD, STATIC),
    way(MOLD, PIE).then(Then::RunPath),
    way(MOLD, FIXED).then(Then::Split),
];

/// All other ways, for long runs only.
fn further_ways() -> Vec<Way> {
    let mut ways = vec![way(GOLD, PIE).options(&["-Wl,-z,text-unlikely-segment"])];
    for linker in [BFD, GOLD, LLD, MOLD] {
        for kind in [PIE, FIXED, STATIC, STATIC_PIE] {
            // Debian 12's gold does not know the option that gcc uses for this.
            if linker == GOLD && kind == STATIC_PIE {
                continue;
            }
            let options: &[&[&str]] = match linker {
                BFD | MOLD => &[&["-Wl,-z,separate-code"], &["-Wl,-z,noseparate-code"]],
                LLD => &[
                    &["-Wl,-z,separate-code"],
                    &["-Wl,-z,noseparate-code"],
                    &["-Wl,-z,separate-loadable-segments"],
                ],
                _ => &[&[]],
            };
            for options in options {
                let then: &[Then] = if [STATIC, STATIC_PIE].contains(&kind) {
                    &[Then::Run, Then::Split]
                } else {
                    &[Then::Run, Then::RunPath, Then::Interpreter, Then::Split]
                };
                ways.extend(then.iter().map(|then| way(linker, kind).options(options).then(*then)));
            }
        }
    }
    ways
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

impl Way {
    /// Builds the program as number `index`; in the folder if it is changed after linking.
    fn build(&self, index: usize, folder: &Path) -> PathBuf {
        let flags = [&[self.linker], self.kind, self.options].concat();
        let linked = compile::stacks_linked(&format!("{index}"), &flags);
        if self.then == Then::Run {
            return linked;
        }
        let folder = folder.join(index.to_string());
        fs::create_dir(&folder).unwrap();
        let program = compile::copy(&linked, &folder);
        let path = program.to_str().unwrap();
        match self.then {
            Then::Run => {}
            Then::RunPath => {
                run("patchelf", &["--set-rpath", &format!("/{}", "long/".repeat(300)), path]);
            }
            Then::Interpreter => {
                let dots = "/.".repeat(100);
                run("patchelf", &["--set-interpreter", &format!("{dots}/lib64/ld-linux-x86-64.so.2"), path]);
            }
            Then::Split => {
                let debug = format!("{path}.debug");
                run("objcopy", &["--only-keep-debug", path, &debug]);
                run("strip", &[path]);
                run("objcopy", &[&format!("--add-gnu-debuglink={debug}"), path]);
            }
        }
        program
    }

    fn name(&self) -> String {
        format!("{} {:?} {:?} {:?}", self.linker, self.kind, self.options, self.then)
    }

    /// Builds the program, and runs it under gdb.
    fn prepare(&self, index: usize, folder: &Path) -> (Fixture, Stacks) {
        let program = self.build(index, folder);
        let is_static = self.kind.contains(&"-DSTATIC");
        let fixture = if is_static { Fixture::alone(program) } else { Fixture::with_library(program) };
        let by_gdb = fixture.under_gdb();
        assert_shapes(&by_gdb, SHAPES);
        if !is_static {
            assert_shapes(&by_gdb, LIBRARY_SHAPES);
        }
        (fixture, by_gdb)
    }

    fn assert_as_in_gdb(&self, fixture: &Fixture, by_gdb: &Stacks) {
        let ended = fixture.under_jjleak();
        assert_as_in_gdb(&self.name(), by_gdb, &ended);
        assert_named(&self.name(), &ended);
    }
}

/// Fails unless the allocation in `compare` has its name and its line.
fn assert_named(name: &str, ended: &Ended) {
    let source = include_str!("../../fixtures/stacks/stacks.c");
    let line =
        source.lines().zip(1..).find_map(|(line, number)| line.contains("ALLOCATE(1001)").then_some(number));
    let report = ended.report();
    let mut stacks =
        report.stacks.iter().filter(|stack| stack.allocated.bytes == stack.allocated.objects * 1001);
    let caller = &stacks.next().unwrap().frames[1];
    assert_eq!((caller.symbol.as_str(), Some(caller.line)), ("compare", line), "{name}: {caller:?}");
    assert!(caller.file.ends_with("stacks.c"), "{name}: {caller:?}");
}

/// Calls `work` for each of `items`, several at a time.
fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(index, item)));
        }
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// All programs run under gdb first: at the place of a probe, the kernel takes gdb's breakpoint for its own, in any process.
fn assert_all_as_in_gdb(ways: &[Way]) {
    let folder = tempfile::tempdir().unwrap();
    let prepared = each(ways, |index, way| way.prepare(index, folder.path()));
    let all: Vec<_> = ways.iter().zip(prepared).collect();
    each(&all, |_, (way, (fixture, by_gdb))| way.assert_as_in_gdb(fixture, by_gdb));
}

#[test]
fn stacks_are_as_in_gdb_however_the_program_is_laid_out() {
    require_program!("gdb");
    for program in ["ld.lld", "mold", "patchelf"] {
        crate::support::privilege::require!(crate::support::privilege::lack_of_program(program));
    }
    assert_all_as_in_gdb(&WAYS);
    if is_long() {
        assert_all_as_in_gdb(&further_ways());
    }
}

/// Since 1.90, rustc links with LLD by default.
#[test]
fn a_program_in_rust_is_complete_and_has_its_lines() {
    require_bpf!();
    let program = compile::rust_hello().to_str().unwrap();

    let report = Ended::of(["--format", "json", "--", program]).assert_done().report();

    assert_nothing_lost(&report);
    let incomplete: Vec<_> = report.stacks.iter().filter(|stack| stack.status != "complete").collect();
    assert!(incomplete.is_empty(), "{incomplete:#?}");
    let values = report.stacks.iter().filter(|stack| stack.live.objects == 100).collect::<Vec<_>>();
    let [values] = values[..] else { panic!("{:#?}", report.stacks) };
    let source = include_str!("../../fixtures/hello.rs");
    for (function, text) in [("fill", "map.insert"), ("main", "    fill(")] {
        let line = source.lines().zip(1..).find_map(|(line, number)| line.contains(text).then_some(number));
        let is_there = values.frames.iter().any(|frame| {
            frame.symbol.contains(function) && frame.file.ends_with("hello.rs") && Some(frame.line) == line
        });
        assert!(is_there, "{function}:{line:?} is not in {:#?}", values.frames);
    }
    assert_eq!(values.frames.last().map(|frame| frame.symbol.as_str()), Some("_start"));
}

#[test]
fn functions_of_rust_have_their_modules_also_with_line_tables_alone() {
    require_bpf!();
    for program in [compile::rust_hello(), compile::rust_hello_with_lines_alone()] {
        let report = Ended::of(["--format", "json", "--", program.to_str().unwrap()]).assert_done().report();
        let values = report.stacks.iter().find(|stack| stack.live.objects == 100).unwrap();
        let of_source = values.frames.iter().filter(|frame| frame.file.ends_with("hello.rs"));
        let functions: Vec<_> = of_source.map(|frame| frame.symbol.as_str()).collect();
        assert_eq!(functions, ["hello::fill", "hello::main"], "{program:?}: {:#?}", values.frames);
    }
}
