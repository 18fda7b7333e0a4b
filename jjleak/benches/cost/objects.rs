//! Cost of following the objects of a Java heap, for a JVM that allocates 1 GB/s, beside Flight Recorder (JFR).
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
    let (jjleak, alone) = compared(&classes, turns, |pid| Jjleak::run(&["heap"], pid, &[]))?;
    let (jfr, _) = compared(&classes, turns, Recording::start)?;
    let alone = Timings(alone).figure().map(|figure| Figure { median: figure.median * 1000., ..figure });
    let ratio = |name: &str, ratios| Fact::new(name, "", Timings(ratios).figure());
    Ok(Section {
        title: "Objects of a Java heap".to_owned(),
        says: "CPU time of a JVM that allocates objects of 80 to 335 bytes at 1 GB/s. Ratios are of the time with to the mean of those \
               before and after without, in the same process."
            .to_owned(),
        facts: vec![
            Fact::new("CPU time per GB, alone", "ms", alone),
            ratio("with `jjleak heap`", jjleak).at_most(WANTED),
            ratio("with JFR (settings=profile)", jfr),
        ],
        ..Section::default()
    })
}

/// Ratios of the time with something to that without, and the times without.
fn compared<T>(
    classes: &Path,
    turns: usize,
    begin: impl Fn(u32) -> Result<T>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut java = Command::new("java");
    java.args(["-Xmx512m", "-XX:+UseG1GC", "-cp"]).arg(classes).arg("Objects");
    let mut program = Talker::start(&mut java, &Environment::new())?;
    program.ask(WARM_UP)?;
    let mut alone = vec![program.ask(MEASURED)?];
    let mut ratios = Vec::new();
    for _ in 0..turns {
        let before = alone[alone.len() - 1];
        let running = begin(program.pid())?;
        // The start of either costs more, once.
        program.ask("0.5")?;
        let with = program.ask(MEASURED)?;
        drop(running);
        let after = program.ask(MEASURED)?;
        // The mean of both: the JVM becomes faster and slower by itself.
        ratios.push(2. * with / (before + after));
        alone.push(after);
    }
    Ok((ratios, alone))
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
