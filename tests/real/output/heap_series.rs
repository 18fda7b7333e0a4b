//! Heap profiles that an allocator writes one after the other: what grows from one to the next.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use jjleak::render::json::Document;
use tempfile::TempDir;

use super::heap_profiles::{JEMALLOC, all_written_by_jemalloc};
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::privilege::require_library;

/// Number of profiles until the program of the fixture has what it keeps.
pub(crate) const KEEPING: usize = 40;
const BETWEEN: Duration = Duration::from_secs(10);

/// Profiles of the fixture, one for each MiB that it allocates, as if there had been ten seconds between two.
pub(crate) fn profiles(folder: &TempDir) -> Vec<PathBuf> {
    let mut profiles = all_written_by_jemalloc(folder, "lg_prof_interval:20");
    profiles.truncate(KEEPING);
    let last = SystemTime::now();
    for (before, path) in (0..).zip(profiles.iter().rev()) {
        File::options().write(true).open(path).unwrap().set_modified(last - before * BETWEEN).unwrap();
    }
    profiles
}

fn kind<'a>(report: &'a Document, function: &str) -> &'a str {
    let of_function = |kind: &str| {
        let verdicts = report.verdicts.iter().filter(|verdict| verdict.kind == kind);
        verdicts.filter(|verdict| verdict.call_site.contains(function)).count() == 1
    };
    ["leaking", "growing", "cache_like", "start_up", "steady_churn"]
        .into_iter()
        .find(|it| of_function(it))
        .unwrap()
}

/// The second phase allocates a MiB between two profiles; the first has ended.
fn assert_judged(report: &Document) {
    assert_eq!(kind(report, "keep_large"), "leaking");
    assert!(["start_up", "cache_like"].contains(&kind(report, "keep_small")));
    let rate = report.verdicts[0].rate.as_ref().unwrap();
    let expected = f64::from(1 << 20) / BETWEEN.as_secs_f64();
    assert!(rate.low_bytes_per_s < expected && expected < rate.high_bytes_per_s, "{rate:?}");
}

#[test]
fn what_grows_from_profile_to_profile_is_found_whatever_their_order() {
    require_library!(JEMALLOC);
    let folder = tempfile::tempdir().unwrap();
    let profiles = profiles(&folder);
    let report = |paths: &[PathBuf]| {
        let paths = paths.iter().map(|path| path.to_str().unwrap());
        Ended::of(["report", "--format", "json"].into_iter().chain(paths)).assert_done().report()
    };

    assert_judged(&report(&profiles));
    let mut by_name = profiles.clone();
    by_name.sort();
    assert_ne!(by_name, profiles);
    assert_judged(&report(&by_name));
    let few =
        Ended::of(["report", profiles[0].to_str().unwrap(), profiles[3].to_str().unwrap()]).assert_done();
    let said = "For a verdict, it takes 6 dumps over 1 min 0 s at least: these are 2 over 30 s.";
    assert!(few.stdout.contains(said), "{}", few.stdout);
}

#[test]
fn profiles_are_shown_as_they_appear() {
    require_library!(JEMALLOC);
    let written = tempfile::tempdir().unwrap();
    let profiles = profiles(&written);
    let (watched, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // All at once, so that one look finds all of them.
    let appear = |name: &str, paths: &[PathBuf]| {
        let folder = written.path().join(name);
        fs::create_dir(&folder).unwrap();
        for path in paths {
            fs::rename(path, folder.join(path.file_name().unwrap())).unwrap();
        }
        fs::rename(folder, watched.path().join(name)).unwrap();
    };
    let mut command = Command::new(PROGRAM);
    let pattern = watched.path().join("*/*.heap");
    command.args(["report", "--watch", pattern.to_str().unwrap(), "--format", "json,svg", "--out"]);
    let mut jjleak = Jjleak::start({
        command.arg(out.path()).stdout(Stdio::piped());
        command
    });
    jjleak.wait_for("jjleak: waiting for files that match");

    let damaged = written.path().join("damaged.heap");
    fs::write(&damaged, "heap_v2/-\n").unwrap();
    appear("damaged", &[damaged]);
    jjleak.wait_for("jjleak: left out: ");
    let wait_for_report = |jjleak: &mut Jjleak| {
        // One for each format.
        jjleak.wait_for("jjleak: wrote");
        jjleak.wait_for("jjleak: wrote");
        report_in(out.path())
    };
    appear("first", &profiles[..1]);
    assert!(wait_for_report(&mut jjleak).verdicts.is_empty());
    appear("others", &profiles[1..]);
    assert_judged(&wait_for_report(&mut jjleak));
    jjleak.interrupt().assert_done();
}

fn report_in(folder: &Path) -> Document {
    let is_json = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    let path = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_json).unwrap();
    serde_json::from_str(fs::read_to_string(path).unwrap().lines().last().unwrap()).unwrap()
}
