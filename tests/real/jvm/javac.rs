//! Java's own compiler, on source files of the JDK: a large third-party program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::accounts::assert_nothing_lost;
use crate::support::bounded::HOURLONG;
use crate::support::java::{Java, Jdk, jdks};
use crate::support::privilege::{is_long, record, require_program};
use crate::support::shares::Shares;

/// Sizes of the counted blocks: the arenas of the JVM's compilers. Smaller blocks have tens of thousands of distinct stacks, for
/// which an unoptimized jjleak needs minutes.
const LARGE: [u64; 2] = [8000, 1 << 30];

/// Path of a JDK's source files, if it has them and a compiler.
fn sources(jdk: &Jdk) -> Option<PathBuf> {
    let sources = jdk.home.join("lib/src.zip");
    (sources.exists() && jdk.home.join("bin/jar").exists()).then_some(sources)
}

/// Unpacks a folder of the sources, and writes a list of its files.
fn unpack(jdk: &Jdk, sources: &Path, folder: &str, into: &Path) -> PathBuf {
    let mut jar = Command::new(jdk.home.join("bin/jar"));
    jar.current_dir(into).arg("--extract").arg("--file").arg(sources).arg(folder);
    assert!(jar.status().unwrap().success());
    let mut files: Vec<_> = files_below(&into.join(folder)).into_keys().collect();
    files.sort();
    let files: Vec<_> = files.iter().map(|file| into.join(folder).join(file).display().to_string()).collect();
    assert!(files.len() > 50, "only {} files", files.len());
    let list = into.join("files");
    fs::write(&list, files.join("\n")).unwrap();
    list
}

/// Contents of the files below a folder.
fn files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn the_compiler_makes_what_it_makes_alone_and_its_stacks_are_complete() {
    require_program!("javac");
    let jdk = jdks().into_iter().rev().find_map(|jdk| Some((sources(&jdk)?, jdk)));
    let Some((sources, jdk)) = jdk else {
        // No package that the tests install has them.
        return record("javac", "no JDK with its source files is installed");
    };
    let folder = tempfile::tempdir().unwrap();
    let package = if is_long() { "java.base/java" } else { "java.base/java/util/concurrent" };
    let list = unpack(&jdk, &sources, package, folder.path());
    let (alone, profiled) = (folder.path().join("alone"), folder.path().join("profiled"));
    let work = |into: &Path| {
        let patch = format!("java.base={}", folder.path().join("java.base").display());
        let (into, list) = (into.display(), list.display());
        format!("-nowarn -proc:none -XDignore.symbol.file --patch-module {patch} -d {into} @{list}")
    };
    let compiler = || Java::start_compiler(&jdk.java());
    assert_eq!(compiler().ask_within(HOURLONG, &work(&alone)), ["status 0"]);

    let mut java = compiler();
    let jjleak = java.attach_to(LARGE);
    let status = java.ask_within(HOURLONG, &work(&profiled));
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!(status, ["status 0"]);
    assert!(files_below(&alone) == files_below(&profiled), "the class files differ");
    assert_nothing_lost(&report);
    Shares::of([&report]).assert_complete("javac", 1000, &[]);
}
