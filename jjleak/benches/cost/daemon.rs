//! CPU usage and memory of the daemon while it watches idle JVMs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jjleak::processes::{Pid, cpu_time};

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Environment, Talker, scratch};
use crate::timings::Figure;

const JVMS: usize = 50;
/// Options for a small JVM with as few threads as possible.
const JVM: [&str; 5] = ["-Xmx16m", "-Xss256k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"];
/// Time until all JVMs are found and scans are in a steady state.
const SETTLE: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(20);
const WANTED_PERCENT: f64 = 0.5;
const WANTED_MIB: f64 = 16.;

/// Killed when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn measure(options: &Options) -> Result<Section> {
    // Compiles the JVMs' program.
    crate::subjects::Buffers::new(options, 1)?;
    let count = options.choose(JVMS, 3);
    let jvms = (0..count).map(|_| jvm()).collect::<Result<Vec<_>>>()?;
    let state = tempfile::tempdir()?;
    let configuration = state.path().join("jjleak.toml");
    let directory = state.path().join("state").display().to_string();
    fs::write(&configuration, format!("[state]\ndirectory = {directory:?}\n[http]\nlisten = \"off\"\n"))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_jjleak"));
    command.args(["daemon", "--config"]).arg(&configuration);
    let mut daemon = Daemon(command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?);
    let stderr = BufReader::new(daemon.0.stderr.take().ok_or("no stderr")?);
    std::thread::spawn(move || stderr.lines().for_each(drop));
    let wait = |long: Duration| std::thread::sleep(if options.quick { long / 5 } else { long });
    wait(SETTLE);
    let pid = Pid::new(daemon.0.id()).ok_or("PID 0")?;
    let taken = || cpu_time(pid).ok_or("the daemon has exited");
    let (begun, before) = (Instant::now(), taken()?);
    wait(MEASURED);
    let percent = taken()?.saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.;
    let memory = resident_mib(pid)?;
    drop(jvms);
    Ok(Section {
        title: "Idle daemon".to_owned(),
        says: format!(
            "The daemon watches {count} idle JVMs and all else that runs on the host, as by default. No BPF program is \
             loaded."
        ),
        facts: vec![
            Fact::new("CPU usage of the daemon (of one core)", "%", Some(Figure::of(percent)))
                .at_most(WANTED_PERCENT),
            Fact::new("resident memory of the daemon", "MiB", Some(Figure::of(memory))).at_most(WANTED_MIB),
        ],
        ..Section::default()
    })
}

/// Starts a JVM that waits for input.
fn jvm() -> Result<Talker> {
    let mut java = Command::new("java");
    java.args(JVM).arg("-cp").arg(scratch("bench-buffers")).arg("Buffers");
    Talker::start(&mut java, &Environment::new())
}

fn resident_mib(pid: Pid) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no value of VmRSS")?.parse()?;
    Ok(kib / 1024.)
}
