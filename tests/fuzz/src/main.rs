//! Fuzz targets: all that parses what a profiled process, or whoever may have written a file, can choose. `cargo xtask fuzz`
//! builds and runs them.
//!
//! One program holds all of them, since building it takes minutes; `JJLEAK_FUZZ_TARGET` names the one to run.
#![no_main]
#![allow(
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::type_complexity,
    missing_docs,
    reason = "a test program: what cannot be is a finding"
)]

mod jvm;
mod rows;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

/// The targets. `xtask/src/fuzz.rs` has their names, too.
const TARGETS: [(&str, fn(&[u8])); 7] = [
    ("elf", rows::elf),
    ("call_frames", rows::call_frames),
    ("row_cache", rows::cache),
    ("maps", maps),
    ("perf_map", perf_map),
    ("pprof", pprof),
    ("jvm", jvm::structures),
];

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("JJLEAK_FUZZ_TARGET").expect("JJLEAK_FUZZ_TARGET names no target");
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    target.unwrap_or_else(|| panic!("there is no target {name}")).1
});

fuzz_target!(|data: &[u8]| TARGET(data));

/// `/proc/PID/maps`: its paths are the process's choice.
fn maps(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for mapping in jjleak::processes::parse_maps(&text).unwrap_or_default() {
        assert!(mapping.addresses.start <= mapping.addresses.end, "{mapping:?}");
        let _ = (mapping.identity(), mapping.is_generated(), mapping.is_vdso());
    }
}

/// A perf map, which the process writes.
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

/// A saved profile, which can come from anywhere. What is read can be written, and is the same then.
fn pprof(data: &[u8]) {
    let Ok(reading) = jjleak::pprof::read(data) else { return };
    let mut file = Vec::new();
    jjleak::pprof::write(&reading.profile, &mut file).expect("what was read can be written");
    let again = jjleak::pprof::read(&file).expect("what was written can be read");
    assert_eq!(again.profile.live(), reading.profile.live());
}
