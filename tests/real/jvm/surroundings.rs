//! JVMs in unusual places: stacks and names are the same.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use jjleak::render::json::Document;
use tempfile::TempDir;

use crate::jvm::methods::{ROUNDS, assert_as_it_says, assert_as_recorded, assert_as_the_jvm_says};
use crate::support::java::{Java, classes, java_frames, javas};
use crate::support::privilege::{require_library, require_program};

/// Folder of the installed JDK.
fn home() -> PathBuf {
    let java = fs::canonicalize("/usr/bin/java").unwrap();
    java.ancestors().nth(2).unwrap().to_owned()
}

/// The paths of the JDK and the program lead elsewhere outside.
#[test]
fn a_jvm_in_a_container_says_the_same() {
    require_program!("javac");
    require_program!("unshare");
    let script = "mount --bind \"$0\" /mnt && mount --bind \"$1\" /srv && mount -t tmpfs -o mode=1777 tmpfs /tmp && \
        cd / && exec setpriv --reuid=4711 --regid=4712 --clear-groups /srv/bin/java -Xbatch -cp /mnt Leak";
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]);
    let java = Java::spawn_below(command.arg(classes()).arg(home()));
    assert!(!Path::new("/srv/bin/java").exists());

    let report = assert_as_it_says(java, ROUNDS);

    assert_eq!(report.process.container_pid, Some(1));
    assert!(report.stacks.iter().all(|stack| is_through(stack, "/srv/lib/server/libjvm.so")));
}

fn is_through(stack: &jjleak::render::json::StackDocument, module: &str) -> bool {
    stack.frames.iter().any(|frame| frame.module == module && frame.kind == "jvm")
}

#[test]
fn a_jvm_with_another_allocator_says_the_same() {
    const ALLOCATOR: &str = "libjemalloc.so.2";
    require_program!("javac");
    require_library!(ALLOCATOR);
    for java in javas() {
        let mut command = Command::new(java);
        command.env("LD_PRELOAD", ALLOCATOR).args(["-Xbatch", "-cp"]).arg(classes()).arg("Leak");

        let report = assert_as_it_says(Java::spawn(&mut command), ROUNDS);

        let calls = || report.stacks.iter().map(|stack| &stack.frames[0]);
        assert!(calls().all(|frame| frame.symbol == "malloc" && frame.module.ends_with(ALLOCATOR)));
    }
}

#[test]
fn a_jvm_that_lets_nobody_in_says_the_same() {
    require_program!("javac");
    let options = ["-XX:+DisableAttachMechanism", "-Xrs", "-XX:-UsePerfData"];
    assert_as_the_jvm_says(Path::new("java"), &options);
}

#[test]
fn a_jvm_that_has_ended_keeps_the_names_of_its_stacks() {
    require_program!("javac");
    for java in javas() {
        let mut java = Java::start(&java, &["-Xbatch"]);
        java.ask("warm 20000");
        let jjleak = java.attach();
        java.ask("leak 500");
        let mut sites = java.accounts();
        java.ask_at_last("halt 500");
        let report = jjleak.end().assert_done().report();

        for site in sites.values_mut() {
            site.objects *= 2;
        }
        assert_as_recorded(&report, &sites);
    }
}

/// Its allocations come from new call sites, and it ends at once.
#[test]
fn a_jvm_that_ends_in_the_middle_is_named_or_says_how_much_of_it_is_not() {
    require_program!("javac");
    let java = Java::start(Path::new("java"), &[]);
    let jjleak = java.attach();
    java.ask_at_last("halt 1");
    let report = jjleak.end().assert_done().report();

    assert_eq!(report.live.objects, 9);
    assert!(report.stacks.iter().all(|stack| stack.status == "complete"), "{:#?}", report.stacks);
    let is_named = |stack: &&jjleak::render::json::StackDocument| {
        java_frames(stack).last().is_some_and(|frame| frame.starts_with("Leak.main:"))
    };
    let named = report.stacks.iter().filter(is_named).count();
    let unnamed = report.notes.get("unnamed_code").copied().unwrap_or_default();
    println!("{named} of {} stacks are named, {unnamed} frames are not", report.stacks.len());
    assert!(named == report.stacks.len() || unnamed > 0);
}

/// A folder with the layout of a JDK, except for the name of the JVM's library. Returns it, the library, and the program that
/// loads it.
fn embedded() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let home = home();
    let (lib, server) = (folder.path().join("lib"), folder.path().join("lib/server"));
    fs::create_dir_all(&server).unwrap();
    for file in fs::read_dir(home.join("lib")).unwrap().map(|file| file.unwrap().path()) {
        if !file.ends_with("server") {
            symlink(&file, lib.join(file.file_name().unwrap())).unwrap();
        }
    }
    let library = server.join("engine.bin");
    fs::copy(home.join("lib/server/libjvm.so"), &library).unwrap();
    let program = folder.path().join("embedder");
    let include = home.join("include");
    let flags = ["-O2".as_ref(), "-I".as_ref(), include.as_os_str(), "-I".as_ref()];
    let mut compiler = Command::new("cc");
    compiler.args(flags).arg(include.join("linux")).arg("-o").arg(&program);
    assert!(compiler.arg(fixture("embedder.c")).args(["-ldl"]).status().unwrap().success());
    (folder, library, program)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/java").join(name)
}

/// The library has another name, and its file is deleted.
#[test]
fn a_jvm_in_another_program_is_known_by_what_its_library_exports() {
    require_program!("javac");
    let (_folder, library, program) = embedded();
    let mut command = Command::new(program);
    command.arg(&library).args(["Leak", "-Xbatch"]);
    let mut path = std::ffi::OsString::from("-Djava.class.path=");
    path.push(classes());
    let java = Java::spawn(command.arg(path));
    fs::remove_file(&library).unwrap();

    let report: Document = assert_as_it_says(java, ROUNDS);

    assert_eq!(report.process.comm, "embedder");
    assert!(report.stacks.iter().all(|stack| is_through(stack, &library.display().to_string())));
}
