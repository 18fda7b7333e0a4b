//! The arguments.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, ArgGroup, Parser};
use regex::Regex;

use super::Failure;
use crate::analyze::{Selection, SortBy};
use crate::attach::SizeFilter;
use crate::render::{Format, Value};

/// Names the call paths that leak memory in a running process.
///
/// Attaches to a process, or starts a command, accounts every allocation and free with its call path, and reports
/// what has been allocated since and not been freed.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
#[command(
    override_usage = "jjleak [OPTIONS] -p PID [INTERVAL] [COUNT]\n       jjleak [OPTIONS] --name REGEX | --system-wide [INTERVAL] [COUNT]\n       jjleak [OPTIONS] [INTERVAL] [COUNT] -- CMD [ARGS]..."
)]
#[command(after_help = "Exit codes: 0 done, 1 failure, 2 usage, 3 missing privilege or kernel feature, \
    4 no such process or command, or it ended too early, 5 something was lost (with --strict).")]
#[command(group = ArgGroup::new("target").required(true).args(["pid", "name", "system_wide", "command", "argv"]))]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(super) struct Args {
    /// Attach to the process with this PID; can be given several times
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) pid: Vec<u32>,

    /// Attach to every process whose name, or whose executable's path, matches, also to those that begin later
    ///
    /// The expression is one of Rust's regex crate. Every process that uses the same allocator pays for the probes.
    #[arg(short, long, value_name = "REGEX")]
    pub(super) name: Option<Regex>,

    /// Attach to every process, also to those that begin later
    #[arg(long)]
    pub(super) system_wide: bool,

    /// Account children, too, each in books of its own
    ///
    /// Every process that uses the same allocator pays for the probes.
    #[arg(long, conflicts_with_all = ["name", "system_wide"])]
    pub(super) follow: bool,

    /// Most processes at a time with --follow, --name and --system-wide; each takes 33 KiB
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) max_processes: u32,

    /// Start this command, as the user who runs jjleak; quoted as in a shell, run without one
    #[arg(short, long, value_name = "STRING")]
    pub(super) command: Option<String>,

    /// Seconds between reports
    #[arg(value_name = "INTERVAL", default_value = "5", value_parser = parse_interval)]
    pub(super) interval: Duration,

    /// Number of reports [default: until Ctrl-C or the end of the process]
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,

    /// Start this command, as the user who runs jjleak, and account from its first allocation
    #[arg(last = true, value_name = "CMD")]
    pub(super) argv: Vec<OsString>,

    /// Account only allocations of at least this many bytes
    #[arg(short = 'z', long, value_name = "BYTES", default_value_t = 0)]
    pub(super) min_size: u64,

    /// Account only allocations of at most this many bytes
    #[arg(short = 'Z', long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true)]
    pub(super) max_size: u64,

    /// Profile the allocation functions of this file only: its path as the process maps it, or its name
    #[arg(short = 'O', long, value_name = "PATH")]
    pub(super) obj: Option<PathBuf>,

    /// Profile functions with this prefix, too: those of malloc(3) with it in front
    #[arg(short = 'S', long, value_name = "PREFIX", value_parser = NonEmptyStringValueParser::new())]
    pub(super) symbols_prefix: Option<String>,

    /// Profile the functions that this table names, too; can be given several times (docs/allocators.md)
    #[arg(long, value_name = "FILE")]
    pub(super) allocators: Vec<PathBuf>,

    /// Account also anonymous mappings (mmap, mremap, brk) that no allocation call makes: address space, not memory in use
    #[arg(long)]
    pub(super) mmap: bool,

    /// Number of stacks in text reports
    #[arg(short = 'T', long, value_name = "N", default_value_t = 10)]
    pub(super) top: usize,

    /// Order of the stacks: size (live bytes) or count (live allocations)
    #[arg(long, value_name = "ORDER", default_value_t = SortBy::Size)]
    pub(super) sort: SortBy,

    /// What to write: text, json, svg, pprof, collapsed
    ///
    /// Text goes to stdout at every interval, json too unless --out is given; the others are files written at
    /// the end.
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', default_values_t = [Format::Text, Format::Svg])]
    pub(super) format: Vec<Format>,

    /// Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak-PID.* here]
    #[arg(long, value_name = "PATH")]
    pub(super) out: Option<PathBuf>,

    /// What flame graphs and collapsed stacks show: bytes, objects, or both
    #[arg(long, value_name = "VALUES", value_delimiter = ',', default_values_t = [Value::Bytes])]
    pub(super) by: Vec<Value>,

    /// End with exit code 5 when anything was lost
    #[arg(long)]
    pub(super) strict: bool,

    /// Say more on stderr; twice: also messages of the kernel side
    #[arg(short, long, action = ArgAction::Count)]
    pub(super) verbose: u8,
}

/// What to profile.
#[derive(Debug)]
pub(super) enum Subject {
    /// Running processes.
    Pids(Vec<u32>),
    /// Processes whose name matches, also later ones.
    Named(Regex),
    /// Every process, also later ones.
    Everything,
    /// A command to start.
    Command(Vec<OsString>),
}

impl Args {
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

    pub(super) const fn selection(&self) -> Selection {
        Selection { sort: self.sort, top: self.top }
    }

    pub(super) fn size_filter(&self) -> Result<SizeFilter, Failure> {
        if self.min_size > self.max_size {
            let (min, max) = (self.min_size, self.max_size);
            return Err(Failure::usage(format!("--min-size {min} is larger than --max-size {max}")));
        }
        Ok(SizeFilter { min: self.min_size, max: self.max_size })
    }
}

/// A positive number of seconds, with fractions. The upper bound keeps it within what timers take.
fn parse_interval(text: &str) -> Result<Duration, String> {
    const LONGEST: f64 = 365.0 * 24.0 * 3600.0;
    const SHORTEST: f64 = 0.1;
    match text.parse::<f64>() {
        Ok(seconds) if (SHORTEST..=LONGEST).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("not a number of seconds from {SHORTEST} to {LONGEST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split(' '))
    }

    #[test]
    fn bcc_style_arguments_are_understood() {
        let args = parse("jjleak -p 42 10 3 -T 5 -z 16 -Z 4096").unwrap();
        assert!(matches!(args.subject(), Ok(Subject::Pids(pids)) if pids == [42]));
        assert_eq!((args.interval, args.count, args.top), (Duration::from_secs(10), Some(3), 5));
        assert_eq!(args.size_filter().ok(), Some(SizeFilter { min: 16, max: 4096 }));
    }

    #[test]
    fn a_command_keeps_its_own_arguments() {
        let args = parse("jjleak 1 2 -- prog -p 3 --out x").unwrap();
        let words = ["prog", "-p", "3", "--out", "x"].map(OsString::from).to_vec();
        assert!(matches!(args.subject(), Ok(Subject::Command(command)) if command == words));
        assert_eq!((args.interval, args.count), (Duration::from_secs(1), Some(2)));
    }

    #[test]
    fn a_quoted_command_is_split_like_in_a_shell() {
        let args = Args::try_parse_from(["jjleak", "-c", "prog 'a b' c"]).unwrap();
        let words = ["prog", "a b", "c"].map(OsString::from).to_vec();
        assert!(matches!(args.subject(), Ok(Subject::Command(command)) if command == words));
    }

    #[test]
    fn several_processes_can_be_named_and_each_counts_once() {
        let args = parse("jjleak -p 42 -p 7 -p 42 1").unwrap();
        assert!(matches!(args.subject(), Ok(Subject::Pids(pids)) if pids == [7, 42]));
        assert!(matches!(parse("jjleak -n ^java$ 1").unwrap().subject(), Ok(Subject::Named(_))));
        assert!(matches!(parse("jjleak --system-wide 1").unwrap().subject(), Ok(Subject::Everything)));
        assert!(parse("jjleak --follow 1 -- make -j2").unwrap().follow);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "jjleak",
            "jjleak -p 0",
            "jjleak -p 1 -- prog",
            "jjleak -p 1 0",
            "jjleak -p 1 nan",
            "jjleak -p 1 1 0",
            "jjleak -p 1 --format png",
            "jjleak -p 1 --sort colour",
            "jjleak -p 1 --name x",
            "jjleak --name [",
            "jjleak --name x --follow",
            "jjleak --system-wide --max-processes 0",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("jjleak -p 1 -z 10 -Z 9").unwrap().size_filter().is_err());
        assert!(Args::try_parse_from(["jjleak", "-c", "'open"]).unwrap().subject().is_err());
        assert!(Args::try_parse_from(["jjleak", "-c", " "]).unwrap().subject().is_err());
    }
}
