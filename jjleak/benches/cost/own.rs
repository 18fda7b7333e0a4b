//! Memory, CPU time and time to the end of jjleak itself, for large programs and for a whole host.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use jjleak::processes::opener::VERB as OPENER_VERB;
use jjleak::processes::{Pid, cpu_time};
use jjleak::symbolize::child::VERB;
use nix::sys::signal::{Signal, kill};
use nix::unistd;

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::Environment;
use crate::timings::Timings;

/// Interval of readings.
const READING: Duration = Duration::from_millis(2);
/// Timeout for a run.
const PATIENCE: Duration = Duration::from_secs(120);
/// What jjleak's processes do.
const CHILDREN: [&str; 2] = [VERB, OPENER_VERB];
const TURNS: usize = 3;
const WANTED_MIB: f64 = 200.;
const WANTED_S: f64 = 2.;

const PROCESSES: usize = 200;
/// Time until all processes are known and two reports are written.
const SETTLE: Duration = Duration::from_secs(10);
const WANTED_OF_HOST_MIB: f64 = 150.;

/// A program to profile from its start.
struct Launched {
    name: &'static str,
    command: Vec<String>,
    environment: Environment,
    wanted_mib: Option<f64>,
}

/// What a run took.
struct Taken {
    peak_mib: f64,
    cpu_s: f64,
    /// From the end of the program, or from the signal.
    end_s: f64,
}

/// jjleak. Killed when dropped.
struct Jjleak(Child);

impl Drop for Jjleak {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let folder = tempfile::tempdir()?;
    let mut facts = Vec::new();
    for program in programs(folder.path())? {
        let turns = (0..options.choose(TURNS, 1)).map(|_| program.run(folder.path()));
        let turns = turns.collect::<Result<Vec<_>>>()?;
        let memory = fact(program.name, "largest memory", "MiB", &turns, |taken| taken.peak_mib);
        facts.push(program.wanted_mib.into_iter().fold(memory, Fact::at_most));
        let end = fact(program.name, "from its end to that of jjleak", "s", &turns, |taken| taken.end_s);
        facts.push(end.at_most(WANTED_S));
        facts.push(fact(program.name, "CPU time", "s", &turns, |taken| taken.cpu_s));
    }
    let count = options.choose(PROCESSES, 10);
    let host = [of_host(count, options, folder.path())?];
    let name = format!("`--system-wide`, {count} processes");
    facts.push(
        fact(&name, "largest memory", "MiB", &host, |taken| taken.peak_mib).at_most(WANTED_OF_HOST_MIB),
    );
    facts.push(fact(&name, "from Ctrl-C to the end of jjleak", "s", &host, |taken| taken.end_s));
    facts.push(fact(&name, "CPU time", "s", &host, |taken| taken.cpu_s));
    Ok(Section {
        title: "jjleak's own cost".to_owned(),
        says: "Resident memory, CPU time and time to the end of jjleak itself, for programs that it starts, with a flame \
               graph and a text report, and for all processes of a host. Memory includes the process that reads \
               symbols, and the tables that jjleak shares with the kernel."
            .to_owned(),
        facts,
        ..Section::default()
    })
}

fn fact(name: &str, what: &str, unit: &'static str, turns: &[Taken], figure: impl Fn(&Taken) -> f64) -> Fact {
    Fact::new(format!("{name}: {what}"), unit, Timings(turns.iter().map(figure).collect()).figure())
}

fn programs(folder: &Path) -> Result<[Launched; 4]> {
    let python = |script: &str| ["/usr/bin/python3", "-c", script].map(str::to_owned).to_vec();
    let variable = |name: &str, value: String| (name.to_owned(), value);
    let c_source = folder.join("program.c");
    fs::write(&c_source, "int main(void) { return 0; }\n")?;
    let java_source = folder.join("Program.java");
    fs::write(&java_source, "public class Program { public static void main(String[] a) {} }\n")?;
    let path = |path: PathBuf| path.display().to_string();
    let object = path(folder.join("program.o"));
    Ok([
        Launched {
            name: "numpy, every object",
            command: python(
                "import numpy as np\na = [np.arange(i % 1000) for i in range(20000)]\n\
                 print(np.linalg.norm(np.random.rand(200, 200)))",
            ),
            environment: vec![
                variable("PYTHONPATH", wheels(&["numpy"])?),
                variable("PYTHONMALLOC", "malloc".to_owned()),
            ],
            wanted_mib: Some(WANTED_MIB),
        },
        Launched {
            name: "polars",
            command: python("import polars as p; print(p.DataFrame({'a': list(range(1000))}).sum())"),
            environment: vec![variable("PYTHONPATH", wheels(&["polars", "polars-runtime-32"])?)],
            wanted_mib: None,
        },
        Launched {
            name: "clang",
            command: vec!["clang".to_owned(), "-c".to_owned(), "-o".to_owned(), object, path(c_source)],
            environment: Environment::new(),
            wanted_mib: None,
        },
        Launched {
            name: "javac",
            command: vec!["javac".to_owned(), path(java_source)],
            environment: Environment::new(),
            wanted_mib: None,
        },
    ])
}

/// Value of `PYTHONPATH` with these packages, in any version.
fn wheels(names: &[&str]) -> Result<String> {
    let folder = std::env::var("JJLEAK_WORLD_CACHE").map_err(|_| "JJLEAK_WORLD_CACHE is not set")?;
    let folder = Path::new(&folder).join("wheels");
    let find = |name: &&str| -> Result<String> {
        let mut found = fs::read_dir(&folder)?.filter_map(std::result::Result::ok).map(|entry| entry.path());
        let prefix = format!("{name}==");
        let is_it =
            |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&prefix));
        let path = found.find(is_it).ok_or_else(|| format!("{name} is not installed"))?;
        Ok(path.display().to_string())
    };
    Ok(names.iter().map(find).collect::<Result<Vec<_>>>()?.join(":"))
}

impl Launched {
    fn run(&self, folder: &Path) -> Result<Taken> {
        let mut jjleak = jjleak(folder, |command| {
            command.arg("--").args(&self.command).envs(self.environment.iter().cloned());
        })?;
        let (begun, mut ended) = (Instant::now(), None);
        let mut program = None;
        let mut readings = Readings::default();
        loop {
            let pid = Pid::new(jjleak.0.id()).ok_or("PID 0")?;
            readings.take(pid);
            program = program.or_else(|| child_of(pid));
            if ended.is_none() && program.is_some_and(has_ended) {
                ended = Some(Instant::now());
            }
            if let Some(status) = jjleak.0.try_wait()? {
                if !status.success() {
                    return Err(format!("jjleak failed ({status}) for {}", self.name).into());
                }
                let ended = ended.ok_or_else(|| format!("the end of {} was not seen", self.name))?;
                return Ok(readings.taken(ended.elapsed()));
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("jjleak does not end with {}", self.name).into());
            }
            sleep(READING);
        }
    }
}

/// Profiles all processes of the host, of which `count` are added.
fn of_host(count: usize, options: &Options, folder: &Path) -> Result<Taken> {
    let sleepers = (0..count).map(|_| Command::new("/usr/bin/sleep").arg("600").spawn().map(Jjleak));
    let sleepers = sleepers.collect::<std::io::Result<Vec<_>>>()?;
    let mut jjleak = jjleak(folder, |command| {
        command.args(["--system-wide", "3"]);
    })?;
    let pid = Pid::new(jjleak.0.id()).ok_or("PID 0")?;
    let (begun, mut readings) = (Instant::now(), Readings::default());
    while begun.elapsed() < if options.quick { SETTLE / 5 } else { SETTLE } {
        readings.take(pid);
        sleep(READING);
    }
    kill(unistd::Pid::from_raw(jjleak.0.id().try_into()?), Signal::SIGINT)?;
    let ended = Instant::now();
    while jjleak.0.try_wait()?.is_none() {
        readings.take(pid);
        if ended.elapsed() > PATIENCE {
            return Err("jjleak does not end".into());
        }
        sleep(READING);
    }
    let taken = readings.taken(ended.elapsed());
    drop(sleepers);
    Ok(taken)
}

/// Starts jjleak, which writes its files to a folder.
fn jjleak(folder: &Path, arguments: impl FnOnce(&mut Command)) -> Result<Jjleak> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jjleak"));
    command.args(["--format", "text,svg"]);
    arguments(&mut command);
    let sink = |name: &str| File::create(folder.join(name));
    let command = command.current_dir(folder).stdin(Stdio::null()).stdout(sink("stdout")?);
    Ok(Jjleak(command.stderr(sink("stderr")?).spawn()?))
}

/// Readings of jjleak and its processes that read symbols or open files, which may end at any moment.
#[derive(Default)]
pub(crate) struct Readings {
    /// The highest sum of resident memory at one moment.
    peak_kib: f64,
    /// CPU time of each process.
    cpu: BTreeMap<u32, Duration>,
}

impl Readings {
    pub(crate) fn take(&mut self, pid: Pid) {
        let mut resident_kib = self.take_one(pid);
        for child in children_of(pid) {
            let command = fs::read(child.proc_file("cmdline")).unwrap_or_default();
            // A process that has just been started shares jjleak's memory.
            let verb = command.split(|byte| *byte == 0).nth(1).unwrap_or_default();
            if CHILDREN.iter().any(|child| child.as_bytes() == verb) {
                resident_kib += self.take_one(child);
            }
        }
        self.peak_kib = resident_kib.max(self.peak_kib);
    }

    /// Resident memory of a process in KiB; 0 if it has ended.
    fn take_one(&mut self, pid: Pid) -> f64 {
        let cpu = self.cpu.entry(pid.number().get()).or_default();
        *cpu = cpu_time(pid).unwrap_or_default().max(*cpu);
        let status = fs::read_to_string(pid.proc_file("status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|size| size.trim().trim_end_matches(" kB").parse().ok());
        resident.unwrap_or_default()
    }

    pub(crate) fn peak_mib(&self) -> f64 {
        self.peak_kib / 1024.
    }

    fn taken(&self, end: Duration) -> Taken {
        let cpu: Duration = self.cpu.values().sum();
        Taken { peak_mib: self.peak_mib(), cpu_s: cpu.as_secs_f64(), end_s: end.as_secs_f64() }
    }
}

/// The first child of a process.
fn child_of(pid: Pid) -> Option<Pid> {
    children_of(pid).into_iter().next()
}

fn children_of(pid: Pid) -> Vec<Pid> {
    let children = fs::read_to_string(pid.proc_file(&format!("task/{pid}/children"))).unwrap_or_default();
    children.split_whitespace().filter_map(|child| Pid::new(child.parse().ok()?)).collect()
}

/// Returns true if a process has ended, also if its parent does not know yet.
fn has_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(pid.proc_file("stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_none_or(|state| state == 'Z')
}
