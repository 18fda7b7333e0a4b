use super::*;
use crate::memory::glibc::{Chunks, Free, Usage};
use crate::memory::hotspot::{
    Classes, DirectBuffers, JavaHeap, JvmMemory, Metaspace, NativeCategory, Unknown,
};
use crate::memory::{Row, Scan};

const MIB: u64 = 1 << 20;

/// A scan with these rows, in MiB.
fn scan(rows: &[(Kind, &str, u64)]) -> ProcessScan {
    let rows: Vec<_> = rows
        .iter()
        .map(|(kind, name, mib)| Row { kind: *kind, name: (*name).to_owned(), resident: mib * MIB })
        .collect();
    let resident = rows.iter().map(|row| row.resident).sum();
    ProcessScan {
        scan: Scan { resident, proportional: resident, swapped: 0, rows },
        jvm: None,
        malloc: Some(Usage::default()),
        arenas: Some(1),
        cpus: 4,
        threads: 4,
        page_tables: 0,
        limit: None,
        control_group: None,
        unknown: Vec::new(),
    }
}

/// A scan of a process with so many MiB of chunks in use, and free ones that are resident.
fn with_malloc(live: u64, free: u64) -> ProcessScan {
    let usage = Usage {
        live: Chunks { count: live * 10, bytes: live * MIB },
        free: Free { trimmable: free * MIB, ..Free::default() },
        ..Usage::default()
    };
    let rows = [(Kind::MallocLive, "", live), (Kind::MallocFree, "", free), (Kind::File, "/lib/a.so", 5)];
    ProcessScan { malloc: Some(usage), arenas: Some(8), ..scan(&rows) }
}

fn unknown_heap() -> JavaHeap {
    let unknown = Err(Unknown::Undescribed);
    JavaHeap {
        collector: Ok("G1"),
        reserved: Err(Unknown::Undescribed),
        used: unknown,
        committed: unknown,
        used_after_collection: unknown,
    }
}

/// A JVM of which only the heap is known.
fn jvm(heap: JavaHeap) -> JvmMemory {
    let unknown = Unknown::Undescribed;
    JvmMemory {
        heap,
        metaspace: Metaspace {
            all: Err(unknown),
            class_space: Err(unknown),
            class_range: Err(unknown),
            ranges: Err(unknown),
        },
        classes: Classes { loaded: Err(unknown), unloaded: Err(unknown), loaders: Err(unknown) },
        code: Err(unknown),
        threads: Err(unknown),
        visible_threads: Err(unknown),
        card_table: Err(unknown),
        cds: Err(unknown),
        direct: Err(unknown),
        tables: Err(unknown),
        native: Ok(None),
    }
}

fn causes(first: &ProcessScan, last: &ProcessScan) -> Vec<Cause> {
    let found = diagnose(first, last, Duration::from_secs(30), 42);
    assert!(found.iter().all(|finding| (0. ..=1.).contains(&finding.confidence)), "{found:?}");
    found.into_iter().map(|finding| finding.cause).collect()
}

#[test]
fn a_jvm_that_counts_its_native_memory_says_whose_the_growth_is() {
    let scan = |live: u64, internal: u64| {
        let category = NativeCategory {
            name: "Internal".to_owned(),
            malloc: internal * MIB,
            arena: 0,
            reserved: 0,
            committed: 0,
        };
        let jvm = JvmMemory { native: Ok(Some(vec![category])), ..jvm(unknown_heap()) };
        ProcessScan { jvm: Some(jvm), ..with_malloc(live, 2) }
    };
    let evidence = |first, last| {
        let found = diagnose(&first, &last, Duration::from_secs(30), 42);
        found[0].evidence.join("; ")
    };
    let own = evidence(scan(10, 1), scan(60, 41));
    assert!(own.ends_with("Native Memory Tracking: Internal +40.0 MiB"), "{own}");
    let other = evidence(scan(10, 1), scan(60, 2));
    assert!(other.ends_with("it is not the JVM's own"), "{other}");
    let without = evidence(with_malloc(10, 2), with_malloc(60, 2));
    assert!(!without.contains("Native Memory Tracking"), "{without}");
}

#[test]
fn what_malloc_has_and_what_it_keeps_are_two_causes() {
    assert_eq!(causes(&with_malloc(10, 2), &with_malloc(60, 3)), [Cause::NativeLeak]);
    assert_eq!(causes(&with_malloc(10, 2), &with_malloc(11, 90)), [Cause::Retention]);
    assert_eq!(causes(&with_malloc(10, 2), &with_malloc(40, 52)), [Cause::Retention, Cause::NativeLeak]);
}

#[test]
fn free_memory_in_as_many_arenas_as_malloc_makes_is_a_cause_of_its_own() {
    let with = |arenas, free| ProcessScan { arenas: Some(arenas), ..with_malloc(10, free) };
    assert_eq!(causes(&with(2, 2), &with(23, 90)), [Cause::Retention]);
    assert_eq!(causes(&with(2, 2), &with(24, 90)), [Cause::ArenaCount]);
}

#[test]
fn a_java_heap_that_is_committed_and_not_used_is_a_matter_of_its_options() {
    let with = |used: u64, committed: u64, after: u64, resident: u64| {
        let heap = JavaHeap {
            collector: Ok("G1"),
            reserved: Ok(Vec::new()),
            used: Ok(used * MIB),
            committed: Ok(committed * MIB),
            used_after_collection: Ok(after * MIB),
        };
        ProcessScan { jvm: Some(jvm(heap)), ..scan(&[(Kind::JavaHeap, "", resident)]) }
    };
    assert_eq!(causes(&with(40, 60, 30, 60), &with(100, 900, 35, 800)), [Cause::HeapPolicy]);
    assert_eq!(causes(&with(40, 60, 30, 60), &with(400, 900, 35, 800)), [Cause::JavaHeap]);
    assert_eq!(causes(&with(40, 60, 30, 60), &with(290, 900, 280, 800)), [Cause::JavaHeap], "it is kept");
    let before_a_collection = (with(40, 1_000, 0, 60), with(240, 1_000, 0, 260));
    assert_eq!(causes(&before_a_collection.0, &before_a_collection.1), [Cause::JavaHeap]);
}

#[test]
fn direct_buffers_are_a_cause_of_their_own_and_no_native_leak() {
    let with = |live, reserved: u64| {
        let direct = DirectBuffers {
            reserved: reserved * MIB,
            capacity: 0,
            count: 9,
            most: 512 * MIB,
            netty: Err(Unknown::Undescribed),
        };
        ProcessScan {
            jvm: Some(JvmMemory { direct: Ok(direct), ..jvm(unknown_heap()) }),
            ..with_malloc(live, 2)
        }
    };
    assert_eq!(causes(&with(10, 5), &with(110, 100)), [Cause::DirectBuffers]);
    assert_eq!(causes(&with(10, 5), &with(110, 55)), [Cause::NativeLeak, Cause::DirectBuffers]);
    assert_eq!(causes(&with(10, 5), &with(110, 6)), [Cause::NativeLeak]);
    let found = diagnose(&with(10, 5), &with(110, 100), Duration::from_secs(30), 42);
    assert_eq!(found[0].evidence, ["direct buffers: +95.0 MiB, 100.0 MiB of at most 512.0 MiB in 9 buffers"]);
}

#[test]
fn pages_that_others_map_too_are_no_more_memory() {
    let with = |mib, proportional| {
        let mut scan = scan(&[(Kind::Shared, "/dev/shm/a", mib)]);
        scan.scan.proportional = proportional * MIB;
        scan
    };
    assert_eq!(causes(&with(10, 5), &with(90, 80)), [Cause::SharedMemory]);
    assert_eq!(causes(&with(10, 5), &with(90, 30)), [Cause::SharedMemory, Cause::MappedAgain]);
}

#[test]
fn mappings_are_told_apart() {
    let with = |kind, mib| scan(&[(kind, "/dev/shm/a", mib), (Kind::Other, "", 20)]);
    for (kind, cause) in [
        (Kind::File, Cause::MappedFiles),
        (Kind::Shared, Cause::SharedMemory),
        (Kind::Anonymous, Cause::OwnPool),
        (Kind::Code, Cause::JvmInternal),
    ] {
        assert_eq!(causes(&with(kind, 10), &with(kind, 90)), [cause]);
    }
}

#[test]
fn anonymous_memory_may_be_an_allocators_that_could_not_be_read() {
    let first = scan(&[(Kind::Anonymous, "", 10)]);
    let last = ProcessScan { unknown: vec!["no arena".to_owned()], ..scan(&[(Kind::Anonymous, "", 90)]) };
    assert_eq!(causes(&first, &last), [Cause::Unknown]);
    let of_jemalloc = |mib| ProcessScan { arenas: Some(0), ..scan(&[(Kind::Anonymous, "", mib)]) };
    assert_eq!(causes(&of_jemalloc(10), &of_jemalloc(90)), [Cause::Unknown]);
    let unread =
        ProcessScan { arenas: None, malloc: None, unknown: vec!["too slow".to_owned()], ..of_jemalloc(90) };
    let said = format!("{:?}", diagnose(&of_jemalloc(10), &unread, Duration::from_secs(30), 42));
    assert!(!said.contains("does not use"), "nothing is known of its malloc: {said}");
    let of_musl = |mib| ProcessScan { malloc: None, arenas: None, ..scan(&[(Kind::Brk, "[heap]", mib)]) };
    assert_eq!(causes(&of_musl(10), &of_musl(90)), [Cause::Unknown]);
}

#[test]
fn what_only_one_scan_could_read_is_compared_as_anonymous_memory() {
    let first = ProcessScan { malloc: None, ..scan(&[(Kind::Anonymous, "", 100)]) };
    let last = with_malloc(110, 0);
    assert_eq!(by_kind(&first, &last), [(Kind::Anonymous, 10 << 20), (Kind::File, 5 << 20)]);
    assert_eq!(causes(&first, &last)[0], Cause::Unknown);
}

#[test]
fn threads_are_a_cause_beside_what_their_stacks_take() {
    let with = |threads, mib| ProcessScan { threads, ..scan(&[(Kind::ThreadStacks, "", mib)]) };
    assert_eq!(causes(&with(10, 1), &with(400, 40)), [Cause::Threads]);
    assert_eq!(causes(&with(10, 1), &with(11, 40)), [Cause::Unknown]);
}

#[test]
fn a_process_that_does_not_grow_has_no_cause_unless_its_control_group_grows() {
    let steady = with_malloc(100, 10);
    assert_eq!(causes(&steady, &steady), [Cause::None]);
    let group = |file, slab| GroupMemory {
        current: (100 + file + slab) * MIB,
        file: file * MIB,
        slab: slab * MIB,
        ..GroupMemory::default()
    };
    let with = |file, slab| ProcessScan { control_group: Some(group(file, slab)), ..steady.clone() };
    assert_eq!(causes(&with(1, 1), &with(90, 1)), [Cause::PageCache]);
    assert_eq!(causes(&with(1, 1), &with(1, 90)), [Cause::Kernel]);
}

#[test]
fn causes_in_the_control_group_come_last_and_explain_at_least_a_quarter_of_its_growth() {
    let group =
        |current, file| GroupMemory { current: current * MIB, file: file * MIB, ..GroupMemory::default() };
    let with = |live, current, file| ProcessScan {
        control_group: Some(group(current, file)),
        ..with_malloc(live, 2)
    };
    assert_eq!(causes(&with(10, 100, 10), &with(60, 250, 105)), [Cause::NativeLeak, Cause::PageCache]);
    assert_eq!(causes(&with(10, 100, 10), &with(60, 250, 30)), [Cause::NativeLeak]);
}

#[test]
fn class_loaders_that_are_kept_come_before_what_they_hold() {
    let with = |loaders, heap, metaspace| {
        let classes = Classes { loaded: Ok(500 + loaders), unloaded: Ok(0), loaders: Ok(loaders) };
        let rows = [(Kind::JavaHeap, "", heap), (Kind::Metaspace, "", metaspace)];
        ProcessScan { jvm: Some(JvmMemory { classes, ..jvm(unknown_heap()) }), ..scan(&rows) }
    };
    let first = with(200, 20, 10);
    assert_eq!(causes(&first, &with(900, 40, 20)), [Cause::ClassLoaders, Cause::JavaHeap]);
    // As many as a program needs while it starts.
    assert_eq!(causes(&first, &with(230, 40, 20)), [Cause::JavaHeap, Cause::ClassLoaders]);
    // Little of the growth.
    assert_eq!(causes(&first, &with(900, 140, 20)), [Cause::JavaHeap]);
}
