//! JVMs: stacks lead through interpreted and compiled Java code, with no option and no agent, and say what the program's
//! own stack walker says.

use std::path::Path;

use jjleak::render::json::{Document, TotalsDocument};

use crate::support::books::assert_nothing_lost;
use crate::support::java::{Java, Sites, java_frames, live_by_size, size_of};
use crate::support::privilege::require_program;

fn installed() -> &'static Path {
    Path::new("java")
}

/// Profiles the program, and compares. The report.
pub(crate) fn assert_as_the_jvm_says(java: &Path, options: &[&str]) -> Document {
    let rounds = if options.contains(&"-Xint") { 100 } else { ROUNDS };
    assert_as_it_says(Java::start(java, &[&["-Xbatch"], options].concat()), rounds)
}

/// So many that all is compiled that will be. Compilation in the foreground (`-Xbatch`) makes sure that no more code is
/// compiled afterwards.
pub(crate) const ROUNDS: u32 = 20_000;

/// Profiles the program when it has done its work so many times before, and compares. The report.
pub(crate) fn assert_as_it_says(mut java: Java, rounds: u32) -> Document {
    for what in ["warm", "leak", "warm", "leak"] {
        java.ask(&format!("{what} {rounds}"));
    }
    let before = java.books();
    let jjleak = java.attach();
    java.ask("leak 500");
    let mut sites = java.books();
    for (size, site) in &mut sites {
        site.objects -= before[size].objects;
    }
    let report = jjleak.interrupt().assert_done().report();

    assert_as_booked(&report, &sites);
    report
}

/// Fails unless the report says of each site what the program says.
pub(crate) fn assert_as_booked(report: &Document, sites: &Sites) {
    assert_nothing_lost(report);
    assert_eq!(report.process.kind, "jvm");
    assert_eq!(sites.len(), 9, "{:?}", sites.keys());
    assert_sum(report, sites);
    let (complete, all) = assert_paths(report, sites);
    assert_eq!(complete, all, "blocks without a complete stack");
    let live = live_by_size(report, sites);
    for (size, site) in sites {
        assert_eq!(live[size], site.objects, "site {size}");
    }
}

/// Fails unless all sites together have the bytes and objects that the program has booked.
fn assert_sum(report: &Document, sites: &Sites) {
    let objects = sites.values().map(|site| site.objects).sum();
    let bytes = sites.iter().map(|(size, site)| size * site.objects).sum();
    assert_eq!(report.live, TotalsDocument { bytes, objects });
}

/// Fails unless every complete stack of a site has its call path, with lines. Blocks with a complete stack, and all.
fn assert_paths(report: &Document, sites: &Sites) -> (u64, u64) {
    let mut complete = 0;
    for stack in report.stacks.iter().filter(|stack| stack.status == "complete" && stack.live.objects > 0) {
        complete += stack.live.objects;
        let site = size_of(stack).and_then(|size| sites.get(&size)).unwrap_or_else(|| panic!("{stack:#?}"));
        let frames = java_frames(stack);
        let allocator = frames.len().saturating_sub(site.path.len());
        let outer: Vec<_> = frames.iter().skip(allocator).collect();
        assert_eq!(outer, site.path.iter().collect::<Vec<_>>(), "{stack:#?}");
        let inner = &frames[..allocator];
        assert!(inner.iter().all(|frame| frame.contains("Unsafe.allocateMemory")), "{inner:#?}");
        let last = &stack.frames.last().unwrap().symbol;
        assert!(last.contains("clone") || last.contains("start"), "ends at {last}");
    }
    (complete, report.live.objects)
}

#[test]
fn interpreted_frames_are_as_the_jvm_says() {
    require_program!("javac");
    assert_as_the_jvm_says(installed(), &["-Xint"]);
}

#[test]
fn frames_of_the_first_compiler_are_as_the_jvm_says() {
    require_program!("javac");
    assert_as_the_jvm_says(installed(), &["-XX:TieredStopAtLevel=1"]);
}

#[test]
fn frames_of_the_second_compiler_are_as_the_jvm_says() {
    require_program!("javac");
    assert_as_the_jvm_says(installed(), &["-XX:-TieredCompilation"]);
}

#[test]
fn frames_of_both_compilers_are_as_the_jvm_says() {
    require_program!("javac");
    assert_as_the_jvm_says(installed(), &[]);
}

#[test]
fn frames_are_the_same_with_each_collector() {
    require_program!("javac");
    for collector in ["-XX:+UseSerialGC", "-XX:+UseParallelGC", "-XX:+UseZGC"] {
        assert_as_the_jvm_says(installed(), &[collector]);
    }
}

#[test]
fn code_that_is_compiled_while_it_is_profiled_is_followed() {
    require_program!("javac");
    let mut java = Java::start(installed(), &[]);
    let jjleak = java.attach();
    java.ask("leak 20000");
    let sites = java.books();
    let report = jjleak.interrupt().assert_done().report();

    assert_nothing_lost(&report);
    assert_sum(&report, &sites);
    let (complete, all) = assert_paths(&report, &sites);
    assert_eq!(complete, all, "blocks without a complete stack");
}
