//! `jjleak doctor`: describes a process without touching it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::bounded::SOON;
use crate::support::compile;
use crate::support::java::{Java, classes, jdks};
use crate::support::jit::Jit;
use crate::support::jjleak::PROGRAM;
use crate::support::lines::Lines;
use crate::support::privilege::{require_bpf, require_library, require_program};
use crate::support::process::Process;

fn doctor(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("doctor").args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    println!("{text}");
    text
}

fn examined(process: &Process) -> Output {
    doctor(&["-p", &process.id().to_string()])
}

#[test]
fn the_host_alone_can_be_examined() {
    require_bpf!();
    let output = doctor(&[]);
    assert_eq!(output.status.code(), Some(0));
    let text = text(&output);
    assert!(text.starts_with("Host\n") && text.contains("  yes  privilege to load BPF programs"), "{text}");
    assert!(!text.contains("NO ") && !text.contains("Process"), "{text}");
}

#[test]
fn doctor_reports_a_process_with_its_allocator_its_stacks_and_its_names() {
    require_bpf!();
    let process =
        Process::spawn(Command::new(compile::ledger()).stdin(Stdio::piped()).stdout(Stdio::piped()));

    let output = examined(&process);

    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = text(&output);
    let line = |ends: &str| text.lines().find(|line| line.ends_with(ends)).unwrap().to_owned();
    let ledger = line("/ledger");
    assert!(ledger.trim_start().starts_with("whole ") && ledger.contains("all, lines"), "{text}");
    assert!(line("/libc.so.6").trim_start().starts_with("whole "), "{text}");
    assert!(text.contains("yes  glibc in libc.so.6: "), "{text}");
    // The result depends on the C library's code; it is known for that of Debian 12 only.
    let is_debian_12 = fs::read_to_string("/etc/os-release").is_ok_and(|it| it.contains("bookworm"));
    assert!(!is_debian_12 || text.contains("malloc: one probe inside it"), "{text}");
}

#[test]
fn a_program_without_an_allocator_cannot_be_profiled() {
    require_bpf!();
    let process = Process::spawn(Command::new(compile::bare()).stdin(Stdio::piped()).stdout(Stdio::piped()));

    let output = examined(&process);

    assert_eq!(output.status.code(), Some(1));
    let text = text(&output);
    assert!(text.contains("NO   allocator that jjleak knows"), "{text}");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("maps no allocator that jjleak knows\njjleak: to do: "), "{stderr}");
}

#[test]
fn doctor_reports_a_jvm_and_that_it_needs_no_option() {
    require_program!("javac");
    let options =
        ["-XX:+UseSerialGC", "-XX:NativeMemoryTracking=summary", "-Xrs", "-XX:MaxDirectMemorySize=64m"];
    let java = Java::start(Path::new("java"), &options);

    let text = text(&doctor(&["-p", &java.pid().to_string()]));
    // With -Xrs it listens from its start; its socket stays when it is killed.
    fs::remove_file(format!("/tmp/.java_pid{}", java.pid())).unwrap();

    let said = |what: &str| assert!(text.contains(what), "no {what:?} in {text}");
    said("Java\n  yes  JDK ");
    said(", Serial collector\n");
    said("  yes  methods, inlined methods and lines: from the JVM's own structures; no option is needed\n");
    said(
        "  yes  who allocates in the Java heap (jjleak heap): from the JVM's functions; no option is needed\n",
    );
    said("-XX:MaxDirectMemorySize=67108864 (64.0 MiB), -XX:+ReduceSignalUsage\n");
    said("native memory tracking (NMT) is on (summary)\n");
    said("sends a request only if it already listens: it runs with -Xrs");
    said("KiB of generated code: the JVM's, see below\n");
}

/// Runtimes created by `jlink` have no file that states the vendor.
#[test]
fn every_jdk_is_reported_with_its_vendor_and_its_collector() {
    require_program!("javac");
    for jdk in jdks() {
        let java = Java::start(&jdk.java(), &["-XX:+UseParallelGC"]);

        let text = text(&doctor(&["-p", &java.pid().to_string()]));

        let release = format!("  yes  JDK {}", jdk.release);
        let told = text.lines().find(|line| line.starts_with(&release));
        let is_whole = |line: &str| line.contains(" by ") && line.ends_with(", Parallel collector");
        assert!(told.is_some_and(is_whole), "{}: {text}", jdk.home.display());
        assert!(
            text.contains("  yes  methods, inlined methods and lines: from the JVM's own structures"),
            "{text}"
        );
        let is_followed = text.contains("  yes  who allocates in the Java heap");
        let is_too_old = text.contains("JDK 8 does not say which thread allocates");
        assert_eq!((is_followed, is_too_old), (jdk.release != "8", jdk.release == "8"), "{text}");
    }
}

/// All files of this host exist under another root.
#[test]
fn a_jvm_in_a_root_of_its_own_is_reported_with_its_vendor() {
    require_program!("javac");
    require_program!("unshare");
    let root = tempfile::tempdir().unwrap();
    // With -UsePerfData, the JVM publishes no data itself; the file beside it has them.
    let script = "mount --rbind / \"$0\" && exec chroot \"$0\" java -XX:-UsePerfData -cp \"$1\" Leak";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(root.path()).arg(classes());
    let inside = Java::spawn(&mut command);
    let outside = Java::start(Path::new("java"), &[]);

    let [inside, outside] = [inside, outside].map(|java| text(&doctor(&["-p", &java.pid().to_string()])));

    let jdk = |text: &str| text.lines().find(|line| line.contains("  yes  JDK ")).map(str::to_owned);
    assert!(jdk(&outside).is_some_and(|line| line.contains(" by ")), "{outside}");
    assert_eq!(jdk(&inside), jdk(&outside));
    assert!(inside.contains(&root.path().display().to_string()), "{inside}");
}

/// No JDK that is linked into its launcher was available; the test covers the search in a program's own exports.
#[test]
fn a_launcher_that_a_jvm_is_linked_into_is_one() {
    require_bpf!();
    let launcher = Java::spawn(&mut Command::new(compile::launcher()));

    let text = text(&doctor(&["-p", &launcher.pid().to_string()]));

    assert!(text.contains("\nJava\n"), "{text}");
    assert!(
        text.contains(
            "  NO   methods, except those of a perf map, without inlined methods: HotSpot describes no "
        ),
        "{text}"
    );
}

#[test]
fn generated_code_is_reported_with_the_names_that_it_has() {
    require_bpf!();
    let mut jit = Jit::start(&mut Command::new(compile::jit()));
    let examined = |jit: &Jit| text(&doctor(&["-p", &jit.pid().to_string()]));
    let path = jit.perf_map().display().to_string();

    let without = examined(&jit);
    jit.ask("map function");
    let with = examined(&jit);
    fs::remove_file(jit.perf_map()).unwrap();
    symlink("/etc/shadow", jit.perf_map()).unwrap();
    let refused = examined(&jit);

    assert!(without.contains(&format!("without names: {path} does not exist\n")), "{without}");
    assert!(without.contains("have it write a perf map"), "{without}");
    assert!(with.contains(&format!("{path} has 2 names, and 1 invalid lines\n")), "{with}");
    assert!(refused.contains(&format!("{path} is not read: it is a symbolic link\n")), "{refused}");
}

#[test]
fn what_doctor_cannot_examine_is_an_error_with_a_remedy() {
    for (arguments, code) in [(&["-p", "4194305"][..], 4), (&["-p", "0"], 2), (&["--top", "3"], 2)] {
        let output = doctor(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("to do: "), "{arguments:?}");
    }
}

#[test]
fn a_filter_of_system_calls_that_forbids_bpf_is_reported_with_what_to_do() {
    require_bpf!();
    let filtered =
        |arguments: &[&str]| Command::new(compile::filtered()).arg(PROGRAM).args(arguments).output().unwrap();
    let told = |text: &str| {
        assert!(
            text.contains("bpf(2) is forbidden") && text.contains("seccomp profile that allows bpf(2)"),
            "{text}"
        );
    };
    let examined = filtered(&["doctor"]);
    assert_eq!(examined.status.code(), Some(3));
    told(&text(&examined));
    let profiled = filtered(&["-p", &std::process::id().to_string()]);
    assert_eq!(profiled.status.code(), Some(3));
    told(&String::from_utf8_lossy(&profiled.stderr));
}

#[test]
fn doctor_says_whether_the_allocator_can_write_heap_profiles_itself() {
    require_bpf!();
    let says = |library: &str, setting: Option<(&str, &str)>| {
        let mut command = Command::new(compile::ledger());
        command.env("LD_PRELOAD", library).envs(setting).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        // The library has been loaded once the program speaks.
        Lines::of("the program", process.stdout.take().unwrap()).next(SOON);
        let text = text(&examined(&process));
        text.lines()
            .find(|line| line.contains("heap profiles by the allocator"))
            .unwrap_or_default()
            .to_owned()
    };
    let out = tempfile::tempdir().unwrap();
    let prefix = out.path().join("heap");
    let (tcmalloc, heap_profile) = ("libtcmalloc.so.4", Some(("HEAPPROFILE", prefix.to_str().unwrap())));
    for (library, setting, answer) in [
        ("libjemalloc.so.2", None, "MALLOC_CONF does not ask for them"),
        ("libjemalloc.so.2", Some(("MALLOC_CONF", "prof:true")), "MALLOC_CONF asks for them"),
        (tcmalloc, None, "HEAPPROFILE does not ask for them"),
        (tcmalloc, heap_profile, "HEAPPROFILE asks for them"),
        ("libtcmalloc_minimal.so.4", None, "it was built without them"),
    ] {
        require_library!(library);
        let said = says(library, setting);
        assert!(said.contains(answer), "{library}: {said}");
        assert_eq!(said.trim_start().starts_with("yes"), answer.ends_with("asks for them"), "{said}");
    }
}
