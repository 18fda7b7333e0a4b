//! Configuration of the daemon, `/etc/jjleak/jjleak.toml`.
//!
//! In: the file's text, and settings from the command line. Out: a validated [`Config`], or an [`Error`] with the offending
//! line. `deploy/jjleak.toml` lists and explains all keys.

mod listen_address;
mod read;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use listen_address::ListenAddress;
pub use read::{Error, read};
pub use values::{Count, Every, OverheadLimit, Pattern, Percent, Size, Span};

/// The whole configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Stored profiles.
    pub state: State,
    /// Processes to watch.
    pub watch: Watching,
    /// Criteria for suspicion.
    pub suspect: Suspicion,
    /// Profiling of suspects.
    pub profile: Profiling,
    /// Heap profiles that programs write themselves.
    pub dumps: Dumps,
    /// HTTP server.
    pub http: Http,
    /// Remote profile store.
    pub push: Push,
    /// Log.
    pub log: Log,
}

/// Stored profiles and their retention.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    /// The state directory.
    pub directory: PathBuf,
    /// Maximum size of all profiles.
    pub max_bytes: Size<{ 1 << 20 }, { 1 << 50 }>,
    /// Maximum age of profiles.
    pub max_age: Span<60, { 3650 * DAY }>,
}

/// Processes to watch, and intervals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Watching {
    /// Interval between scans of the watched processes.
    pub interval: Span<1, HOUR>,
    /// Interval between scans of all processes, for those without a process event.
    pub rescan: Span<1, DAY>,
    /// Minimum age of processes that can become suspects.
    pub warm_up: Span<0, DAY>,
    /// Maximum number of watched processes.
    pub max_processes: Count<1, 10_000>,
    /// Watch every Java virtual machine.
    pub jvms: bool,
    /// Watch by name or path of the executable.
    pub names: Vec<Pattern>,
    /// Watch by control group.
    pub cgroups: Vec<Pattern>,
    /// Watch by user ID.
    pub users: Vec<Count<0, 4_294_967_294>>,
    /// Never watch, by name or path of the executable.
    pub exclude: Vec<Pattern>,
}

/// Criteria for suspicion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Suspicion {
    /// Minimum growth of resident memory.
    pub growth_bytes: Size<4096, { 1 << 50 }>,
    /// Minimum growth in per cent of resident memory.
    pub growth_percent: Percent,
    /// The limit will be reached within this time.
    pub limit_within: Span<0, { 365 * DAY }>,
    /// Used share of the limit.
    pub limit_percent: Percent,
    /// Share of time for which tasks of the control group wait for memory.
    pub pressure_percent: Percent,
    /// Interval of profiles without any other reason.
    pub schedule: Every<60, { 365 * DAY }>,
}

/// Profiling of suspects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profiling {
    /// Maximum time for which probes are attached.
    pub duration: Span<1, DAY>,
    /// Minimum age of allocations that are judged.
    pub settle: Span<1, HOUR>,
    /// Interval between stored snapshots.
    pub snapshot: Span<1, HOUR>,
    /// Maximum number of processes profiled at the same time.
    pub at_once: Count<1, 8>,
    /// Mean number of bytes per sampled allocation; 0 counts every allocation.
    pub sample_bytes: Size<0, { 1 << 30 }>,
    /// Maximum overhead as a share of the process's own CPU time.
    pub max_overhead: OverheadLimit,
    /// Maximum time for which everything is counted, whatever it costs, after a profile that could not be judged within
    /// `max_overhead`.
    pub exact_for: Every<10, HOUR>,
    /// True to profile afterwards what has grown if it is not what `malloc` gives out: the Java heap, mapped files, or other pages.
    pub follow_up: bool,
    /// Minimum back-off after a profile; doubles each time.
    pub back_off: Span<1, { 365 * DAY }>,
    /// Maximum back-off.
    pub back_off_max: Span<1, { 365 * DAY }>,
}

/// Heap profiles that programs write themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dumps {
    /// Patterns of files, and addresses of servers.
    pub from: Vec<String>,
    /// Interval between requests, and between searches for new files.
    pub interval: Span<1, DAY>,
    /// Maximum size of a profile, decompressed.
    pub max_bytes: Size<4096, { 1 << 30 }>,
    /// Headers of requests.
    pub headers: BTreeMap<String, String>,
}

/// HTTP server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Address.
    pub listen: ListenAddress,
    /// File with the token that clients must present; empty for none.
    pub token_file: PathBuf,
    /// True to show command lines, which can contain secrets.
    pub show_command_lines: bool,
    /// Maximum number of connections.
    pub max_connections: Count<1, 10_000>,
}

/// Remote profile store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Push {
    /// Protocol.
    pub to: Store,
    /// URL of the server.
    pub url: String,
    /// File with the token to send; empty for none.
    pub token_file: PathBuf,
    /// Additional headers.
    pub headers: BTreeMap<String, String>,
    /// Labels added to every profile.
    pub labels: BTreeMap<String, String>,
    /// Maximum size of queued profiles.
    pub queue_bytes: Size<{ 1 << 20 }, { 1 << 40 }>,
}

/// Protocol of the remote profile store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// Pushing is off.
    Off,
    /// Pyroscope, or a compatible server.
    Pyroscope,
    /// An OpenTelemetry collector.
    Otlp,
    /// A server that takes a pprof file as the body of a `POST`.
    Pprof,
}

/// Log on stderr.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Format of messages.
    pub format: LogFormat,
    /// Maximum severity.
    pub level: LogLevel,
    /// Maximum number of messages per minute from each call site in the code; 0 for no limit.
    pub per_minute: Count<0, 1_000_000>,
}

/// Format of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines of text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Severity of messages that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures only.
    Error,
    /// Also warnings.
    Warn,
    /// Also activities of the daemon.
    Info,
    /// Also details.
    Debug,
}

impl Config {
    /// Returns true if the settings that are read at start only are those of another configuration.
    #[must_use]
    pub fn has_settings_of_start(&self, other: &Self) -> bool {
        self.state.directory == other.state.directory
            && self.dumps == other.dumps
            && self.http == other.http
            && self.push == other.push
            && self.log == other.log
    }
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
            max_overhead: OverheadLimit(Some(10.)),
            exact_for: Every(None),
            follow_up: true,
            back_off: Span(seconds(1800)),
            back_off_max: Span(seconds(DAY)),
        }
    }
}

impl Default for Dumps {
    fn default() -> Self {
        Self {
            from: Vec::new(),
            interval: Span(seconds(60)),
            max_bytes: Size(16 << 20),
            headers: BTreeMap::new(),
        }
    }
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: ListenAddress::Unix("/run/jjleak/jjleak.sock".into()),
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
