//! Runs of a program: alone, and under jjleak.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::oracle::{self, Counted};
use super::profile::{self, Profile};
use super::surroundings::Surroundings;
use super::table::{Oracle, Program};

/// Time limit of a program alone; those in the table take a few seconds at most.
const LONGEST_ALONE: Duration = Duration::from_secs(60);
/// Time limit under jjleak: ten times the duration of the slowest program. It turns a hang into a failure.
const LONGEST_PROFILED: Duration = Duration::from_secs(300);
/// Memory limit: a CI machine has a little more; jjleak itself should use a hundredth.
const MOST_MEMORY_KIB: u64 = 12 << 20;
/// Interval of memory readings, short enough to observe jjleak's peak before it ends.
const READING_INTERVAL: Duration = Duration::from_millis(10);

/// The library that the counter passes calls on to.
const C_LIBRARY: &str = "/lib/x86_64-linux-gnu/libc.so.6";

/// Results of a program without jjleak.
#[derive(Debug)]
pub(super) struct Alone {
    pub(super) code: Option<i32>,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
    pub(super) time: Duration,
}

/// Results under jjleak, and jjleak's own output.
#[derive(Debug)]
pub(super) struct Profiled {
    pub(super) stdout: Vec<u8>,
    pub(super) jjleak_code: Option<i32>,
    pub(super) stderr: String,
    pub(super) time: Duration,
    /// Peak resident memory of jjleak itself, in KiB.
    pub(super) peak_kib: u64,
    pub(super) profiles: BTreeMap<u32, Profile>,
}

/// All runs of a program.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) alone: Alone,
    pub(super) first: Profiled,
    pub(super) second: Profiled,
    /// The run with the counter.
    pub(super) observed: Profiled,
    pub(super) oracle: BTreeMap<u32, Counted>,
}

/// Runs a program in all ways.
pub(super) fn measure(program: &Program, surroundings: &Surroundings, jjleak: &Path) -> Measured {
    let output = tempfile::tempdir().unwrap();
    let kept = output.path().join("kept");
    let counts = output.path().join("counts");
    fs::create_dir(&kept).unwrap();
    fs::create_dir(&counts).unwrap();
    // Servers that have dropped root write their files there, too.
    fs::set_permissions(output.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&counts, fs::Permissions::from_mode(0o777)).unwrap();
    let profiled = |name: &str, options: &[&str], before: &[String]| {
        let mut command = jjleak_of(jjleak, &kept);
        command.args(options);
        run_profiled(surroundings, command, &output.path().join(name), before)
    };

    let alone = run_alone(surroundings, &output.path().join("alone"));
    let first = profiled("first", &[], &[]);
    let second = profiled("second", &[], &[]);
    let preload = format!("LD_PRELOAD={}", oracle::counter().display());
    let folder = format!("JJLEAK_COUNTER={}", counts.display());
    let options: &[&str] = if program.oracle == Oracle::Counter { &["--obj", C_LIBRARY] } else { &[] };
    let observed = profiled("observed", options, &["/usr/bin/env".to_owned(), preload, folder]);
    Measured { alone, first, second, observed, oracle: oracle::read(&counts) }
}

fn run_alone(surroundings: &Surroundings, output: &Path) -> Alone {
    surroundings.renew();
    fs::create_dir(output).unwrap();
    let mut command = Command::new(&surroundings.words()[0]);
    command.args(&surroundings.words()[1..]);
    let begin = Instant::now();
    let (status, _) = end(surroundings, command, output, LONGEST_ALONE);
    let time = begin.elapsed();
    assert!(status.success(), "alone it ended with {status}: {}", tail(&stderr(output)));
    Alone { code: status.code(), stdout: stdout(output), stderr: stderr(output), time }
}

/// jjleak in a separate mount namespace, so that its caches contain this program only.
fn jjleak_of(jjleak: &Path, kept: &Path) -> Command {
    let mut command = Command::new("/usr/bin/unshare");
    command.args(["--mount", "/bin/sh", "-c"]);
    command
        .arg("mkdir -p /var/cache/jjleak && mount --bind \"$1\" /var/cache/jjleak && shift && exec \"$@\"");
    command.arg("sh").arg(kept).arg(jjleak);
    command
}

fn run_profiled(
    surroundings: &Surroundings,
    mut command: Command,
    output: &Path,
    before: &[String],
) -> Profiled {
    surroundings.renew();
    fs::create_dir(output).unwrap();
    let report = output.join("report.json");
    command.args(["--follow", "--format", "json", "--out"]).arg(&report);
    command.args(["3600", "--"]).args(before).args(surroundings.words());
    let begin = Instant::now();
    let (status, peak_kib) = end(surroundings, command, output, LONGEST_PROFILED);
    Profiled {
        stdout: stdout(output),
        jjleak_code: status.code(),
        stderr: stderr(output),
        time: begin.elapsed(),
        peak_kib,
        profiles: profile::read(&report),
    }
}

/// Runs a command to its end. Returns its status and its own peak memory in KiB.
fn end(
    surroundings: &Surroundings,
    mut command: Command,
    output: &Path,
    limit: Duration,
) -> (ExitStatus, u64) {
    surroundings.surround(&mut command).current_dir(surroundings.folder()).stdin(Stdio::null());
    command.stdout(File::create(output.join("stdout")).unwrap());
    command.stderr(File::create(output.join("stderr")).unwrap());
    let mut group = Group(command.process_group(0).spawn().unwrap());
    let begin = Instant::now();
    let mut peak = 0;
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", group.0.id())).unwrap_or_default();
        // A process that has ended has no memory figures.
        peak = kib(&status, "VmHWM:").unwrap_or(peak);
        if let Some(status) = group.0.try_wait().unwrap() {
            return (status, peak);
        }
        assert!(begin.elapsed() < limit, "it did not end within {limit:?}: {}", tail(&stderr(output)));
        let now = kib(&status, "VmRSS:").unwrap_or(0);
        assert!(now < MOST_MEMORY_KIB, "jjleak took {} MiB", now >> 10);
        thread::sleep(READING_INTERVAL);
    }
}

/// A process, and the processes of its group that outlive it.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // Usually, none is left.
        let _ = killpg(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

fn kib(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn stdout(output: &Path) -> Vec<u8> {
    fs::read(output.join("stdout")).unwrap()
}

fn stderr(output: &Path) -> String {
    String::from_utf8_lossy(&fs::read(output.join("stderr")).unwrap()).into_owned()
}

/// The last lines of an output.
pub(super) fn tail(said: &str) -> String {
    let lines: Vec<_> = said.lines().rev().take(4).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
}
