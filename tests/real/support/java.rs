//! The Java program that leaks on request, and its own accounting.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use jjleak::render::json::{Document, StackDocument};

use super::bounded::{LONG, SOON};
use super::jjleak::Jjleak;
use super::lines::Lines;
use super::privilege::is_long;
use super::process::Process;

/// Options of each collector.
pub(crate) const COLLECTORS: [&[&str]; 5] = [
    &["-XX:+UseG1GC"],
    &["-XX:+UseSerialGC"],
    &["-XX:+UseParallelGC"],
    &["-XX:+UnlockExperimentalVMOptions", "-XX:+UseZGC"],
    &["-XX:+UnlockExperimentalVMOptions", "-XX:+UseShenandoahGC"],
];

/// A running JVM.
pub(crate) struct Java {
    process: Process,
    pid: u32,
    stdin: ChildStdin,
    stdout: Lines,
}

/// Allocations of a site, and its call path as `class.method:line`, innermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) objects: u64,
    pub(crate) path: Vec<String>,
}

/// Smallest and largest size of the sites' blocks. The JVM itself allocates no blocks of these sizes.
const SIZES: [u64; 2] = [4008, 4080];

/// Sizes of the program with many kinds of allocations. The JVM itself has a few blocks in this range.
pub(crate) const WAYS: [u64; 2] = [5000, 5096];

/// Sizes of the program whose virtual threads wait and compute in turns.
pub(crate) const TURNS: [u64; 2] = [20_000, 25_199];

/// Sites by the size of their blocks.
pub(crate) type Sites = BTreeMap<u64, Site>;

impl Java {
    /// Starts the program with these JVM options, and waits until it listens.
    pub(crate) fn start(java: &Path, options: &[&str]) -> Self {
        let mut command = Command::new(java);
        Self::spawn(command.args(options).arg("-cp").arg(classes()).arg("Leak"))
    }

    /// Starts the Java compiler.
    pub(crate) fn start_compiler(java: &Path) -> Self {
        Self::spawn(Command::new(java).arg("-cp").arg(classes()).arg("Compile"))
    }

    /// Starts the program with many kinds of native allocations.
    pub(crate) fn start_ways(java: &Path, options: &[&str]) -> Self {
        let mut command = Command::new(java);
        Self::spawn(command.args(options).arg("-cp").arg(classes()).arg("Ways").arg(natives()))
    }

    /// Starts the program that repeatedly allocates this number of bytes, and frees them or not (`leak`, `free`).
    pub(crate) fn start_pace(java: &Path, bytes: u64, pause_ms: u64, what: &str) -> Self {
        let options = ["-Xmx16m", "-Xint", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
        let mut command = Command::new(java);
        let words = [bytes.to_string(), pause_ms.to_string(), what.to_owned()];
        Self::spawn(command.args(options).arg("-cp").arg(classes()).arg("Pace").args(words))
    }

    /// Starts the program that holds memory of known kinds.
    pub(crate) fn start_memory(java: &Path, options: &[&str]) -> Self {
        Self::spawn(Command::new(java).args(options).arg("-cp").arg(classes()).arg("Memory"))
    }

    /// Starts the program that allocates objects of known classes.
    pub(crate) fn start_heap(java: &Path, options: &[&str]) -> Self {
        Self::spawn(Command::new(java).args(options).arg("-cp").arg(classes()).arg("HeapClasses"))
    }

    /// Starts the program that loads a library when it is told to.
    pub(crate) fn start_late(java: &Path, options: &[&str]) -> Self {
        Self::spawn(Command::new(java).args(options).arg("-cp").arg(classes()).arg("Late"))
    }

    /// Starts the program with three loaders of one class.
    pub(crate) fn start_loaders(java: &Path, options: &[&str]) -> Self {
        Self::spawn(Command::new(java).args(options).arg("-cp").arg(classes()).arg("Loaders"))
    }

    /// Starts the program that keeps objects in this way.
    pub(crate) fn start_kept(java: &Path, options: &[&str], way: &str) -> Self {
        Self::spawn(Command::new(java).args(options).arg("-cp").arg(classes()).args(["Kept", way]))
    }

    /// Starts the program that says from which callers it allocates.
    pub(crate) fn start_walked(java: &Path, options: &[&str]) -> Self {
        Self::spawn(Command::new(java).args(options).arg("-cp").arg(classes()).arg("Walked"))
    }

    /// Starts the program whose virtual threads wait and compute in turns.
    pub(crate) fn start_turns(java: &Path, options: &[&str]) -> Self {
        Self::spawn(Command::new(java).args(options).arg("-cp").arg(classes()).arg("Turns"))
    }

    /// Starts a program with a command, and waits until it listens.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (stdin, stdout) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut stdout = Lines::of("the Java program", stdout);
        assert_eq!(stdout.next(SOON), "ready");
        Self { pid: process.id(), process, stdin, stdout }
    }

    /// Starts a command whose only child is the JVM, as [`Self::spawn`] does.
    pub(crate) fn spawn_below(command: &mut Command) -> Self {
        let parent = Self::spawn(command);
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.pid)).unwrap();
        Self { pid: children.trim().parse().unwrap(), ..parent }
    }

    /// PID of the JVM.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a request that ends the program, and waits for its end.
    pub(crate) fn ask_at_last(mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
        self.process.end(LONG);
    }

    /// Attaches jjleak for blocks of all sizes.
    pub(crate) fn attach_to_all(&self) -> Jjleak {
        Jjleak::attached(["-p", &self.pid.to_string(), "3600", "--format", "json"])
    }

    /// Attaches jjleak with this option for mappings.
    pub(crate) fn attach_to_mappings(&self, option: &str) -> Jjleak {
        Jjleak::attached(["-p", &self.pid.to_string(), "3600", "--format", "json", option])
    }

    /// Attaches jjleak for blocks of the sites' sizes only.
    pub(crate) fn attach(&self) -> Jjleak {
        self.attach_to(SIZES)
    }

    /// Attaches jjleak for blocks of sizes from the first to the second only.
    pub(crate) fn attach_to(&self, sizes: [u64; 2]) -> Jjleak {
        let pid = self.pid.to_string();
        let [smallest, largest] = sizes.map(|size| size.to_string());
        Jjleak::attached(["-p", &pid, "3600", "--format", "json", "-z", &smallest, "-Z", &largest])
    }

    /// Sends a request, and returns the output until it is done.
    pub(crate) fn ask(&mut self, what: &str) -> Vec<String> {
        self.ask_within(LONG, what)
    }

    /// The same with this time limit for each line.
    pub(crate) fn ask_within(&mut self, limit: Duration, what: &str) -> Vec<String> {
        writeln!(self.stdin, "{what}").unwrap();
        let line = || Some(self.stdout.next(limit)).filter(|line| line != "done");
        std::iter::from_fn(line).collect()
    }

    /// Its accounting of leaks since its start.
    pub(crate) fn accounts(&mut self) -> Sites {
        let lines = self.ask("accounts");
        let site = |line: &String| {
            let words: Vec<_> = line.split(' ').collect();
            let ["site", size, objects, path @ ..] = &words[..] else { panic!("no site: {line}") };
            let path = path.iter().map(|frame| without_address(frame)).collect();
            (size.parse().unwrap(), Site { objects: objects.parse().unwrap(), path })
        };
        lines.iter().map(site).collect()
    }
}

/// A frame of a hidden class without the part that distinguishes it from others with the same code.
fn without_address(frame: &str) -> String {
    let Some((class, address)) = frame.split_once("/0x") else { return frame.to_owned() };
    let rest = address.trim_start_matches(|character: char| character.is_ascii_hexdigit());
    let class =
        class.split_once("$$Lambda").map_or(class.to_owned(), |(outer, _)| format!("{outer}$$Lambda"));
    format!("{class}{rest}")
}

/// Live objects of the sites in a report, by the size of their blocks.
pub(crate) fn live_by_size(report: &Document, sites: &Sites) -> BTreeMap<u64, u64> {
    let mut live = BTreeMap::new();
    for stack in &report.stacks {
        if let Some(size) = size_of(stack).filter(|size| sites.contains_key(size)) {
            *live.entry(size).or_default() += stack.live.objects;
        }
    }
    live
}

/// Size of a stack's live blocks, which identifies its site.
pub(crate) fn size_of(stack: &StackDocument) -> Option<u64> {
    stack.live.bytes.checked_div(stack.live.objects)
}

/// The Java frames of a stack, in the program's format.
pub(crate) fn java_frames(stack: &StackDocument) -> Vec<String> {
    let frames = stack.frames.iter().filter(|frame| frame.kind.starts_with("java"));
    frames.map(|frame| format!("{}:{}", frame.symbol, frame.line)).collect()
}

/// A JDK, or a JRE.
#[derive(Debug, Clone)]
pub(crate) struct Jdk {
    pub(crate) home: PathBuf,
    /// Its major version.
    pub(crate) version: u32,
    /// Its full version, as it reports it.
    pub(crate) release: String,
}

impl Jdk {
    /// Describes the JDK in a folder from its `release` file, which every JDK has.
    fn at(home: PathBuf) -> Option<Self> {
        let text = std::fs::read_to_string(home.join("release")).ok()?;
        let value = |key: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
            Some(value.trim_matches('"').to_owned())
        };
        let full = value("JAVA_VERSION")?;
        let version = full.split(['.', '-', '+']).next()?.parse().ok()?;
        let release = value("JAVA_RUNTIME_VERSION").unwrap_or(full);
        home.join("bin/java").exists().then_some(Self { home, version, release })
    }

    pub(crate) fn java(&self) -> PathBuf {
        self.home.join("bin/java")
    }

    /// Returns true if it accepts these options without a message.
    pub(crate) fn takes(&self, options: &[&str]) -> bool {
        let output = Command::new(self.java()).args(options).arg("-version").output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        output.status.success() && !said.contains("warning")
    }
}

/// The JDKs that `JJLEAK_JDKS` names, separated by colons, and the installed ones, without duplicates.
pub(crate) fn jdks() -> Vec<Jdk> {
    let named = std::env::var("JJLEAK_JDKS").unwrap_or_default();
    let installed =
        std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten().map(|entry| entry.path());
    let homes = named.split(':').filter(|home| !home.is_empty()).map(PathBuf::from).chain(installed);
    let homes: BTreeSet<_> = homes.filter_map(|home| std::fs::canonicalize(home).ok()).collect();
    let mut jdks: Vec<_> = homes.into_iter().filter_map(Jdk::at).collect();
    jdks.sort_by(|one, other| (one.version, &one.release).cmp(&(other.version, &other.release)));
    jdks
}

/// The installed one, and in long runs all others.
pub(crate) fn javas() -> Vec<PathBuf> {
    let others = if is_long() { jdks() } else { Vec::new() };
    [PathBuf::from("java")].into_iter().chain(others.iter().map(Jdk::java)).collect()
}

/// The JDKs of this version and later ones.
pub(crate) fn jdks_from(oldest: u32) -> Vec<Jdk> {
    jdks().into_iter().filter(|jdk| jdk.version >= oldest).collect()
}

/// The native methods, compiled without frame pointers, except one.
fn natives() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/java/ways.cpp");
        let library =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libways-{}.so", std::process::id()));
        let flags = ["-O2", "-g", "-fPIC", "-shared", "-fomit-frame-pointer", "-o"];
        let output = Command::new("c++").args(flags).args([&library, &source]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        library
    })
}

/// Folder of the program's classes, compiled for the oldest supported JDK.
pub(crate) fn classes() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/java");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("java-{}", std::process::id()));
        let output = Command::new("javac")
            .args(["-g", "-nowarn", "-source", "11", "-target", "11", "-d"])
            .arg(&folder)
            .args(
                [
                    "Compile",
                    "Leak",
                    "LeakUnsafe",
                    "Pace",
                    "Turns",
                    "Late",
                    "Ways",
                    "Memory",
                    "HeapClasses",
                    "Kept",
                    "Loaders",
                    "Walked",
                ]
                .map(|name| fixtures.join(name).with_extension("java")),
            )
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    })
}
