//! Every JDK in every mode and with every collector: stacks are whole, methods match the JVM's own stack walker, and bytes match
//! the program's accounting.

use std::fmt::Write;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;

use jjleak::render::json::Document;

use crate::jvm::code_changes::{assert_virtual, assert_ways};
use crate::jvm::methods::assert_as_the_jvm_says;
use crate::support::java::{Jdk, jdks};
use crate::support::privilege::{is_long, require, require_program};

/// Supported versions.
const VERSIONS: [u32; 4] = [11, 17, 21, 25];

/// Execution modes: the interpreter, only the first compiler, only the second, and all of them.
const MODES: [(&str, &[&str]); 4] = [
    ("`-Xint`", &["-Xint"]),
    ("`-XX:TieredStopAtLevel=1`", &["-XX:TieredStopAtLevel=1"]),
    ("`-XX:-TieredCompilation`", &["-XX:-TieredCompilation"]),
    ("no option", &[]),
];

/// Collectors differ in the barriers of compiled code, and in how they arm and discard such code.
const COLLECTORS: [(&str, &[&str]); 6] = [
    ("G1", &["-XX:+UseG1GC"]),
    ("Serial", &["-XX:+UseSerialGC"]),
    ("Parallel", &["-XX:+UseParallelGC"]),
    ("ZGC", &["-XX:+UnlockExperimentalVMOptions", "-XX:+UseZGC"]),
    ("ZGC, generational", &["-XX:+UseZGC", "-XX:+ZGenerational"]),
    ("Shenandoah", &["-XX:+UnlockExperimentalVMOptions", "-XX:+UseShenandoahGC"]),
];

/// Number of JVMs at once: each takes more than a gigabyte, and each waits for jjleak as long as jjleak waits for it.
const AT_ONCE: usize = 2;

/// The page in the repository.
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks/jdks.md");

/// The page on virtual threads.
const VIRTUAL_TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks/virtual-threads.md");

/// The oldest version that has them.
const VIRTUAL: u32 = 21;

/// Allocations, and those with a complete stack.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counted {
    pub(crate) all: u64,
    pub(crate) complete: u64,
}

impl Counted {
    fn of(reports: &[Document]) -> Self {
        let stacks = || reports.iter().flat_map(|report| &report.stacks);
        let complete = stacks().filter(|stack| stack.status == "complete");
        Self {
            all: stacks().map(|stack| stack.allocated.objects).sum(),
            complete: complete.map(|stack| stack.allocated.objects).sum(),
        }
    }

    /// Rounded down, so that only 100 % reads as 100 %.
    fn share(self) -> String {
        let hundredths = self.complete * 10_000 / self.all.max(1);
        match hundredths % 100 {
            0 => format!("{} %", hundredths / 100),
            rest => format!("{}.{rest:02} %", hundredths / 100),
        }
    }
}

/// One way to run a JVM, and its result: figures, or a panic's message.
struct Cell {
    mode: &'static str,
    collector: &'static str,
    outcome: Result<Counted, String>,
}

/// Runs both programs, and fails on any deviation.
fn measure(jdk: &Jdk, options: &[&str]) -> Counted {
    let reports = [assert_as_the_jvm_says(&jdk.java(), options), assert_ways(&jdk.java(), options)];
    let counted = Counted::of(&reports);
    assert!(counted.complete * 1000 >= counted.all * 999, "{counted:?} are complete");
    counted
}

/// Runs virtual threads, and fails unless every stack is right as far as it goes.
fn measure_virtual(jdk: &Jdk, options: &[&str]) -> Counted {
    assert_virtual(&jdk.java(), options)
}

/// A measurement of a JVM.
type Measure = fn(&Jdk, &[&str]) -> Counted;

fn cell(
    jdk: &Jdk,
    mode: (&'static str, &[&str]),
    collector: (&'static str, &[&str]),
    measure: Measure,
) -> Cell {
    let options = [mode.1, collector.1].concat();
    let outcome = catch_unwind(AssertUnwindSafe(|| measure(jdk, &options)));
    let outcome = outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
    });
    println!("{} {} {}: {outcome:?}", jdk.release, mode.0, collector.0);
    Cell { mode: mode.0, collector: collector.0, outcome }
}

/// All cells of a JDK, or a single one that stands for them.
fn cells(jdk: &Jdk, measure: Measure) -> Vec<Cell> {
    if !is_long() {
        return vec![cell(jdk, MODES[3], COLLECTORS[0], measure)];
    }
    let collectors: Vec<_> = COLLECTORS.into_iter().filter(|(_, options)| jdk.takes(options)).collect();
    let ways = MODES.iter().flat_map(|mode| collectors.iter().map(move |collector| (*mode, *collector)));
    ways.map(|(mode, collector)| cell(jdk, mode, collector, measure)).collect()
}

/// Text of the page, from the results of all cells.
fn page(head: &str, measured: &[(Jdk, Vec<Cell>)]) -> String {
    let mut page = head.to_owned();
    let names = COLLECTORS.map(|(name, _)| name);
    writeln!(page, "\n| JDK | mode | {} |\n|---|---|{}", names.join(" | "), "---|".repeat(names.len()))
        .unwrap();
    for (jdk, cells) in measured {
        for (mode, _) in MODES {
            write!(page, "| {} | {mode} |", jdk.release).unwrap();
            for collector in names {
                let cell = cells.iter().find(|cell| (cell.mode, cell.collector) == (mode, collector));
                let counted = cell.and_then(|cell| cell.outcome.as_ref().ok());
                let said = counted
                    .map_or("-".to_owned(), |counted| format!("{} of {}", counted.share(), counted.all));
                write!(page, " {said} |").unwrap();
            }
            writeln!(page).unwrap();
        }
    }
    page
}

const HEAD: &str = "\
# Java stacks, by JDK

Two programs take native memory in the ways that [Java](../jvm.md) lists. Of each allocation: whether its stack is complete.
Of each call site: whether its methods, inlined ones included, and their lines are the ones that the JVM's own `StackWalker`
names, and whether bytes and objects are the ones that the program has recorded. A cell says how many of the allocations have a
complete stack; it stands here only if all the rest is equal. `-`: this JDK has no such collector.

Stacks of virtual threads have [a page of their own](virtual-threads.md).

`cargo xtask jdks` fetches the JDKs, and writes this page anew. It takes half an hour.
";

const VIRTUAL_HEAD: &str = "\
# Stacks of virtual threads, by JDK

Of a program whose virtual threads wait, while garbage is collected all the time, and allocate before and after: how many of the
allocations have a complete stack. Of all of them, methods and lines are the ones that the JVM's own `StackWalker` names, as far as
the stack goes: those that are not complete end where the next frame is in the Java heap, and say so ([Java](../jvm.md)). `-`: this JDK
has no such collector.

`cargo xtask jdks` fetches the JDKs, and writes this page anew.
";

/// Measures all JDKs from this version on, and writes the page if requested.
fn measure_all(oldest: u32, measure: Measure, head: &str, table: &str) {
    // A single version takes minutes, too, and can be selected.
    let only: Option<u32> = std::env::var("JJLEAK_JDK").ok().map(|version| version.parse().unwrap());
    let is_wanted = |version: u32| version >= oldest && only.is_none_or(|only| only == version);
    let jdks: Vec<_> = jdks().into_iter().filter(|jdk| is_wanted(jdk.version)).collect();
    let is_there = |version| jdks.iter().any(|jdk| jdk.version == version);
    let lacking = VERSIONS.into_iter().find(|version| is_wanted(*version) && !is_there(*version));
    let lack = || lacking.filter(|_| is_long()).map(|version| format!("JDK {version} is not installed"));
    require!(lack());

    let mut measured = Vec::new();
    for jdks in jdks.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let cells_of = |jdk: &Jdk| (jdk.clone(), cells(jdk, measure));
            let threads: Vec<_> = jdks.iter().map(|jdk| scope.spawn(move || cells_of(jdk))).collect();
            measured.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        });
    }

    let cells = || measured.iter().flat_map(|(jdk, cells)| cells.iter().map(move |cell| (jdk, cell)));
    let failed: Vec<_> = cells()
        .filter_map(|(jdk, cell)| {
            Some((&jdk.release, cell.mode, cell.collector, cell.outcome.as_ref().err()?))
        })
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    if only.is_none() && is_long() && std::env::var("JJLEAK_KEEP_JDKS").is_ok_and(|value| value == "1") {
        fs::write(Path::new(table), page(head, &measured)).unwrap();
    }
}

#[test]
fn every_jdk_says_the_same_in_every_mode_and_with_every_collector() {
    require_program!("javac");
    measure_all(VERSIONS[0], measure, HEAD, TABLE);
}

#[test]
fn virtual_threads_have_right_callers_or_none_with_every_collector() {
    require_program!("javac");
    measure_all(VIRTUAL, measure_virtual, VIRTUAL_HEAD, VIRTUAL_TABLE);
}
