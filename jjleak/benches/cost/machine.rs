//! Description of the machine, and its noise.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::timings::{NOISY_PERCENT, Timings};

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) is_virtual: bool,
    pub(crate) kernel: String,
    pub(crate) distribution: String,
    pub(crate) libc: String,
    /// Versions of tools and workloads.
    pub(crate) versions: Vec<String>,
}

impl Machine {
    pub(crate) fn describe() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let value = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = read("/proc/meminfo");
        let memory = memory.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
        let release = read("/etc/os-release");
        let distribution = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let versions = [
            ("bpftrace", "--version"),
            ("heaptrack", "--version"),
            ("java", "--version"),
            ("redis-server", "--version"),
            ("sqlite3", "--version"),
            ("/usr/bin/python3", "--version"),
            ("gcc", "--version"),
        ];
        Self {
            cpu: value("model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mib: memory.unwrap_or_default() / 1024,
            is_virtual: value("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            distribution: distribution.unwrap_or_default().trim_matches('"').to_owned(),
            libc: first_line("ldd", "--version").unwrap_or_default(),
            versions: versions.iter().filter_map(|(program, option)| first_line(program, option)).collect(),
        }
    }
}

/// Noise from other load.
#[derive(Debug, Serialize)]
pub(crate) struct Noise {
    /// Relative spread of repeated runs.
    pub(crate) spread_percent: f64,
    /// Steal time of all CPUs during the measurement, in per cent of elapsed time.
    pub(crate) stolen_percent: f64,
    /// Load average over one minute.
    pub(crate) load: f64,
}

impl Noise {
    /// Takes about 0.2 s.
    pub(crate) fn measure() -> Self {
        const TIMINGS: usize = 100;
        const EACH: u32 = 200_000;
        let before = stolen();
        let begun = Instant::now();
        let mut timings = Timings::default();
        for _ in 0..TIMINGS {
            let begun = Instant::now();
            let sum = (0..EACH).fold(0u32, |sum, number| std::hint::black_box(sum ^ number.rotate_left(7)));
            std::hint::black_box(sum);
            timings.0.push(begun.elapsed().as_secs_f64());
        }
        let elapsed = begun.elapsed().as_secs_f64();
        let stolen = stolen().saturating_sub(before).as_secs_f64();
        Self {
            spread_percent: timings.figure().map_or(0., |figure| figure.spread_percent),
            stolen_percent: stolen / elapsed * 100.,
            load: read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.),
        }
    }

    pub(crate) fn is_noisy(&self) -> bool {
        self.spread_percent > NOISY_PERCENT || self.stolen_percent > NOISY_PERCENT
    }
}

/// Steal time of all CPUs since boot.
fn stolen() -> Duration {
    /// Column of the `cpu` line (`proc(5)`), in units of 10 ms.
    const STEAL: usize = 8;
    let stat = read("/proc/stat");
    let ticks = stat.split_whitespace().nth(STEAL).and_then(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.unwrap_or_default())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// First line of a program's output.
fn first_line(program: &str, option: &str) -> Option<String> {
    let output = Command::new(program).arg(option).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
}
