//! JVMs: stacks through interpreted and compiled Java code are complete, with no option and no agent, and match the program's
//! own stack walker.

use std::fs;
use std::path::Path;
use std::process::Command;

use jjleak::render::json::{Document, StackDocument, TotalsDocument};

use crate::support::accounts::assert_nothing_lost;
use crate::support::java::{Java, Jdk, Sites, classes, java_frames, jdks, live_by_size, size_of};
use crate::support::jjleak::Jjleak;
use crate::support::privilege::{is_long, require_program};

fn installed() -> &'static Path {
    Path::new("java")
}

/// Profiles the program and compares. Returns the report.
pub(crate) fn assert_as_the_jvm_says(java: &Path, options: &[&str]) -> Document {
    let rounds = if options.contains(&"-Xint") { 100 } else { ROUNDS };
    assert_as_it_says(Java::start(java, &[&["-Xbatch"], options].concat()), rounds)
}

/// Enough rounds for the JVM to compile everything that it will compile. Compilation in the foreground (`-Xbatch`) ensures that
/// no code is compiled afterwards.
pub(crate) const ROUNDS: u32 = 20_000;

/// Profiles the program after this number of rounds, and compares. Returns the report.
pub(crate) fn assert_as_it_says(mut java: Java, rounds: u32) -> Document {
    for what in ["warm", "leak", "warm", "leak"] {
        java.ask(&format!("{what} {rounds}"));
    }
    let before = java.accounts();
    let jjleak = java.attach();
    java.ask("leak 500");
    let mut sites = java.accounts();
    for (size, site) in &mut sites {
        site.objects -= before[size].objects;
    }
    let report = jjleak.interrupt().assert_done().report();

    assert_as_recorded(&report, &sites);
    report
}

/// Fails unless the report matches the program's record of each site.
pub(crate) fn assert_as_recorded(report: &Document, sites: &Sites) {
    assert_nothing_lost(report);
    assert_eq!(report.process.kind, "jvm");
    assert_eq!(sites.len(), 9, "{:?}", sites.keys());
    assert_sum(report, sites);
    let (complete, all) = assert_paths(report, sites);
    assert_eq!(complete, all, "blocks without a complete stack: {:#?}", incomplete(report));
    let live = live_by_size(report, sites);
    for (size, site) in sites {
        assert_eq!(live.get(size), Some(&site.objects), "site {size}: {:#?}", report.stacks);
    }
}

/// Fails unless all sites together have the bytes and objects of the program's accounting.
fn assert_sum(report: &Document, sites: &Sites) {
    let objects = sites.values().map(|site| site.objects).sum();
    let bytes = sites.iter().map(|(size, site)| size * site.objects).sum();
    assert_eq!(report.live, TotalsDocument { bytes, objects }, "{:#?}", report.stacks);
}

fn incomplete(report: &Document) -> Vec<&StackDocument> {
    report.stacks.iter().filter(|stack| stack.status != "complete").collect()
}

/// Fails unless every complete stack of a site has its call path, with lines. Returns the number of blocks with a complete
/// stack, and of all blocks.
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

/// Options that change the layout of code, objects and frames.
const LAYOUTS: [&[&str]; 9] = [
    &["-XX:-SegmentedCodeCache"],
    &["-XX:+SegmentedCodeCache", "-XX:ReservedCodeCacheSize=20m"],
    &["-XX:-UseCompressedOops"],
    &["-XX:-UseCompressedClassPointers"],
    &["-XX:+UseCompactObjectHeaders"],
    &["-XX:+PreserveFramePointer"],
    &["-XX:+UseTransparentHugePages"],
    &["-Xshare:off"],
    &["-XX:+UnlockDiagnosticVMOptions", "-XX:+DebugNonSafepoints"],
];

#[test]
fn frames_are_the_same_however_code_and_objects_are_laid_out() {
    require_program!("javac");
    for jdk in newest_or_all() {
        for options in LAYOUTS.into_iter().filter(|options| jdk.takes(options)) {
            println!("{} {options:?}", jdk.release);
            assert_as_the_jvm_says(&jdk.java(), options);
        }
    }
}

/// All JDKs in long runs; otherwise the newest installed one, which knows most of the options.
fn newest_or_all() -> Vec<Jdk> {
    let jdks = jdks();
    let first = if is_long() { 0 } else { jdks.len().saturating_sub(1) };
    jdks.into_iter().skip(first).collect()
}

#[test]
fn code_that_is_compiled_while_it_is_profiled_is_followed() {
    require_program!("javac");
    let mut java = Java::start(installed(), &[]);
    let jjleak = java.attach();
    java.ask("leak 20000");
    let sites = java.accounts();
    let report = jjleak.interrupt().assert_done().report();

    assert_nothing_lost(&report);
    assert_sum(&report, &sites);
    let (complete, all) = assert_paths(&report, &sites);
    assert_eq!(complete, all, "blocks without a complete stack: {:#?}", incomplete(&report));
}

#[test]
fn a_flame_graph_goes_from_malloc_through_java_and_its_lines_to_the_start_of_the_thread() {
    const PATH: [&str; 4] =
        ["LeakUnsafe.leakOnce:7", "LeakUnsafe.middle:11", "LeakUnsafe.work:16", "LeakUnsafe.main:28"];
    const KINDS: [(&str, &str); 5] = [
        ("native", "malloc"),
        ("jvm", "Unsafe_AllocateMemory0"),
        ("java", "LeakUnsafe.main"),
        ("java_inlined", "LeakUnsafe.middle"),
        ("jvm_generated", "StubRoutines (1)"),
    ];
    require_program!("javac");
    let mut java =
        Java::spawn(Command::new("java").args(["-Xbatch", "-cp"]).arg(classes()).arg("LeakUnsafe"));
    for _ in 0..3 {
        java.ask("leak 50000");
    }
    let pid = java.pid().to_string();
    let arguments = ["-p", &pid, "3600", "--format", "json,svg", "-z", "1024", "-Z", "1024"];
    let jjleak = Jjleak::attached(arguments);
    java.ask("leak 5000");
    let ended = jjleak.interrupt().assert_done();
    let (report, svg) =
        (ended.report(), fs::read_to_string(ended.file(&format!("jjleak-{pid}.svg"))).unwrap());

    let leaks =
        || report.stacks.iter().filter(|stack| java_frames(stack).iter().any(|frame| frame == PATH[0]));
    assert_eq!(leaks().map(|stack| stack.live.objects).sum::<u64>(), 5000, "{:#?}", report.stacks);
    for stack in leaks() {
        assert_eq!((&*stack.status, &*stack.frames[0].symbol), ("complete", "malloc"));
        assert!(java_frames(stack).ends_with(&PATH.map(str::to_owned)), "{stack:#?}");
        assert!(stack.frames.iter().any(|frame| frame.symbol == "start_thread"), "{stack:#?}");
    }
    for (kind, symbol) in KINDS {
        let is_it = |stack: &StackDocument| {
            stack.frames.iter().any(|frame| (&*frame.kind, &*frame.symbol) == (kind, symbol))
        };
        assert!(leaks().any(is_it), "no {symbol} of kind {kind}: {:#?}", leaks().collect::<Vec<_>>());
    }
    for text in
        ["<title>LeakUnsafe.middle (", "; LeakUnsafe.java:11)</title>", ">Java, inlined<", ">JVM, generated<"]
    {
        assert!(svg.contains(text), "no {text}");
    }
}
