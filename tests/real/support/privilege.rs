//! The one place that decides whether a test that needs BPF can run.
//!
//! A test that cannot run writes a line to the file named by `JJLEAK_SKIPPED`, or to stderr if there is none. With
//! `JJLEAK_REQUIRE_BPF=1`, as in CI, it fails instead.

use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

/// Set, and not empty, if the jjleak under test was built with embedded BPF programs.
const BPF_OBJECT: Option<&str> = option_env!("JJLEAK_BPF_OBJECT");

/// Ends the test here, as skipped, unless BPF programs can be loaded and attached.
macro_rules! require_bpf {
    () => {
        $crate::support::privilege::require!($crate::support::privilege::lack_of_bpf())
    };
}

/// Ends the test here, as skipped, unless BPF can be used and this program is installed.
macro_rules! require_program {
    ($program:literal) => {
        $crate::support::privilege::require_bpf!();
        $crate::support::privilege::require!($crate::support::privilege::lack_of_program($program))
    };
}

/// Ends the test here, as skipped, unless BPF can be used and this shared library is installed.
macro_rules! require_library {
    ($library:expr) => {
        $crate::support::privilege::require_bpf!();
        $crate::support::privilege::require!($crate::support::privilege::lack_of_library($library))
    };
}

/// Ends the test here, as skipped, unless BPF can be used and this library is available for linking.
macro_rules! require_archive {
    ($archive:expr) => {
        $crate::support::privilege::require_bpf!();
        $crate::support::privilege::require!($crate::support::privilege::lack_of_archive($archive))
    };
}

/// Ends the test here, as skipped, if a requirement is missing.
macro_rules! require {
    ($lack:expr) => {
        if let Some(lack) = $lack {
            fn here() {}
            $crate::support::privilege::skip(std::any::type_name_of_val(&here), &lack);
            return;
        }
    };
}

/// Ends the test here, as skipped, except in long runs.
macro_rules! require_time {
    ($why:literal) => {
        if !$crate::support::privilege::is_long() {
            fn here() {}
            $crate::support::privilege::record(std::any::type_name_of_val(&here), $why);
            return;
        }
    };
}

/// Returns true in long runs, which include tests that take minutes (`cargo xtask test --long`).
pub(crate) fn is_long() -> bool {
    env::var("JJLEAK_LONG").is_ok_and(|value| value == "1")
}

pub(crate) use {require, require_archive, require_bpf, require_library, require_program, require_time};

/// Reason why BPF cannot be used, if any.
pub(crate) fn lack_of_bpf() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    let built_with_bpf = BPF_OBJECT.is_some_and(|path| !path.is_empty());
    (!built_with_bpf).then(|| "built without the BPF programs".to_owned())
}

/// Reason why a program cannot be used, if any.
pub(crate) fn lack_of_program(name: &str) -> Option<String> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders).any(|folder| folder.join(name).is_file());
    (!found).then(|| format!("{name} is not installed"))
}

/// Reason why a shared library cannot be used, if any.
pub(crate) fn lack_of_library(name: &str) -> Option<String> {
    let known = Command::new("/sbin/ldconfig").arg("-p").output().unwrap().stdout;
    let found = String::from_utf8_lossy(&known).lines().any(|line| line.trim_start().starts_with(name));
    (!found).then(|| format!("{name} is not installed"))
}

/// Skips a test, unless it is required to run. `inside` is the path of a function in the test's body.
pub(crate) fn skip(inside: &str, why: &str) {
    let required = env::var("JJLEAK_REQUIRE_BPF").is_ok_and(|value| value == "1");
    assert!(!required, "{} must run (JJLEAK_REQUIRE_BPF=1) and cannot: {why}", test(inside));
    record(inside, why);
}

/// Records that a test is skipped.
pub(crate) fn record(inside: &str, why: &str) {
    let line = format!("{}: {why}\n", test(inside));
    // A single write, so that lines of concurrent tests do not mix.
    match env::var_os("JJLEAK_SKIPPED") {
        Some(record) => {
            let mut file = OpenOptions::new().append(true).create(true).open(Path::new(&record)).unwrap();
            file.write_all(line.as_bytes()).unwrap();
        }
        // The test harness hides print output of tests that pass.
        None => io::stderr().write_all(format!("skipped: {line}").as_bytes()).unwrap(),
    }
}

/// Name of a test, from that of a function in its body.
fn test(inside: &str) -> &str {
    inside.strip_suffix("::here").unwrap_or(inside)
}

/// Reason why this library cannot be linked, if any.
pub(crate) fn lack_of_archive(archive: &str) -> Option<String> {
    let asked = Command::new("cc").arg(format!("-print-file-name={archive}")).output();
    // If the compiler finds nothing, it repeats the name.
    let found = asked.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() != archive);
    (!found).then(|| format!("{archive} is not installed"))
}
