//! Generated code has the names that the program writes to its perf map. Anything else in the place of the map is not read.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use jjleak::render::json::{Document, StackDocument};
use nix::sys::stat::Mode;
use nix::unistd::{Uid, chown, mkfifo};

use crate::support::accounts::assert_nothing_lost;
use crate::support::compile;
use crate::support::jit::Jit;
use crate::support::privilege::{require_bpf, require_program, require_time};

fn jit() -> Jit {
    Jit::start(&mut Command::new(compile::jit()))
}

/// The program after it has generated a function and written its name.
fn with_function(mut jit: Jit) -> Jit {
    jit.ask("compile function 0");
    jit.ask("map function");
    jit
}

/// The stack of the blocks of this size.
fn stack(report: &Document, size: u64) -> &StackDocument {
    let is_of_size = |stack: &&StackDocument| stack.live.bytes == size * stack.live.objects;
    let mut stacks = report.stacks.iter().filter(|stack| stack.live.objects > 0).filter(is_of_size);
    let stack = stacks.next().unwrap_or_else(|| panic!("no blocks of {size} bytes: {report:#?}"));
    assert!(stacks.next().is_none(), "two stacks of {size} bytes");
    stack
}

fn symbols(stack: &StackDocument) -> Vec<&str> {
    stack.frames.iter().map(|frame| frame.symbol.as_str()).collect()
}

#[test]
fn generated_code_has_the_names_of_the_perf_map_and_stacks_pass_through_it() {
    require_bpf!();
    let mut jit = with_function(jit());
    let jjleak = jit.attach(0);
    jit.ask("call 100 1000");
    let report = jjleak.interrupt().assert_done().report();

    assert_nothing_lost(&report);
    let stack = stack(&report, 1000);
    let known = ["malloc", "site_jit", "function inner", "function outer", "main"];
    assert_eq!(symbols(stack)[..5], known);
    assert_eq!((stack.live.objects, &*stack.status), (100, "frame_pointers"));
    assert_eq!(stack.frames.last().unwrap().symbol, "_start");
    let generated = &stack.frames[2];
    assert_eq!((&*generated.kind, &*generated.module), ("native", ""));
}

#[test]
fn generated_code_in_memory_that_has_a_file_has_names_too() {
    require_bpf!();
    let mut jit = with_function(Jit::start(Command::new(compile::jit()).arg("memfd")));
    let jjleak = jit.attach(0);
    jit.ask("call 100 1000");
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!(symbols(stack(&report, 1000))[2..4], ["function inner", "function outer"]);
}

#[test]
fn code_that_takes_the_place_of_other_code_does_not_take_its_stacks() {
    require_bpf!();
    let mut jit = jit();
    jit.ask("compile first 0");
    jit.ask("map first");
    let mut jjleak = jit.attach(0);
    jit.ask("call 100 1000");
    // After names were read, and before the stack is requested.
    jjleak.wait_for(" INFO code of process");
    jit.ask("compile second 3");
    jit.ask("map second");
    jit.ask("call 100 2000");
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!(symbols(stack(&report, 1000))[2..4], ["first inner", "first outer"]);
    assert_eq!(symbols(stack(&report, 2000))[2..4], ["second inner", "second outer"]);
}

#[test]
fn names_that_are_written_down_later_are_found_until_the_stack_is_reported() {
    require_bpf!();
    let mut jit = jit();
    jit.ask("compile late 0");
    let jjleak = jit.attach(0);
    jit.ask("call 100 1000");
    jit.ask("map late");
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!(symbols(stack(&report, 1000))[2..4], ["late inner", "late outer"]);
}

#[test]
fn what_a_program_has_written_down_names_its_stacks_when_it_is_over() {
    require_bpf!();
    let mut jit = with_function(jit());
    let jjleak = jit.attach(0);
    jit.ask("call 100 1000");
    jit.kill();
    let report = jjleak.end().assert_done().report();

    assert_eq!(symbols(stack(&report, 1000))[2..4], ["function inner", "function outer"]);
}

/// Profiles a program with something else in the place of its perf map. Returns jjleak's message on it.
fn with_hostile_map(put: impl FnOnce(&Path)) -> String {
    let mut jit = jit();
    jit.ask("compile function 0");
    put(jit.perf_map());
    let jjleak = jit.attach(0);
    jit.ask("call 100 1000");
    let ended = jjleak.interrupt().assert_done();
    let report = ended.report();
    let frames = &stack(&report, 1000).frames;
    assert!(frames[2].symbol.is_empty() && frames[3].symbol.is_empty(), "{frames:#?}");
    assert_eq!(frames.last().unwrap().symbol, "_start");
    let about: Vec<_> = ended.stderr.iter().filter(|line| line.contains("perf-")).cloned().collect();
    about.join("\n")
}

#[test]
fn what_is_no_file_of_the_process_is_not_read() {
    require_bpf!();
    let link = with_hostile_map(|path| symlink("/etc/shadow", path).unwrap());
    assert!(link.ends_with("is not read: it is a symbolic link"), "{link}");
    let pipe = with_hostile_map(|path| mkfifo(path, Mode::from_bits_truncate(0o600)).unwrap());
    assert!(pipe.ends_with("is not read: it is a pipe, not a file"), "{pipe}");
    let folder = with_hostile_map(|path| fs::create_dir(path).unwrap());
    assert!(folder.ends_with("is not read: it is a folder, not a file"), "{folder}");
}

#[test]
fn a_file_that_says_it_is_huge_is_not_read() {
    require_bpf!();
    let sparse = with_hostile_map(|path| File::create(path).unwrap().set_len(10 << 30).unwrap());
    assert!(
        sparse.ends_with("it has 10737418240 bytes, and jjleak reads perf maps of up to 64 MiB"),
        "{sparse}"
    );
}

#[test]
fn a_file_of_another_user_is_not_read() {
    require_bpf!();
    // The fixture and the author of the map are different users, neither of them root.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=4711", "--regid=4711", "--clear-groups"]).arg(compile::jit());
    let mut jit = Jit::start(&mut command);
    jit.ask("compile function 0");
    fs::write(jit.perf_map(), "0 7fffffffffff somebody else's\n").unwrap();
    chown(jit.perf_map(), Some(Uid::from_raw(4712)), None).unwrap();
    let jjleak = jit.attach(0);
    jit.ask("call 100 1000");
    let ended = jjleak.interrupt().assert_done();

    assert_eq!(symbols(stack(&ended.report(), 1000))[2], "");
    let why = "it belongs to user 4712, and the process runs as user 4711";
    assert!(ended.stderr.iter().any(|line| line.ends_with(why)), "{:#?}", ended.stderr);
}

#[test]
fn noise_names_nothing() {
    require_bpf!();
    let noise: Vec<u8> = (0..1u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let about = with_hostile_map(|path| fs::write(path, noise).unwrap());
    assert!(!about.contains("not read"), "{about}");
}

#[test]
fn a_process_with_a_pid_and_files_of_its_own_has_its_perf_map_there() {
    require_program!("unshare");
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("tmp");
    fs::create_dir(&folder).unwrap();
    for (path, mode) in [(root.path(), 0o755), (&folder, 0o1777)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    compile::copy(compile::static_jit(), root.path());
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "chroot", "--userspec=4711:4711"]);
    let mut jit = Jit::start(command.arg(root.path()).arg("/static-jit"));
    jit.ask("compile function 0");
    jit.ask("map function");
    let child = fs::read_to_string(format!("/proc/{0}/task/{0}/children", jit.pid())).unwrap();
    let jjleak = Jit::attach_to(child.trim(), 0);
    jit.ask("call 100 1000");
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!(report.process.container_pid, Some(1));
    assert_eq!(symbols(stack(&report, 1000))[2..4], ["function inner", "function outer"]);
    assert!(folder.join("perf-1.map").exists());
}

#[test]
fn node_has_names_for_javascript() {
    require_program!("node");
    require_time!("takes a minute (--long)");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/leak.js");
    let mut command = Command::new("node");
    command.args(["--perf-basic-prof", "--interpreted-frames-native-stack"]).arg(script);
    let mut node = Jit::start(&mut command);
    node.ask("leak 20000");
    let jjleak = node.attach(100_000);
    node.ask("leak 1000");
    let report = jjleak.interrupt().assert_done().report();

    // Perf maps have no names of inlined methods.
    let named = report.stacks.iter().filter(|stack| {
        let symbols = symbols(stack);
        let is_work = |symbol: &&str| symbol.starts_with("JS:") && symbol.contains("work /");
        symbols.iter().any(is_work) && symbols.last() == Some(&"_start")
    });
    let named: u64 = named.map(|stack| stack.live.objects).sum();
    assert!(named >= 990, "{named} of 1000");
}
