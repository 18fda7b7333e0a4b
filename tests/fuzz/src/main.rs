//! Fuzz targets: all parsers of data that a profiled process, or any author of a file, can choose. `cargo xtask fuzz`
//! builds and runs them.
//!
//! One program holds all targets, because building it takes minutes; `JJLEAK_FUZZ_TARGET` selects one.
#![no_main]
#![allow(
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::type_complexity,
    missing_docs,
    reason = "a test program: what cannot be is a finding"
)]

mod arenas;
mod hotspot;
mod jvm;
mod rows;
mod symbols;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

/// The targets. `cargo xtask fuzz` reads their names from this table.
const TARGETS: [(&str, fn(&[u8])); 13] = [
    ("elf", rows::elf),
    ("call_frames", rows::call_frames),
    ("row_cache", rows::cache),
    ("maps", maps),
    ("perf_map", perf_map),
    ("pprof", pprof),
    ("heap_file", heap_file),
    ("arenas", arenas::arenas),
    ("jvm", jvm::structures),
    ("jvm_memory", hotspot::memory),
    ("class_histogram", class_histogram),
    ("symbol_protocol", symbols::protocol),
    ("symbols", symbols::symbols),
];

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("JJLEAK_FUZZ_TARGET").expect("JJLEAK_FUZZ_TARGET names no target");
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    target.unwrap_or_else(|| panic!("there is no target {name}")).1
});

fuzz_target!(|data: &[u8]| TARGET(data));

/// Parses `/proc/PID/maps`, whose paths the process chooses.
fn maps(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for mapping in jjleak::processes::parse_maps(&text).unwrap_or_default() {
        assert!(mapping.addresses.start <= mapping.addresses.end, "{mapping:?}");
        let _ = (mapping.identity(), mapping.is_generated(), mapping.is_vdso());
    }
}

/// Parses a perf map, which the process writes.
fn perf_map(data: &[u8]) {
    let mut names = jjleak::perf_map::NamedRanges::default();
    names.add_text(data);
    for line in data.split(|byte| *byte == b'\n').filter_map(jjleak::perf_map::parse) {
        assert!(line.addresses.start < line.addresses.end);
        for address in [line.addresses.start, line.addresses.end - 1, line.addresses.end] {
            if let Some(name) = names.find(address) {
                assert!(!name.is_empty());
            }
        }
    }
}

/// Reads a saved profile, which can come from anywhere. A profile that can be read can be written, and reads back
/// equal.
fn pprof(data: &[u8]) {
    let Ok(reading) = jjleak::pprof::read(data) else { return };
    let mut file = Vec::new();
    jjleak::pprof::write(&reading.profile, &mut file).expect("what was read can be written");
    let again = jjleak::pprof::read(&file).expect("what was written can be read");
    assert_eq!(again.profile.live(), reading.profile.live());
}

/// Reads the answer of a JVM to the question for its class histogram.
fn class_histogram(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(classes) = jjleak::jcmd::parse_histogram(&text) {
        assert!(!classes.is_empty());
    }
}

/// Reads a heap profile of an allocator, which can come from anywhere.
fn heap_file(data: &[u8]) {
    if let Ok(heap) = jjleak::heap_files::read(data) {
        for part in &heap.parts {
            assert!(part.addresses().flatten().all(|number| heap.addresses.all().len() > *number as usize));
            for (live, _) in part.estimates(heap.scaling) {
                assert!(live.objects.is_finite() && live.bytes_variance >= 0.);
            }
        }
    }
    if jjleak::heap_files::is_named_file(data)
        && let Ok(named) = jjleak::heap_files::read_named(data)
    {
        assert!(
            named
                .stacks
                .iter()
                .flat_map(|stack| &stack.frames)
                .all(|&index| (index as usize) < named.frames.len())
        );
    }
}
