//! Oracles: the output files of the preloaded counter, and statistics of allocators.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::profile::Amount;

/// The counter's figures for one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) allocated: Amount,
    pub(super) live: Amount,
}

/// The counter, compiled.
pub(super) fn counter() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/world/counter.c");
        let library =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("counter-{}.so", std::process::id()));
        let status = Command::new("cc")
            .args(["-O2", "-fPIC", "-shared", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .status();
        assert!(status.unwrap().success(), "cannot compile the counter");
        library
    })
}

/// Figures of each process for the last program that it ran, from a folder of `PID.N` files.
pub(super) fn read(folder: &Path) -> BTreeMap<u32, Counted> {
    let mut last = BTreeMap::<u32, (u32, Counted)>::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let (pid, nth) = name.split_once('.').unwrap();
        let (pid, nth) = (pid.parse().unwrap(), nth.parse().unwrap());
        let counted = parse(&fs::read(&path).unwrap());
        let entry = last.entry(pid).or_insert((nth, counted));
        if nth > entry.0 {
            *entry = (nth, counted);
        }
    }
    last.into_iter().map(|(pid, (_, counted))| (pid, counted)).collect()
}

fn parse(file: &[u8]) -> Counted {
    let word = |nth: usize| {
        let bytes = file.get(nth * 8..nth * 8 + 8).map_or([0; 8], |bytes| bytes.try_into().unwrap());
        u64::from_ne_bytes(bytes)
    };
    assert_eq!(word(4), 0, "the counter's table is full");
    Counted {
        allocated: Amount { objects: word(0), bytes: word(1) },
        live: Amount { objects: word(2), bytes: word(3) },
    }
}

/// Calls counted by `AddressSanitizer`: `Stats: 0M malloced (0M for red zones) by 2025 calls` and
/// `Stats: 0M realloced by 3 calls`.
pub(super) fn address_sanitizer_calls(stderr: &str) -> Option<u64> {
    let calls = |of: &str| {
        let line = stderr.lines().find(|line| line.starts_with("Stats: ") && line.contains(of))?;
        line.strip_suffix(" calls")?.rsplit(' ').next()?.parse::<u64>().ok()
    };
    Some(calls(" malloced ")? + calls(" realloced ")?)
}
