//! Twelve programs whose memory grows, each for another reason: the first screen of the report and of the page names the cause, and how
//! fast it grows.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use regex::Regex;

use crate::support::jjleak::Jjleak;
use crate::support::privilege::{require_bpf, require_program, require_time};
use crate::support::process::Process;

/// Lines of a terminal.
const SCREEN: usize = 25;
/// Number of programs that run at the same time.
const AT_ONCE: usize = 2;
/// Time until a program does the same again and again.
const WARM_UP: Duration = Duration::from_secs(2);

/// A program, and what must be on the first screen.
struct Grows {
    command: Vec<String>,
    /// With a figure.
    says: &'static str,
    /// Range of the figure: how fast it does what makes it grow.
    figure: Range<f64>,
}

fn programs(built: &Path) -> Vec<Grows> {
    let path = |name: &str| built.join(name).display().to_string();
    let java = |class: &str, argument: &str| {
        ["java", "-Xmx512m", "-cp", &path(""), class, argument].map(str::to_owned).to_vec()
    };
    let grows = |command, says, figure| Grows { command, says, figure };
    let script = Path::new(FIXTURES).join("extension.py").display().to_string();
    let of_verdicts = format!("(echo 'pace 3000 100'; sleep 400) | {}", path("verdicts"));
    vec![
        grows(
            ["bash", "-c", &of_verdicts].map(str::to_owned).to_vec(),
            r"leaking: forget_message \[verdicts\] verdicts.c:\d+ .*\+([0-9.]+) KiB/min",
            560. ..600.,
        ),
        grows(vec![path("containers")], r"leaking: Sessions::open\(int\) .*\+([0-9.]+) MiB/min", 12. ..28.),
        grows(vec![path("cache")], r"leaking: cache::Cache::remember .*\+([0-9.]+) MiB/min", 12. ..24.),
        grows(
            java("Direct", ""),
            r"leaking: Direct\.handle Direct\.java:10 .*\+([0-9.]+) MiB/min",
            120. ..190.,
        ),
        grows(
            java("Deflate", ""),
            r"leaking: Deflate\.compressResponse Deflate\.java:10 -> java\.util\.zip\.Deflater\.<init>, \+([0-9.]+) MiB/min",
            60. ..78.,
        ),
        grows(
            java("Threads", ""),
            r"leaking: threads that do not end, started at Threads\.openSession .*, \+([0-9]+)/min",
            1800. ..3050.,
        ),
        grows(
            java("Native", &path("libnative.so")),
            r"leaking: encode_frame \[libnative\.so\] .*\+([0-9.]+) MiB/min",
            60. ..93.,
        ),
        grows(
            vec![path("arenas")],
            r"cause: free memory that malloc keeps .* free and resident: \+([0-9.]+) MiB; a trim would return",
            100. ..2000.,
        ),
        grows(
            java("Files", &path("mapped")),
            r"cause: mapped files \(\d+ % of the growth\): /.*/mapped: \+([0-9.]+) MiB",
            100. ..170.,
        ),
        grows(
            java("Heap", ""),
            r"cause: Java heap \(\d+ % of the growth\): resident Java heap: \+([0-9.]+) MiB",
            250. ..500.,
        ),
        grows(
            java("Plugins", &path("plugin/")),
            r"cause: classes and class loaders .* class loaders: \d+, then ([0-9]+)\n",
            2000. ..9000.,
        ),
        grows(
            vec!["python3".to_owned(), script, path("libnative.so")],
            r"leaking: encode_frame \[libnative\.so\] .*\+([0-9.]+) MiB/min",
            60. ..93.,
        ),
    ]
}

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/causes");

/// Builds the programs; returns the folder.
fn build() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("causes");
    fs::create_dir_all(&built).unwrap();
    let to = |name: &str| built.join(name).display().to_string();
    run("cc", &["-O1", "-g", "-pthread", "-o", &to("arenas"), "arenas.c"]);
    run("cc", &["-std=c11", "-g", "-pthread", "-o", &to("verdicts"), "../verdicts.c"]);
    // Optimized, its allocations would be left out: nothing uses them.
    run("cc", &["-O0", "-g", "-shared", "-fPIC", "-o", &to("libnative.so"), "native.c"]);
    run("c++", &["-O1", "-g", "-o", &to("containers"), "containers.cpp"]);
    run("rustc", &["-O", "-g", "-o", &to("cache"), "cache.rs"]);
    let classes = ["Deflate", "Direct", "Files", "Heap", "Native", "Plugins", "Threads"];
    compile_java(&classes, &built);
    built
}

/// Runs a compiler in the folder of the sources.
pub(super) fn run(compiler: &str, arguments: &[&str]) {
    let status = Command::new(compiler).args(arguments).current_dir(FIXTURES).status().unwrap();
    assert!(status.success(), "{compiler} {arguments:?}");
}

/// Compiles classes, with `Plugins` among them, for the oldest supported JDK.
pub(super) fn compile_java(classes: &[&str], folder: &Path) {
    let sources: Vec<_> = classes.iter().map(|class| format!("{class}.java")).collect();
    let to = folder.display().to_string();
    let mut arguments = vec!["-nowarn", "-source", "11", "-target", "11", "-d", &to];
    arguments.extend(sources.iter().map(String::as_str));
    run("javac", &arguments);
    // Only the loaders of the plugin must find it.
    fs::create_dir_all(folder.join("plugin")).unwrap();
    fs::rename(folder.join("Plugins$Plugin.class"), folder.join("plugin/Plugins$Plugin.class")).unwrap();
}

/// Watches a program; returns what is missing from its report and page.
fn look_at(program: &Grows) -> Option<String> {
    let [name, arguments @ ..] = &program.command[..] else { unreachable!() };
    let arguments: Vec<_> = arguments.iter().filter(|argument| !argument.is_empty()).collect();
    let mut command = Command::new(name);
    let process = Process::spawn(
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()),
    );
    thread::sleep(WARM_UP);
    // A shell runs the program as its child.
    let watched = if name == "bash" { child_of(process.id(), "verdicts") } else { process.id() };
    let pid = watched.to_string();
    let ended =
        Jjleak::attached(["-p", &pid, "5", "16", "--format", "text,html", "--out", "./"]).end().assert_done();
    drop(process);
    let read = |kind: &str| fs::read_to_string(ended.file(&format!("jjleak-{pid}.{kind}"))).unwrap();
    let (text, page) = (read("txt"), read("html"));
    let screen: String = text.split_inclusive('\n').take(SCREEN).collect();
    let says = Regex::new(program.says).unwrap();
    let Some(found) = says.captures(&screen) else {
        return Some(format!("{:?} does not say {:?}:\n{screen}", program.command, program.says));
    };
    let figure: f64 = found[1].parse().unwrap();
    if !program.figure.contains(&figure) {
        return Some(format!("{:?}: {figure} is not in {:?}:\n{screen}", program.command, program.figure));
    }
    // The page's first section has the headline and the same line, without the part before it.
    let conclusion = page.split("id=\"conclusion\"").nth(1).and_then(|rest| rest.split("</section>").next());
    let conclusion = conclusion.unwrap_or_default().replace("&lt;", "<").replace("&gt;", ">");
    let subject = found[0].split(&found[1]).next().unwrap_or_default();
    let subject = subject
        .trim_start_matches("leaking: ")
        .trim_start_matches("cause: ")
        .split(" [")
        .next()
        .unwrap_or_default();
    let subject = subject.split(" (").next().unwrap_or_default();
    (!conclusion.contains(subject) || !conclusion.contains(&found[1])).then(|| {
        format!(
            "{:?}: the page does not begin with {subject:?} and {}:\n{conclusion}",
            program.command, &found[1]
        )
    })
}

/// The child of a process with this name.
fn child_of(parent: u32, comm: &str) -> u32 {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let is_named = |child: &&str| {
        fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim_end() == comm)
    };
    children.split_whitespace().find(is_named).expect("the program runs").parse().unwrap()
}

#[test]
fn the_first_screen_names_the_cause_and_its_rate_for_twelve_programs() {
    require_bpf!();
    require_time!("it takes nine minutes");
    require_program!("javac");
    require_program!("rustc");
    let programs = programs(&build());
    let (next, missing) = (Mutex::new(programs.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = { next.lock().unwrap().next() } {
                    let lacks = look_at(program);
                    missing.lock().unwrap().extend(lacks);
                }
            });
        }
    });
    let missing = missing.into_inner().unwrap();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
