//! The kernel's verifier follows every path through a program, and gives up after a million instructions. Kernels differ in the
//! number of paths that they consider, so that a margin is needed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jjleak::attach::{Attachment, Following, Programs, Settings};
use jjleak_common::mapping::MappingKinds;
use jjleak_common::sampling::Sampling;

use crate::support::privilege::require_bpf;

/// A tenth of the kernel's limit (`BPF_COMPLEXITY_LIMIT_INSNS` in include/linux/bpf.h).
const CEILING: u32 = 100_000;

#[test]
fn programs_stay_far_below_what_the_verifier_follows() {
    require_bpf!();
    let plain = |programs| Settings {
        following: Following::Everyone,
        mappings: Some(MappingKinds::ALL),
        ..Settings::new(programs)
    };
    let mut table = BTreeMap::new();
    // The verifier skips code that is disabled.
    let accounting = plain(Programs::Accounting);
    let all = Settings {
        sampling: Sampling::Bytes(4096),
        combined: true,
        threads: true,
        trace: true,
        ..accounting
    };
    let bare = plain(Programs::Bare);
    let java_heap = plain(Programs::JavaHeap);
    let samples =
        Settings { sampling: Sampling::Announced, threads: true, trace: true, ..plain(Programs::Samples) };
    let growth = Settings { faults: true, ..plain(Programs::Accounting) };
    let kinds = [
        (accounting, "resize_enter"),
        (all, "resize_enter"),
        (bare, "bare_enter"),
        (java_heap, "java_object"),
        (samples, "sample_allocated"),
        (growth, "fault_of_program"),
    ];
    for (settings, largest) in kinds {
        let attachment = Attachment::load(settings).unwrap();

        let counts = attachment.verified_instructions().unwrap();

        println!("verified instructions: {counts:?}");
        for (name, count) in &counts {
            let largest = table.entry((*name).to_owned()).or_insert(0);
            *largest = (*largest).max(*count);
        }
        assert!(counts.iter().any(|(name, _)| *name == largest), "programs: {counts:?}");
        for (name, count) in counts {
            assert!(count < CEILING, "{name} has {count} verified instructions");
        }
    }
    keep(&table);
}

/// Writes the table in the repository if `cargo xtask verifier` requests it; otherwise every program must be in that table.
fn keep(table: &BTreeMap<String, u32>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks/verifier.md");
    let rows: Vec<_> = table.iter().map(|(name, count)| format!("| `{name}` | {count} |\n")).collect();
    let rows = rows.concat();
    if std::env::var("JJLEAK_KEEP_VERIFIED").is_ok_and(|value| value == "1") {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        fs::write(
            path,
            format!(
                "{HEAD}\nLinux {}:\n\n| program | instructions |\n|---|---|\n{rows}",
                release.split('-').next().unwrap_or_default().trim()
            ),
        )
        .unwrap();
        return;
    }
    let kept = fs::read_to_string(path).unwrap();
    for name in table.keys() {
        assert!(
            kept.contains(&format!("| `{name}` |")),
            "{name} is not in the table: run `cargo xtask verifier`"
        );
    }
}

const HEAD: &str = "# What the kernel's verifier has to follow

Before a BPF program is loaded, the kernel's verifier follows every path through it, and gives up after a million
instructions. This is how many it followed in each program, in the largest of its variants. They depend on the kernel's
version and on the compiler; a test fails above 100,000. `cargo xtask verifier` writes this page anew.
";
