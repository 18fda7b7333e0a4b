//! Cost of following the objects of a Java heap, for a busy JVM that allocates 1 GB/s, beside Flight Recorder (JFR).
//!
//! The same process is measured with and without, in turns: two processes differ by more than either costs.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Environment, Talker, java_classes};
use crate::timings::{Figure, Timings};
use crate::tools::Jjleak;

/// Seconds until the code is compiled, and of a measurement.
const WARM_UP: &str = "5";
const MEASURED: &str = "1.5";
const TURNS: usize = 40;
const WANTED: f64 = 1.01;

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let turns = options.choose(TURNS, 1);
    let classes = java_classes("Objects")?;
    let jjleak = compared(&classes, turns, |pid| Jjleak::run(&["heap"], pid, &[]))?;
    let jfr = compared(&classes, turns, Recording::start)?;
    let alone = jjleak.alone.figure().map(|figure| Figure { median: figure.median * 1000., ..figure });
    let ratio = |name: &str, ratios: &Timings| Fact::new(name, "", ratios.figure());
    Ok(Section {
        title: "Objects of a Java heap".to_owned(),
        says: "CPU time per byte of a thread that is always busy and allocates objects of 80 to 335 bytes at 1 GB/s, and of its JVM with the \
               collector. Ratios are of the time with to the mean of those before and after without, in the same process."
            .to_owned(),
        facts: vec![
            Fact::new("the thread's CPU time per GB, alone", "ms", alone),
            ratio("the thread with `jjleak heap`", &jjleak.thread).at_most(WANTED),
            ratio("the thread with JFR (settings=profile)", &jfr.thread),
            ratio("the JVM with `jjleak heap`", &jjleak.process),
            ratio("the JVM with JFR (settings=profile)", &jfr.process),
        ],
        ..Section::default()
    })
}

/// CPU time beside something else.
#[derive(Default)]
struct Compared {
    /// Seconds per GB that the thread takes alone.
    alone: Timings,
    /// Ratios of the thread's time with to that without.
    thread: Timings,
    /// The same for the process.
    process: Timings,
}

fn compared<T>(classes: &Path, turns: usize, begin: impl Fn(u32) -> Result<T>) -> Result<Compared> {
    let mut java = Command::new("java");
    java.args(["-Xmx512m", "-XX:+UseG1GC", "-cp"]).arg(classes).arg("Objects");
    let mut program = Talker::start(&mut java, &Environment::new())?;
    let pid = program.pid();
    let mut ask = |seconds: &str| program.ask_for::<2>(seconds);
    let mut compared = Compared::default();
    ask(WARM_UP)?;
    let mut before = ask(MEASURED)?;
    for _ in 0..turns {
        let running = begin(pid)?;
        // The start of either costs more, once.
        ask("0.5")?;
        let with = ask(MEASURED)?;
        drop(running);
        let after = ask(MEASURED)?;
        // The mean of both: the JVM becomes faster and slower by itself.
        let ratio = |of: usize| 2. * with[of] / (before[of] + after[of]);
        compared.thread.0.push(ratio(0));
        compared.process.0.push(ratio(1));
        compared.alone.0.push(after[0]);
        before = after;
    }
    Ok(compared)
}

/// A recording of JFR in a process.
struct Recording(u32);

impl Recording {
    fn start(pid: u32) -> Result<Self> {
        jcmd(pid, &["JFR.start", "name=bench", "settings=profile"])?;
        Ok(Self(pid))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // The next one fails if this one goes on.
        let _ = jcmd(self.0, &["JFR.stop", "name=bench"]);
    }
}

fn jcmd(pid: u32, words: &[&str]) -> Result<()> {
    let output = Command::new("jcmd").arg(pid.to_string()).args(words).output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stdout).into_owned().into())
    }
}
