//! `--mmap`: mappings created by other calls than allocation calls are accounted as address space and equal the program's own
//! accounting, by call site, to the byte and to the range: anonymous ones, those of files, or both.

use std::fs;

use jjleak::attach::{Attachment, Programs, Settings};
use jjleak_common::mapping::MappingKinds;

use crate::support::accounts::{Accounts, assert_nothing_lost};
use crate::support::attached::Attached;
use crate::support::compile::{self, LedgerBuild};
use crate::support::ledger::{Ledger, reported_and_recorded};
use crate::support::privilege::{require_bpf, require_library, require_program};

/// The BPF programs that see a mapping call: at the kernel's function for it, or at all system calls.
const PROGRAMS: &[&str] = &["mmap_enter", "mmap_leave", "syscall_enter", "syscall_leave"];

const FOLLOWED: &[&str] = &["--mmap", "--format", "json"];

/// Tests that run a scenario in which nothing may be lost.
macro_rules! exact {
    ($($name:ident: $scenario:literal;)+) => {
        $(
            #[test]
            fn $name() {
                require_bpf!();
                let (report, recorded) = reported_and_recorded($scenario, FOLLOWED);
                recorded.assert_reported(&report);
                assert_nothing_lost(&report);
            }
        )+
    };
}

exact! {
    mappings_are_counted_in_whole_pages: "map";
    parts_that_are_unmapped_leave_the_rest: "unmap_parts";
    one_unmapping_can_go_across_several_mappings: "unmap_across";
    a_mapping_over_another_takes_its_place: "map_over";
    a_mapping_that_is_moved_or_resized_is_its_last_sites: "remap";
    mappings_that_fail_change_nothing: "map_failures";
    the_break_is_counted_by_bytes: "break";
    mapped_blocks_are_counted_once: "mapped_blocks";
    what_was_mapped_before_is_not_counted: "map_earlier";
    what_a_child_unmaps_is_its_own: "map_fork";
    threads_that_are_given_each_others_addresses_are_told_apart: "map_threads";
    heaps_of_threads_are_the_allocators: "map_heaps";
}

#[test]
fn without_the_option_mappings_are_not_counted() {
    require_bpf!();

    let (report, _) = reported_and_recorded("map", &["--format", "json"]);

    assert_eq!(Accounts::of(&report), Accounts::default());
    assert_eq!(report.notes["mapping_of_allocator"], 0);
}

#[test]
fn mapped_files_are_counted_where_they_are_asked_for() {
    require_bpf!();
    // Each option, with two flags: anonymous memory is accounted, and files are.
    let options = [
        ("--mmap", [true, false]),
        ("--mmap=anonymous", [true, false]),
        ("--mmap=files", [false, true]),
        ("--mmap=all", [true, true]),
    ];
    for (option, [memory, files]) in options {
        let (report, mut recorded) = reported_and_recorded("map_files", &[option, "--format", "json"]);

        recorded.sites.retain(|site, _| if site == "site_map" { memory } else { files });
        recorded.assert_reported(&report);
        assert_nothing_lost(&report);
    }
}

#[test]
fn memory_is_counted_beside_files_as_without_them() {
    require_bpf!();
    for scenario in ["map", "unmap_parts", "remap", "break", "mapped_blocks", "map_threads"] {
        let (report, recorded) = reported_and_recorded(scenario, &["--mmap=all", "--format", "json"]);

        recorded.assert_reported(&report);
        assert_nothing_lost(&report);
    }
}

/// Bytes mapped from a file, according to `/proc/PID/maps`.
fn mapped_bytes(pid: u32, file: &str) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let length = |line: &str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
    };
    maps.lines().filter(|line| line.contains(file)).map(length).sum()
}

#[test]
fn what_the_loader_maps_of_a_library_stands_where_it_was_loaded() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let jjleak = ledger.attach(&["--mmap=files", "--format", "json"]);
    ledger.load("libz.so.1");
    let mapped = mapped_bytes(ledger.pid(), "/libz.so.1");
    let report = jjleak.interrupt().assert_done().report();

    let by_loading = report.stacks.iter().filter(|stack| {
        let is = |function: &str| stack.frames.iter().any(|frame| frame.symbol.contains(function));
        is("dlopen") && is("mmap")
    });
    let loaded: u64 = by_loading.map(|stack| stack.live.bytes).sum();
    assert!(mapped > 0);
    assert_eq!(loaded, mapped, "{:#?}", report.stacks);
}

#[test]
fn only_with_the_option_programs_for_mappings_are_loaded() {
    require_bpf!();
    let loaded = |mappings: Option<MappingKinds>| {
        let settings = Settings { mappings, ..Settings::new(Programs::Accounting) };
        let attachment = Attachment::load(settings).unwrap();
        let names: Vec<_> =
            attachment.verified_instructions().unwrap().into_keys().map(str::to_owned).collect();
        names.into_iter().filter(|name| PROGRAMS.contains(&name.as_str())).count()
    };

    assert_eq!(loaded(None), 0);
    assert!(loaded(Some(MappingKinds::ANONYMOUS)) >= 2);
}

#[test]
fn of_mappings_that_are_not_asked_for_no_stacks_are_taken() {
    require_bpf!();
    let new_stacks = |mappings: Option<MappingKinds>| {
        let mut ledger = Ledger::start();
        let settings = Settings { mappings, ..Settings::new(Programs::Accounting) };
        let mut attached = Attached::to(ledger.pid(), settings);
        ledger.run("map");
        attached.new_stacks()
    };

    let without = new_stacks(None);
    assert_eq!(new_stacks(Some(MappingKinds::FILES)), without);
    assert!(new_stacks(Some(MappingKinds::ANONYMOUS)) > without);
}

#[test]
fn mappings_of_a_program_that_was_replaced_are_gone() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(FOLLOWED);
    ledger.run("map");
    ledger.exec();
    ledger.open_accounts();
    ledger.run("calloc");
    let report = jjleak.interrupt().assert_done().report();

    // The new program's loader has also mapped memory, which is not in the program's accounting.
    let reported = Accounts::of(&report);
    let recorded = ledger.accounts();
    assert_eq!(reported.sites["site_calloc"], recorded.sites["site_calloc"]);
    assert!(!reported.sites.contains_key("site_map"));
    assert_nothing_lost(&report);
}

/// Runs scenarios with a preloaded allocator.
fn assert_exact_preloading(library: &str) {
    let mut ledger = Ledger::start_preloading(library);
    ledger.set_up("map_heaps");
    let jjleak = ledger.attach(FOLLOWED);
    for scenario in ["map", "mapped_blocks", "map_heaps"] {
        ledger.run(scenario);
    }
    let report = jjleak.interrupt().assert_done().report();

    // Not by site: the mapping functions may be the library's, between the program and the kernel.
    let recorded = ledger.accounts();
    assert_eq!((report.live, report.allocated), (recorded.live(), recorded.allocated()));
    assert_nothing_lost(&report);
}

#[test]
fn what_jemalloc_maps_is_its_own() {
    require_library!("libjemalloc.so.2");
    assert_exact_preloading("libjemalloc.so.2");
}

#[test]
fn what_tcmalloc_maps_is_its_own() {
    require_library!("libtcmalloc_minimal.so.4");
    assert_exact_preloading("libtcmalloc_minimal.so.4");
}

#[test]
fn what_mimalloc_maps_is_its_own() {
    require_library!("libmimalloc.so.2");
    assert_exact_preloading("libmimalloc.so.2");
}

#[test]
fn a_static_program_with_musl_inside_is_counted() {
    require_program!("musl-gcc");
    for scenario in ["map", "unmap_parts", "map_over", "remap", "break", "mapped_blocks"] {
        let mut ledger = Ledger::start_as(&compile::ledger_as(LedgerBuild::StaticMusl));
        let jjleak = ledger.attach(FOLLOWED);
        ledger.run(scenario);
        let report = jjleak.interrupt().assert_done().report();

        let recorded = ledger.accounts();
        assert_eq!((report.live, report.allocated), (recorded.live(), recorded.allocated()), "{scenario}");
        assert_nothing_lost(&report);
    }
}

#[test]
fn a_followed_childs_mappings_are_its_own() {
    require_bpf!();
    let mut ledger = Ledger::start();
    ledger.set_up("map_earlier");

    let jjleak = ledger.attach(&["--follow", "--mmap", "--format", "json"]);
    ledger.run("map");
    let of_parent = ledger.accounts();
    let child = ledger.fork();
    ledger.open_accounts();
    ledger.run("map_earlier");
    ledger.run("unmap_parts");
    let of_child = ledger.accounts();
    ledger.end_child();
    let parent = ledger.pid();
    let ended = jjleak.interrupt().assert_done();

    of_parent.assert_reported(&ended.report_on(parent));
    of_child.assert_reported(&ended.report_on(child));
}
