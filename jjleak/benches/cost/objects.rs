//! Cost of following the objects of a Java heap, for a JVM that allocates 1 GB/s, beside Flight Recorder (JFR).
//!
//! The same process is measured with and without, in turns: two processes differ by more than either costs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Environment, Talker, own, scratch};
use crate::timings::{Figure, Timings};

/// Seconds until the code is compiled, and of a measurement.
const WARM_UP: &str = "5";
const MEASURED: &str = "1.5";
const TURNS: usize = 40;
const WANTED: f64 = 1.01;

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let turns = options.choose(TURNS, 1);
    let folder = scratch("bench-objects");
    fs::create_dir_all(&folder)?;
    let javac = Command::new("javac")
        .args(["-nowarn", "-d"])
        .arg(&folder)
        .arg(own("subjects/Objects.java"))
        .output()?;
    if !javac.status.success() {
        return Err(String::from_utf8_lossy(&javac.stderr).into_owned().into());
    }
    let (jjleak, alone) = compared(turns, Follower::start)?;
    let (jfr, _) = compared(turns, Recording::start)?;
    let alone = Timings(alone).figure().map(|figure| Figure { median: figure.median * 1000., ..figure });
    let ratio = |name: &str, ratios| Fact::new(name, "", Timings(ratios).figure());
    Ok(Section {
        title: "Objects of a Java heap".to_owned(),
        says: "CPU time of a JVM that allocates objects of 80 to 335 bytes at 1 GB/s. Ratios are of the time with to that without, one after \
               the other in the same process."
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
fn compared<T>(turns: usize, begin: impl Fn(u32) -> Result<T>) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut java = Command::new("java");
    java.args(["-Xmx512m", "-XX:+UseG1GC", "-cp"]).arg(scratch("bench-objects")).arg("Objects");
    let mut program = Talker::start(&mut java, &Environment::new())?;
    program.ask(WARM_UP)?;
    let (mut ratios, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        let without = program.ask(MEASURED)?;
        let running = begin(program.pid())?;
        // What it does at the beginning is not of interest.
        program.ask("0.5")?;
        let with = program.ask(MEASURED)?;
        drop(running);
        ratios.push(with / without);
        alone.push(without);
    }
    Ok((ratios, alone))
}

/// `jjleak heap` on a process.
struct Follower(Child);

impl Follower {
    fn start(pid: u32) -> Result<Self> {
        let mut jjleak = Command::new(env!("CARGO_BIN_EXE_jjleak"))
            .args(["heap", "-p", &pid.to_string(), "3600"])
            // It writes a flame graph.
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(jjleak.stderr.take().ok_or("no stderr")?).lines();
        while !lines.next().ok_or("jjleak did not attach")??.contains("attached to") {}
        // A full pipe would block it.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self(jjleak))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Ends it with its last report; it may have exited already.
        let _ = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
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
