//! JVMs that are attached to before any of the profiled code has run: whatever code is loaded, compiled and discarded
//! afterwards, stacks are whole and have the names of the code at that time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jjleak::render::json::{Document, FrameDocument, StackDocument};

use crate::jvm::jdks::Counted;
use crate::support::accounts::assert_nothing_lost;
use crate::support::bounded::HOURLONG;
use crate::support::java::{Java, Jdk, Sites, WAYS, java_frames, javas, jdks_from, live_by_size, size_of};
use crate::support::privilege::{is_long, require, require_program};
use crate::support::shares::Shares;

const MODES: [&[&str]; 4] =
    [&[], &["-Xint"], &["-XX:TieredStopAtLevel=1"], &["-XX:-TieredCompilation", "-Xbatch"]];

/// The installed JDK with default options; in long runs, all JDKs in every mode.
fn ways_to_run() -> impl Iterator<Item = (PathBuf, &'static [&'static str])> {
    let modes = if is_long() { &MODES[..] } else { &MODES[..1] };
    javas().into_iter().flat_map(move |java| modes.iter().map(move |mode| (java.clone(), *mode)))
}

/// Fails unless every site has the bytes and objects of the program's accounting.
fn assert_accounts(report: &Document, sites: &Sites) {
    assert_nothing_lost(report);
    let live = live_by_size(report, sites);
    for (size, site) in sites {
        let found = live.get(size).copied().unwrap_or_default();
        assert_eq!(found, site.objects, "blocks of {size} bytes: {:#?}", report.stacks);
    }
    let bytes: u64 = sites.iter().map(|(size, site)| size * site.objects).sum();
    assert_eq!(of_sites(report, sites).map(|stack| stack.live.bytes).sum::<u64>(), bytes);
}

/// Stacks of live blocks of the sites' sizes. The JVM has a few of its own in this range: in JDK 25, ZGC and Shenandoah keep one
/// of 5,088 bytes for each thread whose stack they have scanned.
fn of_sites<'a>(report: &'a Document, sites: &'a Sites) -> impl Iterator<Item = &'a StackDocument> {
    let is_site = |stack: &&StackDocument| size_of(stack).is_some_and(|size| sites.contains_key(&size));
    report.stacks.iter().filter(is_site)
}

/// Fails unless every stack of a site is complete and ends with its call path.
fn assert_whole(report: &Document, sites: &Sites) {
    for stack in of_sites(report, sites) {
        assert_eq!(stack.status, "complete", "{stack:#?}");
        let site = &sites[&size_of(stack).unwrap()];
        assert!(java_frames(stack).ends_with(&site.path), "{:#?}\n{stack:#?}", site.path);
    }
    assert_eq!(report.notes.get("unnamed_code").copied().unwrap_or_default(), 0, "{:#?}", report.stacks);
}

/// Runs all kinds of allocations and compares. Returns the report.
pub(crate) fn assert_ways(java: &Path, options: &[&str]) -> Document {
    let mut java = Java::start_ways(java, options);
    let jjleak = java.attach_to(WAYS);
    java.ask("keep 300");
    let sites = java.accounts();
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!(sites.len(), 9, "{:?}", sites.keys());
    assert_accounts(&report, &sites);
    assert_whole(&report, &sites);
    for (size, function) in
        [(5016, "Java_Ways_newArray"), (5024, "Java_Ways_vector"), (5032, "Java_Ways_string")]
    {
        let stack = of_sites(&report, &sites).find(|stack| size_of(stack) == Some(size)).unwrap();
        assert!(stack.frames.iter().any(|frame| frame.symbol == function), "{stack:#?}");
    }
    report
}

#[test]
fn direct_buffers_native_methods_inlined_and_deep_calls_are_whole_from_the_first_one_on() {
    require_program!("javac");
    assert_ways(Path::new("java"), &[]);
}

#[test]
fn no_option_that_closes_other_doors_closes_this_one() {
    require_program!("javac");
    assert_ways(Path::new("java"), &["-XX:+DisableAttachMechanism", "-Xrs", "-XX:-UsePerfData"]);
}

fn is_in(stack: &StackDocument, function: &str) -> bool {
    stack.frames.iter().any(|frame| frame.symbol == function)
}

pub(crate) fn is_complete(stack: &StackDocument) -> bool {
    stack.status == "complete"
}

/// Returns true if the innermost frame is a system call that maps memory, under any of the C library's names for it.
fn maps(stack: &StackDocument) -> bool {
    stack.frames[0].symbol.contains("mmap")
}

#[test]
fn deflaters_and_inflaters_that_are_never_ended_stand_where_they_were_made() {
    require_program!("javac");
    for (java, options) in ways_to_run() {
        println!("{} {options:?}", java.display());
        let mut java = Java::start_ways(&java, options);
        // Libraries that the JVM loads on demand are excluded.
        java.ask("deflate 1");
        let jjleak = java.attach_to_all();
        java.ask("deflate 100");
        let report = jjleak.interrupt().assert_done().report();

        for (class, maker, init) in
            [("Deflater", "Ways.deflaters", "deflateInit2_"), ("Inflater", "Ways.inflaters", "inflateInit2_")]
        {
            let method = format!("java.util.zip.{class}.init");
            // The JVM also allocates there for itself on the first call.
            let made = || report.stacks.iter().filter(|stack| is_in(stack, &method) && is_in(stack, init));
            assert!(made().all(is_complete), "{:#?}", made().collect::<Vec<_>>());
            let live = |method: &str| -> u64 {
                made().filter(|stack| is_in(stack, method)).map(|stack| stack.live.objects).sum()
            };
            // zlib takes one or more blocks for each.
            assert!(live(maker) >= 100 && live(maker).is_multiple_of(100), "{} of {class}", live(maker));
            assert_eq!(live("Ways.ended"), 0);
        }
    }
}

/// Maps files from each of the program's sites 20 times, some of which are dropped. Returns the report, with this option, and
/// the program's accounting.
fn with_mapped_files(java: &Path, options: &[&str], option: &str) -> (Document, Sites) {
    println!("{} {options:?}", java.display());
    let mut java = Java::start_ways(java, options);
    let jjleak = java.attach_to_mappings(option);
    java.ask("map 20");
    let sites = java.accounts();
    let report = jjleak.interrupt().assert_done().report();
    assert_eq!(sites.values().map(|site| site.objects).collect::<Vec<_>>(), [20, 0, 20]);
    (report, sites)
}

#[test]
fn mapped_files_are_whole_and_have_the_bytes_that_the_program_has_recorded() {
    require_program!("javac");
    for (java, options) in ways_to_run() {
        let (report, sites) = with_mapped_files(&java, options, "--mmap=files");

        assert_accounts(&report, &sites);
        assert_whole(&report, &sites);
        assert!(of_sites(&report, &sites).all(maps));
        // Those that were dropped and collected were mapped, too.
        let allocated = |size: u64| {
            let of_size = |stack: &&StackDocument| {
                maps(stack) && stack.allocated.bytes == size * stack.allocated.objects
            };
            report.stacks.iter().filter(of_size).map(|stack| stack.allocated.objects).sum::<u64>()
        };
        assert_eq!(sites.keys().map(|size| allocated(*size)).collect::<Vec<_>>(), [20, 20, 20]);
    }
}

/// By default, `--mmap` covers anonymous memory only: the kernel can reclaim file mappings.
#[test]
fn mapped_files_are_not_counted_as_memory() {
    require_program!("javac");
    for java in javas() {
        let (report, sites) = with_mapped_files(&java, &[], "--mmap");

        assert_nothing_lost(&report);
        assert_eq!(of_sites(&report, &sites).find(|stack| maps(stack)), None);
    }
}

/// Besides its stack, a thread has data that the JVM keeps for it.
#[test]
fn threads_that_stay_keep_their_stacks_and_what_the_jvm_has_for_them() {
    require_program!("javac");
    for (java, options) in ways_to_run() {
        println!("{} {options:?}", java.display());
        let mut java = Java::start_ways(&java, options);
        java.ask("threads 1");
        let jjleak = java.attach_to_mappings("--mmap");
        java.ask("threads 20");
        let report = jjleak.interrupt().assert_done().report();

        assert_nothing_lost(&report);
        let started = || report.stacks.iter().filter(|stack| is_in(stack, "Ways.threads"));
        let stacks: Vec<_> = started().filter(|stack| maps(stack)).collect();
        let [stack] = stacks[..] else { panic!("{stacks:#?}") };
        assert_eq!((stack.live.objects, &*stack.status), (20, "complete"));
        assert!((20 * (7 << 20)..20 * (8 << 20)).contains(&stack.allocated.bytes), "{:?}", stack.allocated);
        // The JVM remaps the guard pages at a stack's end.
        assert!(stack.live.bytes > stack.allocated.bytes / 10 * 9, "{:?}", stack.live);
        let kept = started().filter(|stack| is_in(stack, "JVM_StartThread") && is_in(stack, "malloc"));
        assert!(kept.clone().all(is_complete), "{:#?}", kept.collect::<Vec<_>>());
        assert!(kept.clone().any(|stack| stack.live.objects == 20), "{:#?}", kept.collect::<Vec<_>>());
    }
}

/// Returns true if frames, innermost first, match a path, compared from the outermost on. A frame without a name matches any
/// number of path elements: a method and the methods inlined into it.
fn leads_along(frames: &[Option<String>], path: &[String]) -> bool {
    let Some((outermost, inner)) = path.split_last() else { return true };
    match frames.split_last() {
        None => false,
        Some((Some(frame), frames)) => frame == outermost && leads_along(frames, inner),
        Some((None, frames)) => (0..path.len()).any(|length| leads_along(frames, &path[..length])),
    }
}

/// Java frames of a stack, and frames without a name.
fn java_or_unnamed(stack: &StackDocument) -> Vec<Option<String>> {
    let frame = |frame: &Arc<FrameDocument>| match &*frame.kind {
        "unknown" => Some(None),
        kind => kind.starts_with("java").then(|| Some(format!("{}:{}", frame.symbol, frame.line))),
    };
    stack.frames.iter().filter_map(frame).collect()
}

/// Hidden classes are defined, compiled and unloaded faster than a small code cache has room for. If jjleak does not run for so
/// long that such code is gone before it has been read, the code has no name, which the report says. It never has the name of
/// other code.
#[test]
fn code_that_takes_the_place_of_other_code_all_the_time_has_its_own_name() {
    require_program!("javac");
    let rounds = if is_long() { 2000 } else { 300 };
    let options: [&[&str]; 2] = [&[], &["-Xbatch", "-XX:TieredStopAtLevel=1"]];
    for options in options {
        let options = [options, &["-XX:ReservedCodeCacheSize=6m"]].concat();
        let mut java = Java::start_ways(Path::new("java"), &options);
        let jjleak = java.attach_to(WAYS);
        java.ask_within(HOURLONG, &format!("churn {rounds}"));
        let sites = java.accounts();
        let report = jjleak.interrupt().assert_done().report();

        assert_accounts(&report, &sites);
        let mut unnamed = 0;
        for stack in of_sites(&report, &sites).filter(|stack| is_complete(stack)) {
            let (frames, path) = (java_or_unnamed(stack), &sites[&size_of(stack).unwrap()].path);
            assert!(leads_along(&frames, path), "{path:#?}\n{stack:#?}");
            unnamed += frames.iter().filter(|frame| frame.is_none()).count() as u64;
        }
        for stack in of_sites(&report, &sites) {
            assert_eq!(stack.live.objects, 1, "each class has code of its own: {stack:#?}");
        }
        let told = report.notes.get("unnamed_code").copied().unwrap_or_default();
        println!("{options:?}: {} stacks, {unnamed} unnamed frames of {told}", report.stacks.len());
        assert!(unnamed == 0 || told > 0, "{:#?}", report.notes);
        Shares::of([&report]).assert_complete(&format!("{options:?}"), 999, &[]);
    }
}

/// Number of frames that a stack and a path have in common, from the innermost frame of the path on.
pub(crate) fn common_frames(stack: &StackDocument, path: &[String]) -> usize {
    let frames = java_frames(stack);
    let first = frames.iter().position(|frame| *frame == path[0]).unwrap_or(frames.len());
    path.iter().zip(&frames[first..]).take_while(|(one, other)| one == other).count()
}

/// Fails unless a virtual thread's stack is whole, or ends in the heap with only frames of this path before.
pub(crate) fn assert_led(stack: &StackDocument, path: &[String]) {
    let frames = java_frames(stack);
    let first =
        frames.iter().position(|frame| *frame == path[0]).unwrap_or_else(|| panic!("{path:#?}\n{stack:#?}"));
    let expected = match &*stack.status {
        "complete" => path.len(),
        "in_heap" => frames.len() - first,
        _ => panic!("{path:#?}\n{stack:#?}"),
    };
    assert_eq!(common_frames(stack, path), expected, "{path:#?}\n{stack:#?}");
}

/// The methods inlined into such code replace its frame, with their lines.
#[test]
fn a_frame_whose_code_is_thrown_away_under_it_is_what_it_was() {
    require_program!("javac");
    for (java, options) in ways_to_run() {
        let options = [&["-Xbatch"], options].concat();
        println!("{} {options:?}", java.display());
        let mut java = Java::start_ways(&java, &options);
        let jjleak = java.attach_to(WAYS);
        java.ask("discard 100000");
        let sites = java.accounts();
        let report = jjleak.interrupt().assert_done().report();

        assert_eq!(sites.values().map(|site| site.objects).collect::<Vec<_>>(), [1]);
        assert_accounts(&report, &sites);
        assert_whole(&report, &sites);
        // Compiled code contains inlined methods.
        let is_inlined = |stack: &StackDocument| {
            stack
                .frames
                .iter()
                .any(|frame| frame.kind == "java_inlined" && frame.symbol.starts_with("Ways$Plain.run"))
        };
        assert_eq!(of_sites(&report, &sites).any(is_inlined), !options.contains(&"-Xint"));
    }
}

/// Runs virtual threads that wait several times while garbage is collected, and compares the frames and the ends of their stacks
/// with the program's own record. Returns the number of stacks, and of whole ones.
pub(crate) fn assert_virtual(java: &Path, options: &[&str]) -> Counted {
    println!("{} {options:?}", java.display());
    let mut java = Java::start_ways(java, options);
    let jjleak = java.attach_to(WAYS);
    java.ask_within(HOURLONG, "virtual 300");
    let sites = java.accounts();
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!(sites.len(), 2);
    assert_nothing_lost(&report);
    // Some collectors allocate blocks of these sizes, too.
    let sleeps =
        |stack: &&StackDocument| java_frames(stack).iter().any(|frame| frame.starts_with("Ways.sleeps"));
    let mut live = BTreeMap::new();
    let mut in_heap = 0;
    for stack in of_sites(&report, &sites).filter(sleeps) {
        let size = size_of(stack).unwrap();
        assert_eq!(stack.live.bytes, size * stack.live.objects);
        *live.entry(size).or_insert(0) += stack.live.objects;
        assert_led(stack, &sites[&size].path);
        in_heap += if is_complete(stack) { 0 } else { stack.live.objects };
    }
    assert_eq!(live, sites.iter().map(|(size, site)| (*size, site.objects)).collect());
    let all = live.values().sum();
    println!("{in_heap} of {all} stacks end in the heap");
    Counted { all, complete: all - in_heap }
}

/// Fails if too many stacks end in the heap: half of them would if frames in the heap were not followed.
fn assert_virtual_is_whole(jdk: &Jdk, options: &[&str]) {
    let Counted { all, complete } = assert_virtual(&jdk.java(), options);
    // Older versions allocate native memory where a thread cannot be stopped, newer ones also while all threads are stopped.
    let at_least = if jdk.version < 25 { 99 } else { 90 };
    assert!(100 * complete >= at_least * all, "{complete} of {all} are complete");
}

fn lack_of_virtual_threads() -> Option<String> {
    jdks_from(21).is_empty().then(|| "no JDK with virtual threads is installed".to_owned())
}

#[test]
fn a_stack_of_a_virtual_thread_is_whole_wherever_its_frames_are() {
    require_program!("javac");
    require!(lack_of_virtual_threads());
    let collectors: [&[&str]; 4] =
        [&[], &["-XX:+UseSerialGC"], &["-XX:+UseParallelGC"], &["-XX:-UseCompressedOops"]];
    for jdk in jdks_from(21) {
        for mode in MODES {
            for collector in if is_long() { &collectors[..] } else { &collectors[..1] } {
                assert_virtual_is_whole(&jdk, &[mode, collector].concat());
            }
        }
    }
}

/// Shenandoah, which moves objects while the program runs: as many objects as possible, all the time; with default options; with
/// generations; with other layouts of references and headers.
const SHENANDOAH: [&[&str]; 5] = [
    &["-XX:+UseShenandoahGC", "-XX:+UnlockDiagnosticVMOptions", "-XX:ShenandoahGCHeuristics=aggressive"],
    &["-XX:+UseShenandoahGC"],
    &["-XX:+UseShenandoahGC", "-XX:ShenandoahGCMode=generational"],
    &["-XX:+UseShenandoahGC", "-XX:-UseCompressedOops"],
    &["-XX:+UseShenandoahGC", "-XX:+UseCompactObjectHeaders"],
];

#[test]
fn a_stack_of_a_virtual_thread_is_whole_while_shenandoah_moves_objects() {
    require_program!("javac");
    require!(lack_of_virtual_threads());
    let (modes, collectors) =
        if is_long() { (&MODES[..], &SHENANDOAH[..]) } else { (&MODES[..1], &SHENANDOAH[..1]) };
    for jdk in jdks_from(21) {
        for collector in collectors.iter().filter(|collector| jdk.takes(collector)) {
            for mode in modes {
                assert_virtual_is_whole(&jdk, &[mode, *collector].concat());
            }
        }
    }
}

/// ZGC, which also moves objects concurrently, without generations and with them.
pub(crate) const ZGC: [&[&str]; 2] = [&["-XX:+UseZGC"], &["-XX:+UseZGC", "-XX:+ZGenerational"]];

#[test]
fn a_stack_of_a_virtual_thread_is_whole_while_zgc_moves_objects_or_ends_in_the_heap() {
    require_program!("javac");
    require!(lack_of_virtual_threads());
    let (modes, collectors) = if is_long() { (&MODES[..], 2) } else { (&MODES[..1], 1) };
    for jdk in jdks_from(21) {
        for collector in ZGC.into_iter().filter(|collector| jdk.takes(collector)).take(collectors) {
            for mode in modes {
                let Counted { all, complete } = assert_virtual(&jdk.java(), &[mode, collector].concat());
                // The number of chunks with references of an older phase depends on the times of moves.
                assert!(4 * (all - complete) < all, "{complete} of {all} are complete");
            }
        }
    }
}
