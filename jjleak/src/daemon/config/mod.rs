//! What the daemon does, as `/etc/jjleak/jjleak.toml` says.
//!
//! In: the file's text, and settings from the command line. Out: a [`Config`], each value of which is within its bounds, or
//! an [`Error`] with the line that is to blame. What each key means is told in `deploy/jjleak.toml`, which names all of them.

mod place;
mod read;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use place::Place;
pub use read::{Error, read};
pub use values::{AtMost, Count, Every, Pattern, Percent, Size, Span};

/// Everything that can be configured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What is kept.
    pub state: State,
    /// Which processes are watched.
    pub watch: Watching,
    /// When a process is suspected.
    pub suspect: Suspicion,
    /// How suspects are profiled.
    pub profile: Profiling,
    /// What is served.
    pub http: Http,
    /// Where profiles are sent.
    pub push: Push,
    /// What is said.
    pub log: Log,
}

/// What is kept, and for how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    /// The state directory.
    pub directory: PathBuf,
    /// Most bytes of all profiles.
    pub max_bytes: Size<{ 1 << 20 }, { 1 << 50 }>,
    /// Older profiles are removed.
    pub max_age: Span<60, { 3650 * DAY }>,
}

/// Which processes are watched, and how often they are looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Watching {
    /// Between two looks.
    pub interval: Span<1, HOUR>,
    /// Between two searches among all processes, for those whose start was not told of.
    pub rescan: Span<1, DAY>,
    /// Younger processes are not suspected.
    pub warm_up: Span<0, DAY>,
    /// Most processes that are watched.
    pub max_processes: Count<1, 10_000>,
    /// Every Java virtual machine.
    pub jvms: bool,
    /// By name or path of the executable.
    pub names: Vec<Pattern>,
    /// By control group.
    pub cgroups: Vec<Pattern>,
    /// By user, as a number.
    pub users: Vec<Count<0, 4_294_967_294>>,
    /// Never, by name or path of the executable.
    pub exclude: Vec<Pattern>,
}

/// When a process is suspected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Suspicion {
    /// Least growth of resident memory.
    pub growth_bytes: Size<4096, { 1 << 50 }>,
    /// Least growth, in per cent of resident memory.
    pub growth_percent: Percent,
    /// The growth fills what is left of the limit within this time.
    pub limit_within: Span<0, { 365 * DAY }>,
    /// So much of the limit is taken.
    pub limit_percent: Percent,
    /// Tasks of the control group wait for memory for so much of the time.
    pub pressure_percent: Percent,
    /// Without any other reason.
    pub schedule: Every<60, { 365 * DAY }>,
}

/// How suspects are profiled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profiling {
    /// Longest time that probes are armed.
    pub duration: Span<1, DAY>,
    /// Younger allocations are not judged.
    pub settle: Span<1, HOUR>,
    /// Between two snapshots that are kept.
    pub snapshot: Span<1, HOUR>,
    /// Processes that are profiled at the same time.
    pub at_once: Count<1, 8>,
    /// One allocation in so many bytes; 0 for every allocation.
    pub sample_bytes: Size<0, { 1 << 30 }>,
    /// Profiling may take no more than this, of the CPU time that the process uses itself.
    pub max_overhead: AtMost,
    /// Until a process that was not found to leak is suspected again; twice as long each time.
    pub back_off: Span<1, { 365 * DAY }>,
    /// Longest back-off.
    pub back_off_max: Span<1, { 365 * DAY }>,
}

/// What is served, and to whom.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Where.
    pub listen: Place,
    /// A file with the token that clients must present; empty for none.
    pub token_file: PathBuf,
    /// Whether arguments of processes are shown, which may hold secrets.
    pub show_command_lines: bool,
    /// Most clients at a time.
    pub max_connections: Count<1, 10_000>,
}

/// Where profiles are sent, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Push {
    /// How the other side takes profiles.
    pub to: Store,
    /// The other side.
    pub url: String,
    /// A file with the token that is sent along; empty for none.
    pub token_file: PathBuf,
    /// More headers.
    pub headers: BTreeMap<String, String>,
    /// What every profile is marked with.
    pub labels: BTreeMap<String, String>,
    /// Most bytes of profiles that wait to be sent.
    pub queue_bytes: Size<{ 1 << 20 }, { 1 << 40 }>,
}

/// What takes profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// Nothing.
    Off,
    /// Pyroscope, or what takes profiles as it does.
    Pyroscope,
    /// An OpenTelemetry collector.
    Otlp,
    /// Anything that takes a pprof file.
    Pprof,
}

/// What is said on stderr.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// How.
    pub format: LogFormat,
    /// What.
    pub level: LogLevel,
    /// Most messages from the same place in the code in a minute; 0 for no bound.
    pub per_minute: Count<0, 1_000_000>,
}

/// How messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// An object a line.
    Json,
}

/// Which messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What fails.
    Error,
    /// And what is not as it should be.
    Warn,
    /// And what the daemon does.
    Info,
    /// And how.
    Debug,
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Default for State {
    fn default() -> Self {
        Self {
            directory: "/var/lib/jjleak".into(),
            max_bytes: Size(1 << 30),
            max_age: Span(seconds(30 * DAY)),
        }
    }
}

impl Default for Watching {
    fn default() -> Self {
        Self {
            interval: Span(seconds(10)),
            rescan: Span(seconds(60)),
            warm_up: Span(seconds(300)),
            max_processes: Count(512),
            jvms: true,
            names: Vec::new(),
            cgroups: Vec::new(),
            users: Vec::new(),
            exclude: Vec::new(),
        }
    }
}

impl Default for Suspicion {
    fn default() -> Self {
        Self {
            growth_bytes: Size(32 << 20),
            growth_percent: Percent(5.),
            limit_within: Span(seconds(6 * HOUR)),
            limit_percent: Percent(90.),
            pressure_percent: Percent(20.),
            schedule: Every(None),
        }
    }
}

impl Default for Profiling {
    fn default() -> Self {
        Self {
            duration: Span(seconds(300)),
            settle: Span(seconds(30)),
            snapshot: Span(seconds(60)),
            at_once: Count(1),
            sample_bytes: Size(0),
            max_overhead: AtMost(Some(10.)),
            back_off: Span(seconds(1800)),
            back_off_max: Span(seconds(DAY)),
        }
    }
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: Place::Unix("/run/jjleak/jjleak.sock".into()),
            token_file: PathBuf::new(),
            show_command_lines: false,
            max_connections: Count(64),
        }
    }
}

impl Default for Push {
    fn default() -> Self {
        Self {
            to: Store::Off,
            url: String::new(),
            token_file: PathBuf::new(),
            headers: BTreeMap::new(),
            labels: BTreeMap::new(),
            queue_bytes: Size(64 << 20),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: LogLevel::Info, per_minute: Count(60) }
    }
}

#[cfg(test)]
mod tests;
