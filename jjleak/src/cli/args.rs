//! Arguments of profiling.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser as _};
use clap::{ArgAction, ArgGroup};
use jjleak_common::mapping::MappingKinds;
use jjleak_common::{live, sampling, stack};
use regex::Regex;

use super::Failure;
use super::output_args::{OutputArgs, TextArgs};
use crate::analyze::SortBy;
use crate::attach::{Capacity, Following, MAX_ROWS, Settings, SizeFilter};
use crate::profile::{Coverage, Sampling, SourceKind};
use crate::render::{Contents, Format, Value};
use crate::reports::OutputPlan;

/// Maximum number of blocks listed per stack with `--show-allocs`: more than anybody reads, and a bound on the size of a report.
const SHOWN_BLOCKS: usize = 100;

/// Mappings to account if the argument names none.
const ANONYMOUS: &str = "anonymous";

/// Kinds of mappings by their names on the command line.
const MAPPINGS: [(&str, MappingKinds); 3] =
    [(ANONYMOUS, MappingKinds::ANONYMOUS), ("files", MappingKinds::FILES), ("all", MappingKinds::ALL)];

// The help text of the whole command line is on `CommandLine`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("target").required(true).args(["pid", "name", "system_wide", "command", "argv"]))]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(super) struct Args {
    /// Attach to the process with this PID; can be given several times
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) pid: Vec<u32>,

    /// Attach to every process whose name or executable path matches, including processes that start later
    ///
    /// REGEX has the syntax of Rust's regex crate. The probes slow down every process that uses the same allocator.
    #[arg(short, long, value_name = "REGEX")]
    pub(super) name: Option<Regex>,

    /// Attach to every process, including processes that start later
    #[arg(long)]
    pub(super) system_wide: bool,

    /// Follow child processes too, with separate figures for each
    ///
    /// The probes slow down every process that uses the same allocator.
    #[arg(long, conflicts_with_all = ["name", "system_wide"])]
    pub(super) follow: bool,

    /// Maximum number of processes at a time with --follow, --name and --system-wide; 49 KiB each
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1024))]
    #[arg(help_heading = "Capacities")]
    pub(super) max_processes: u32,

    /// Start this command, as the user who runs jjleak; quoted as in a shell, but no shell runs it
    #[arg(short, long, value_name = "STRING")]
    pub(super) command: Option<String>,

    /// Seconds between reports
    #[arg(value_name = "INTERVAL", default_value = "5", value_parser = parse_interval)]
    pub(super) interval: Duration,

    /// Number of reports [default: until Ctrl-C or the end of the process]
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,

    /// Start this command, as the user who runs jjleak, and count from its first allocation
    #[arg(last = true, value_name = "CMD")]
    pub(super) argv: Vec<OsString>,

    /// Count only allocations of at least this many bytes
    #[arg(short = 'z', long, value_name = "BYTES", default_value_t = 0)]
    pub(super) min_size: u64,

    /// Count only allocations of at most this many bytes
    #[arg(short = 'Z', long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true)]
    pub(super) max_size: u64,

    /// Profile only the allocation functions of this file: its name, or its path as the process maps it
    #[arg(short = 'O', long, value_name = "PATH")]
    pub(super) obj: Option<PathBuf>,

    /// Also profile functions named like those of malloc(3), with this prefix in front
    #[arg(short = 'S', long, value_name = "PREFIX", value_parser = NonEmptyStringValueParser::new())]
    pub(super) symbols_prefix: Option<String>,

    /// Also profile the functions listed in this table; can be given several times (docs/allocators.md)
    #[arg(long, value_name = "FILE")]
    pub(super) allocators: Vec<PathBuf>,

    /// Probe the C library's malloc at entry and return, even where one probe inside it is proven sufficient (docs/overhead.md)
    #[arg(long)]
    pub(super) entry_and_return: bool,

    /// Also count mappings made outside allocation functions (mmap, mremap, brk): anonymous memory unless KIND is given
    ///
    /// Figures are address space, not memory in use. Files include those that the loader maps, and devices.
    #[arg(long, value_name = "KIND", num_args = 0..=1, require_equals = true, default_missing_value = ANONYMOUS)]
    #[arg(value_parser = PossibleValuesParser::new(MAPPINGS.map(|(name, _)| name)).try_map(|name| parse_mappings(&name)))]
    pub(super) mmap: Option<MappingKinds>,

    /// Request perf maps from JVMs whose code jjleak cannot name (JDK 17 and later), as jcmd does
    ///
    /// HotSpot's methods have names without this option. It is the only option that makes a process do something: a JVM
    /// that does not listen to jcmd yet first gets SIGQUIT, unless that could end it or make it print (docs/jvm.md).
    #[arg(long)]
    pub(super) refresh_perf_map: bool,

    /// Show only allocations that are at least this old, in milliseconds
    #[arg(short, long, value_name = "MS", default_value_t = 0, hide_default_value = true)]
    pub(super) older: u64,

    /// Sample one allocation in N at random; figures become estimates
    #[arg(short, long, value_name = "N", default_value_t = 1, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) sample_rate: u32,

    /// Sample one allocation in this many allocated bytes, preferring large allocations; figures become estimates
    #[arg(long, value_name = "BYTES", conflicts_with = "sample_rate")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=sampling::MAX_BYTES))]
    pub(super) sample_bytes: Option<u64>,

    /// Use the samples that the program draws itself and announces at probes (SDT); figures become estimates
    ///
    /// The probes are those of OpenTelemetry or of Datadog's library (docs/samples.md). Costs the program almost nothing besides its own
    /// sampling. jjleak doctor says whether a process has such probes. For a command (-- CMD), jjleak preloads
    /// a library that samples malloc: one allocation in 512 KiB, or in --sample-bytes.
    #[arg(long, conflicts_with_all = ["sample_rate", "max_overhead", "estimate", "mmap", "min_size", "max_size"])]
    #[arg(conflicts_with_all = ["symbols_prefix", "allocators", "entry_and_return"])]
    pub(super) sampled: bool,

    /// Make a running JVM load the library that samples malloc: it stays until the JVM ends
    ///
    /// jjleak asks the JVM as jcmd does. JDK 21 and later print a warning then (JEP 451). A JVM that runs with
    /// -XX:-EnableDynamicAgentLoading or -XX:+DisableAttachMechanism refuses. Nothing is ever loaded into other programs.
    #[arg(long, requires_all = ["sampled", "pid"])]
    pub(super) load: bool,

    /// Sum live allocations per stack in the kernel: reports stay fast with many live blocks, but have no ages
    #[arg(short = 'C', long, conflicts_with_all = ["older", "show_allocs", "sample_rate", "sample_bytes"])]
    pub(super) combined_only: bool,

    /// Separate stacks by thread: the root of each stack is the thread that allocated; needs more stacks (--max-stacks)
    #[arg(long)]
    pub(super) threads: bool,

    /// List the live blocks of each stack, at most the 100 largest
    #[arg(short = 'a', long)]
    pub(super) show_allocs: bool,

    /// Print each allocation and free as it happens, and a report only at the end
    #[arg(short, long)]
    pub(super) trace: bool,

    /// Maximum number of tracked live blocks, 40 to 70 bytes each
    #[arg(long, value_name = "N", default_value_t = live::DEFAULT_BLOCKS, help_heading = "Capacities")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(live::MAX_BLOCKS)))]
    pub(super) max_live: u32,

    /// Maximum number of distinct stacks with live blocks, 100 to 200 bytes each; stacks without leave the table before it
    /// fills up, and keep their totals, unless --max-overhead is given
    #[arg(long, value_name = "N", default_value_t = stack::DEFAULT_STACKS, help_heading = "Capacities")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(stack::MAX_STACKS)))]
    pub(super) max_stacks: u32,

    /// Size in bytes of the buffer for the frames of new stacks, rounded up to a power of two [default: 4194304; twice
    /// that with --follow, --name, --system-wide or --threads]
    #[arg(long, value_name = "BYTES", help_heading = "Capacities")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(stack::MAX_FRAME_BYTES)))]
    pub(super) frame_buffer: Option<u32>,

    /// Maximum number of unwind rows, 8 bytes each, allocated as code is mapped [default: as many as fill 1/64 of the memory, from
    /// 4194304 to 33554432]
    #[arg(long, value_name = "N", help_heading = "Capacities")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ROWS)))]
    pub(super) max_rows: Option<u32>,

    /// Minimum age of allocations for verdicts: older ones distinguish leaks from memory that is only held for a while. A
    /// process gets verdicts once it has been watched for four times as long
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = parse_interval)]
    pub(super) settle: Duration,

    #[command(flatten)]
    pub(super) text: TextArgs,

    #[command(flatten)]
    pub(super) outputs: OutputArgs,

    /// Limit the cost of profiling to this percentage of the CPU time that the process itself uses; figures become estimates
    ///
    /// jjleak counts everything while that costs less. Otherwise, it uses the samples that the process draws itself, if it does
    /// (docs/samples.md). If it does not, jjleak counts allocations in random time windows, follows all frees if
    /// the limit has room for them, and reports the error of the estimates. Without that room, live memory is unknown, and reports
    /// show what was allocated. One process only.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    #[arg(conflicts_with_all = ["name", "system_wide", "follow", "mmap", "trace", "sample_rate", "sample_bytes", "combined_only"])]
    pub(super) max_overhead: Option<f64>,

    /// Only count calls for INTERVAL seconds, and predict what exact profiling would cost the process
    ///
    /// Counting costs the process less than half as much as profiling. Prints text, or one JSON document with --format json.
    #[arg(long, requires = "pid", conflicts_with_all = ["name", "system_wide", "follow", "count", "argv", "command", "trace"])]
    pub(super) estimate: bool,

    /// Subtract this saved profile (a pprof file) of an earlier run of the program, stack by stack
    #[arg(long, value_name = "FILE")]
    pub(super) baseline: Option<PathBuf>,

    /// Exit with code 5 if anything was lost
    #[arg(long)]
    pub(super) strict: bool,

    /// Source of the figures, set by the command or [`Self::with_source`].
    #[arg(skip)]
    pub(super) source: SourceKind,

    /// Print more messages to stderr; if given twice, also those of the BPF programs
    #[arg(short, long, action = ArgAction::Count)]
    pub(super) verbose: u8,
}

/// Factor on the default room for frames of new stacks if processes are followed or threads distinguished.
const FRAMES_WHERE_FOLLOWED: u32 = 2;

/// Target of a run.
#[derive(Debug)]
pub(super) enum Subject {
    /// Running processes.
    Pids(Vec<u32>),
    /// Processes whose name matches, including later ones.
    Named(Regex),
    /// All processes, including later ones.
    Everything,
    /// A command to start.
    Command(Vec<OsString>),
}

impl Args {
    /// The arguments with the source that their options name.
    pub(super) fn with_source(self) -> Self {
        let source = if self.sampled { SourceKind::Sampled } else { self.source };
        Self { source, ..self }
    }

    pub(super) fn subject(&self) -> Result<Subject, Failure> {
        if !self.pid.is_empty() {
            let mut pids = self.pid.clone();
            pids.sort_unstable();
            pids.dedup();
            return Ok(Subject::Pids(pids));
        }
        if let Some(name) = &self.name {
            return Ok(Subject::Named(name.clone()));
        }
        if self.system_wide {
            return Ok(Subject::Everything);
        }
        let Some(command) = &self.command else { return Ok(Subject::Command(self.argv.clone())) };
        let words =
            shell_words::split(command).map_err(|error| Failure::usage(format!("--command: {error}")))?;
        if words.is_empty() {
            return Err(Failure::usage("--command: the command is empty".to_owned()));
        }
        Ok(Subject::Command(words.into_iter().map(OsString::from).collect()))
    }

    /// Returns true if more than one process can be profiled.
    pub(super) fn may_be_several(&self) -> bool {
        self.pid.len() > 1 || self.follow || self.name.is_some() || self.system_wide
    }

    /// Requested outputs.
    pub(super) fn output_plan(&self) -> OutputPlan {
        let sort = self.text.sort.unwrap_or_default();
        let mut plan = self.outputs.plan(sort, self.contents(), Value::Bytes);
        self.text.apply(&mut plan.options);
        if let Some(baseline) = &self.baseline {
            plan.options.view =
                format!("only allocations that are not in {}, without verdicts", baseline.display());
        }
        plan
    }

    /// Contents of text reports: those of bcc's memleak if options of its kind are given.
    pub(super) fn contents(&self) -> Contents {
        let chooses = !self.source.is_judged()
            || self.older > 0
            || self.min_size > 0
            || self.max_size < u64::MAX
            || self.sample_rate > 1;
        self.text.contents(&self.outputs, self.show_allocs || self.combined_only || self.trace || chooses)
    }

    /// Returns true if any output contains verdicts.
    pub(super) fn wants_verdicts(&self) -> bool {
        let has_verdicts = |format: &Format| *format != Format::Text || self.contents().verdicts;
        self.source.is_judged() && !self.trace && self.outputs.format.iter().any(has_verdicts)
    }

    /// Applies the arguments to the settings of the kernel side.
    pub(super) fn apply(&self, settings: &mut Settings) {
        // Stacks are kept per process, or thread, and for a while after it has ended.
        let one = settings.following == Following::Nobody && !self.threads;
        let frames = if one { 1 } else { FRAMES_WHERE_FOLLOWED };
        settings.capacity = Capacity {
            blocks: self.max_live,
            stacks: self.max_stacks,
            frame_bytes: self.frame_buffer.unwrap_or(stack::DEFAULT_FRAME_BYTES * frames),
            rows: self.max_rows.unwrap_or(settings.capacity.rows),
            ..settings.capacity
        };
        settings.sampling = self.sampling();
        settings.combined = self.combined_only;
        settings.threads = self.threads;
        settings.trace = self.trace;
    }

    /// Coverage of the figures.
    pub(super) fn coverage(&self) -> Result<Coverage, Failure> {
        if self.combined_only && self.text.sort == Some(SortBy::Age) {
            let what = "--sort age cannot be used with --combined-only, which records no ages";
            return Err(Failure::usage(what.to_owned()));
        }
        Ok(Coverage {
            source: self.source,
            older: Duration::from_millis(self.older),
            sampling: self.sampling(),
            windows: None,
            combined: self.combined_only,
            blocks_per_stack: if self.show_allocs { SHOWN_BLOCKS } else { 0 },
            // Younger allocations are not in the figures and must not be judged.
            settle: if self.source.is_judged() {
                self.settle.max(Duration::from_millis(self.older))
            } else {
                Duration::ZERO
            },
            some_sizes: self.min_size > 0 || self.max_size < u64::MAX,
            threads: self.threads,
        })
    }

    fn sampling(&self) -> Sampling {
        match (self.sample_bytes, self.sample_rate) {
            _ if self.source == SourceKind::Sampled => Sampling::Announced,
            (Some(bytes), _) => Sampling::Bytes(bytes),
            (None, 0 | 1) => Sampling::Off,
            (None, rate) => Sampling::Rate(rate),
        }
    }

    pub(super) fn size_filter(&self) -> Result<SizeFilter, Failure> {
        if self.min_size > self.max_size {
            let (min, max) = (self.min_size, self.max_size);
            return Err(Failure::usage(format!("--min-size {min} is larger than --max-size {max}")));
        }
        Ok(SizeFilter { min: self.min_size, max: self.max_size })
    }
}

/// Parses a kind of mappings.
fn parse_mappings(name: &str) -> Result<MappingKinds, String> {
    let known = MAPPINGS.into_iter().find(|(known, _)| *known == name);
    known.map(|(_, kinds)| kinds).ok_or_else(|| format!("unknown kind of mappings: {name}"))
}

/// Parses a percentage.
fn parse_percent(text: &str) -> Result<f64, String> {
    const LOWEST: f64 = 0.1;
    const HIGHEST: f64 = 1_000_000_000.;
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (LOWEST..=HIGHEST).contains(&percent) => Ok(percent),
        _ => Err(format!("not a percentage from {LOWEST} to {HIGHEST}")),
    }
}

/// Parses a positive number of seconds, with fractions. The upper bound is within the range of timers.
pub(super) fn parse_interval(text: &str) -> Result<Duration, String> {
    const LONGEST: f64 = 365.0 * 24.0 * 3600.0;
    const SHORTEST: f64 = 0.1;
    match text.parse::<f64>() {
        Ok(seconds) if (SHORTEST..=LONGEST).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("not a number of seconds from {SHORTEST} to {LONGEST}")),
    }
}

#[cfg(test)]
mod tests;
