//! Third-party programs as Debian builds them: stacks are complete, and all exceptions are explained.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use jjleak::render::json::{Document, StackDocument};

use crate::support::bounded::LONG;
use crate::support::compile;
use crate::support::java::{self, Java};
use crate::support::jjleak::{Jjleak, PROGRAM};
use crate::support::lines::Lines;
use crate::support::privilege::{is_long, require_program};
use crate::support::process::Process;
use crate::support::shares::Shares;

/// Runs a command under jjleak. Mappings that are created while it runs are unknown for a moment (`no_mapping`); the number of
/// affected stacks is reported, and depends on the machine.
fn assert_complete(command: &[&str], at_least: u64) {
    Shares::of(&[report_of(command)]).assert_complete(command[0], at_least, &["no_mapping", "lost"]);
}

fn report_of(command: &[&str]) -> Document {
    run(command).0
}

/// Runs jjleak on a command; returns its report and its messages.
fn run(command: &[&str]) -> (Document, Vec<String>) {
    let mut jjleak = Command::new(PROGRAM);
    jjleak.args(["-v", "--out", "report.json", "--format", "json", "--"]).args(command);
    jjleak.env("PYTHONMALLOC", "malloc").stdout(Stdio::piped());

    let ended = Jjleak::start(jjleak).end().assert_done();

    let reports = fs::read_to_string(ended.file("report.json")).unwrap();
    (serde_json::from_str(reports.lines().last().unwrap()).unwrap(), ended.stderr)
}

/// Number of repetitions of a program's work.
fn times(short: u32, long: u32) -> u32 {
    if is_long() { long } else { short }
}

/// Runs a short program that loads one library after the other and runs its code at once. In the first run, much is new; from
/// then on jjleak has the data, and no exceptions are allowed, however late it follows.
fn assert_complete_when_known(command: &[&str], at_least: u64) {
    report_of(command);
    Shares::of(&[report_of(command)]).assert_complete(command[0], at_least, &[]);
}

#[test]
fn stacks_of_a_perl_that_loads_libraries_are_complete_the_second_time() {
    require_program!("perl");
    let command = ["/usr/bin/perl", "-MPOSIX", "-MData::Dumper", "-MSocket", "-e", "print 1"];
    assert_complete_when_known(&command, 5000);
}

#[test]
fn stacks_of_a_python_that_loads_libraries_are_complete_the_second_time() {
    require_program!("python3");
    assert_complete_when_known(&["/usr/bin/python3", "-c", "import ssl, sqlite3, decimal"], 5000);
}

/// The started program executes another one.
#[test]
fn stacks_of_a_python_that_a_shell_becomes_are_complete_the_second_time() {
    require_program!("python3");
    let command = ["/bin/sh", "-c", "exec /usr/bin/python3 -c 'import ssl, sqlite3, decimal'"];
    assert_complete_when_known(&command, 5000);
}

#[test]
fn stacks_of_perl_are_complete() {
    require_program!("perl");
    let work = format!(
        r#"for (1 .. {}) {{ my @kept = map {{ {{ number => $_, text => "x" x $_ }} }} 1 .. 1000;
        my %index = map {{ $_->{{text}} => $_ }} @kept; print scalar(sort keys %index), "\n"; }}"#,
        times(1, 20)
    );
    assert_complete(&["/usr/bin/perl", "-MPOSIX", "-MData::Dumper", "-e", &work], 5000);
}

#[test]
fn stacks_of_python_are_complete() {
    require_program!("python3");
    let work = format!(
        "import hashlib, json\nfor i in range({}):\n \
         json.loads(json.dumps({{'id': i, 'items': [{{'name': 'n%d' % j}} for j in range(40)]}}))",
        times(100, 3000)
    );
    assert_complete(&["/usr/bin/python3", "-c", &work], 10_000);
}

#[test]
fn stacks_of_sqlite_are_complete() {
    require_program!("sqlite3");
    let work = format!(
        "create table t(name text); with recursive n(i) as (select 1 union all select i + 1 from n where i < {}) \
         insert into t select 'name ' || i from n; select count(distinct name) from t;",
        times(2000, 100_000)
    );
    assert_complete(&["/usr/bin/sqlite3", ":memory:", &work], 1000);
}

#[test]
fn stacks_of_git_are_complete() {
    require_program!("git");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests");
    let no_repository = ["diff", "--no-index", "--stat", "/dev/null"];
    let file = format!("{folder}/real/support/accounts.rs");
    // Git's exit status is 1 for a difference; only the stacks matter.
    let command: Vec<_> = ["/usr/bin/git"].iter().chain(&no_repository).copied().chain([&*file]).collect();
    assert_complete(&command, 100);
}

#[test]
fn stacks_of_the_cplusplus_compiler_are_complete() {
    require_program!("g++");
    // The compiler itself: g++ is only a driver.
    let output = Command::new("g++").arg("-print-prog-name=cc1plus").output().unwrap();
    let compiler = String::from_utf8(output.stdout).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/stacks/stacks.cpp");
    assert_complete(&[compiler.trim(), "-quiet", "-O1", source, "-o", "/dev/null"], 1000);
}

#[test]
fn stacks_of_gdb_are_complete() {
    require_program!("gdb");
    let program =
        ["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "info line main", "/usr/bin/perl"];
    assert_complete(&[&["/usr/bin/gdb"], &program[..]].concat(), 10_000);
}

/// Generated code keeps frame pointers: stacks through it are whole, but are not reported as complete.
#[test]
fn stacks_of_node_reach_the_root() {
    require_program!("node");
    let work = format!(
        "let kept = []; for (let i = 0; i < {}; i++) kept.push(Buffer.alloc(100 + i % 5000)); \
         require('crypto').createHash('sha256').update('x').digest('hex'); console.log(kept.length)",
        times(3000, 100_000)
    );
    let report = report_of(&["node", "-e", &work]);
    let is_through_generated = |stack: &StackDocument| stack.status == "frame_pointers";
    Shares::of_those([&report], |stack| !is_through_generated(stack)).assert_complete(
        "node",
        10_000,
        &["no_mapping", "lost"],
    );
    let through_generated: Vec<_> =
        report.stacks.iter().filter(|stack| is_through_generated(stack)).collect();
    assert!(!through_generated.is_empty());
    for stack in through_generated {
        let root = &stack.frames.last().unwrap().symbol;
        assert!(ROOTS.iter().any(|known| root.starts_with(known)), "{stack:#?}");
    }
}

/// Functions in which threads of glibc begin, in all forms of stripping.
const ROOTS: [&str; 4] = ["_start", "__clone", "clone", "thread_start"];

/// Allocations of libjvm and of its libraries. A stack through code that has just been generated ends there (`generated_code`),
/// or was taken while its rows were written (`changed`).
#[test]
fn stacks_of_the_native_part_of_a_jvm_are_complete() {
    require_program!("javac");
    let mut java = Java::start(Path::new("java"), &["-Xbatch"]);
    for _ in 0..2 {
        java.ask("warm 20000");
    }
    let jjleak = java.attach_to_all();
    java.ask(&format!("warm {}", times(20_000, 1_000_000)));
    let report = jjleak.interrupt().assert_done().report();
    let excused = ["changed", "generated_code"];
    Shares::of([&report]).assert_complete("a JVM", 1000, &excused);
}

/// It ends some tens of milliseconds after it has described its code: stacks from before that are finished when its memory is gone. A busy
/// host may not get to read the description in time: stacks end at its code then (`generated_code`) instead of following frame pointers,
/// which would invent frames.
#[test]
fn stacks_of_a_jvm_from_its_start_are_complete() {
    require_program!("java");
    let without_archive: &[&str] = &["java", "-Xshare:off", "-XX:TieredStopAtLevel=1", "-version"];
    for command in [&["java", "-version"], without_archive] {
        // A debug build compiles the rows of libjvm for longer than this program runs. They are in the cache from then on.
        run(command);
        let (start, said) = run(command);
        let is_read = said.iter().any(|line| line.contains("Java methods of JDK "));
        let excused: &[&str] = if is_read { &["changed"] } else { &["changed", "generated_code"] };
        Shares::of([&start]).assert_complete_from_the_start(&command.join(" "), 1000, excused);
    }
}

/// The JVM's library is mapped, and describes no code before the program ends.
#[test]
fn stacks_of_a_jvm_that_ends_before_it_is_read_end_at_its_code() {
    require_program!("java");
    let java = fs::canonicalize("/usr/bin/java").unwrap();
    let library = java.ancestors().nth(2).unwrap().join("lib/server/libjvm.so");
    let script = "printf 'kept\\n' > kept; exec env LD_PRELOAD=\"$0\" \"$1\" < kept";
    let program = compile::generated();

    let (report, _) = run(&["sh", "-c", script, library.to_str().unwrap(), program.to_str().unwrap()]);

    let of_call = |stack: &&StackDocument| stack.allocated.bytes == 1301;
    let [stack] = report.stacks.iter().filter(of_call).collect::<Vec<_>>()[..] else {
        panic!("{:#?}", report.stacks)
    };
    assert_eq!(stack.status, "generated_code", "{:#?}", stack.frames);
}

/// Until jjleak has read the layout of its code, the kernel side sends copies of the stacks.
#[test]
fn stacks_of_a_jvm_that_starts_below_a_watched_shell_are_complete() {
    require_program!("java");
    let mut shell = Command::new("sh");
    shell.args(["-c", "read start; java -Xshare:off -cp \"$0\" Leak; true"]).arg(java::classes());
    let mut shell = Process::spawn(shell.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let (mut stdin, stdout) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
    let pid = shell.id().to_string();
    let jjleak = Jjleak::attached(["--follow", "-p", &pid, "3600", "--format", "json"]);
    writeln!(stdin, "start").unwrap();
    Lines::of("java", stdout).skip_to("ready", LONG);
    let reports = jjleak.interrupt().assert_done().reports();
    drop(stdin);
    shell.end(LONG);
    Shares::of(&reports).assert_complete_from_the_start("java", 5_000, &["changed"]);
}

/// A debugger that reads another program's symbols, on request once jjleak is attached.
#[test]
fn stacks_of_a_running_gdb_are_complete() {
    require_program!("gdb");
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-q", "-ex", "set debuginfod enabled off", "-ex", "echo ready\\n"]);
    let mut gdb = Process::spawn(gdb.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = Lines::of("gdb", gdb.stdout.take().unwrap());
    said.skip_to("ready", LONG);
    let jjleak = Jjleak::attached(["-p", &gdb.id().to_string(), "3600", "--format", "json"]);
    let mut stdin = gdb.stdin.take().unwrap();
    writeln!(stdin, "file /usr/bin/perl\ninfo line main\necho done\\n").unwrap();
    said.skip_to("(gdb)", LONG);
    drop(stdin);
    gdb.end(LONG);
    let report = jjleak.end().assert_done().report();
    Shares::of([&report]).assert_complete("gdb", 10_000, &[]);
}

/// Allocates in a thread, in a function that the library calls back, and frees all.
const OF_MUSL: &str = r"
    #include <pthread.h>
    #include <stdlib.h>
    static void *work(void *unused)
    {
        for (int time = 0; time < 100; time++) {
            void *volatile block = malloc(1000);
            free(block);
        }
        return unused;
    }
    static int compare(const void *one, const void *other)
    {
        void *volatile block = malloc(3);
        free(block);
        return *(const int *)one - *(const int *)other;
    }
    int main(void)
    {
        pthread_t thread;
        pthread_create(&thread, NULL, work, NULL);
        pthread_join(thread, NULL);
        int numbers[50];
        for (int index = 0; index < 50; index++) {
            numbers[index] = index * 37 % 50;
        }
        qsort(numbers, 50, sizeof numbers[0], compare);
        return 0;
    }";

/// musl, Alpine's C library, is built without call frame information: rows come from its code.
#[test]
fn stacks_of_a_program_of_musl_are_complete_up_to_its_start() {
    require_program!("musl-gcc");
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("musl.c"), folder.path().join("musl"));
    fs::write(&source, OF_MUSL).unwrap();
    let mut compiler = Command::new("musl-gcc");
    compiler.args(["-O2", "-g", "-fno-builtin", "-pthread", "-o"]).args([&program, &source]);
    assert!(compiler.status().unwrap().success());

    let report = report_of(&[program.to_str().unwrap()]);

    Shares::of(std::slice::from_ref(&report)).assert_complete("a program of musl", 200, &[]);
    let named = |leaf: &str| {
        let names =
            |stack: &StackDocument| stack.frames.iter().map(|frame| frame.symbol.clone()).collect::<Vec<_>>();
        report.stacks.iter().map(names).find(|names| names.get(1).is_some_and(|name| name == leaf)).unwrap()
    };
    let compared = named("compare");
    assert!(compared.iter().any(|name| name == "main"), "{compared:?}");
    assert_eq!(compared.last().unwrap(), "_start");
    assert!(named("work").iter().all(|name| name != "main"));
}
