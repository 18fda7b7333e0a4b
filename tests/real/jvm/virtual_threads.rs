//! Virtual threads that wait, compute and create garbage in turns, each on its own call path, while a collector runs constantly:
//! a stack never belongs to another thread or to an earlier turn.

use std::path::Path;

use jjleak::render::json::StackDocument;

use crate::jvm::code_changes::{ZGC, assert_led, common_frames, is_complete};
use crate::support::accounts::assert_nothing_lost;
use crate::support::bounded::HOURLONG;
use crate::support::java::{Java, TURNS, jdks_from};
use crate::support::privilege::{is_long, require, require_program};

/// A small heap, and collections as often as possible.
const OPTIONS: [&str; 2] = ["-Xmx96m", "-XX:ZFragmentationLimit=1"];

/// Shenandoah with the most frequent moves of objects, and collectors that stop all threads.
const OTHERS: [&[&str]; 4] = [
    &["-XX:+UseShenandoahGC", "-XX:+UnlockDiagnosticVMOptions", "-XX:ShenandoahGCHeuristics=aggressive"],
    &["-XX:+UseG1GC"],
    &["-XX:+UseSerialGC"],
    &["-XX:+UseParallelGC"],
];

/// Runs the threads for this time and checks their stacks.
fn assert_never_led_astray(java: &Path, options: &[&str], milliseconds: u32) {
    println!("{} {options:?}", java.display());
    let mut java = Java::start_turns(java, &[&OPTIONS, options].concat());
    let jjleak = java.attach_to(TURNS);
    java.ask_within(HOURLONG, &format!("turn {milliseconds}"));
    let sites = java.accounts();
    let report = jjleak.interrupt().assert_done().report();

    assert_nothing_lost(&report);
    let is_turn =
        |stack: &&StackDocument| stack.frames.iter().any(|frame| frame.symbol.starts_with("Turns."));
    let is_named = |stack: &StackDocument| stack.frames.iter().all(|frame| frame.kind != "unknown");
    let (mut all, mut bytes, mut in_heap) = (0, 0, 0);
    for stack in report.stacks.iter().filter(is_turn) {
        all += stack.allocated.objects;
        bytes += stack.allocated.bytes;
        if !is_named(stack) {
            // Code that was discarded before jjleak ran has no name, which the report says.
            assert_ne!(report.notes.get("unnamed_code").copied().unwrap_or_default(), 0, "{stack:#?}");
        } else if is_complete(stack) {
            // Blocks on different call paths have different sizes.
            let bytes = stack.allocated.bytes / stack.allocated.objects;
            let site = sites.get(&bytes).unwrap_or_else(|| panic!("{stack:#?}"));
            assert_led(stack, &site.path);
        } else {
            in_heap += stack.allocated.objects;
            // Many call paths begin alike.
            let path = sites.values().map(|site| &site.path).max_by_key(|path| common_frames(stack, path));
            assert_led(stack, path.unwrap());
        }
    }
    assert_eq!(all, sites.values().map(|site| site.objects).sum::<u64>());
    assert_eq!(bytes, sites.iter().map(|(size, site)| size * site.objects).sum::<u64>());
    println!("{in_heap} of {all} stacks end in the heap");
}

#[test]
fn a_virtual_thread_s_stack_is_never_another_one_s_however_often_objects_are_moved() {
    require_program!("javac");
    let jdks = jdks_from(21);
    let lack = || jdks.is_empty().then(|| "no JDK with virtual threads is installed".to_owned());
    require!(lack());
    let milliseconds = std::env::var("JJLEAK_TURNS").ok().map(|value| value.parse().unwrap());
    let milliseconds = milliseconds.unwrap_or(if is_long() { 60_000 } else { 2_000 });
    for jdk in jdks {
        let (followed, others) = if is_long() { (2, &OTHERS[..]) } else { (1, &[][..]) };
        let moving = ZGC.iter().filter(|collector| jdk.takes(collector)).take(followed);
        for collector in moving.chain(others.iter().filter(|collector| jdk.takes(collector))) {
            assert_never_led_astray(&jdk.java(), collector, milliseconds);
        }
    }
}
