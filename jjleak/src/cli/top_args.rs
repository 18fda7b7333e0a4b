//! The arguments of `jjleak top`: those of profiling, with what a view needs for defaults.

use clap::{ArgMatches, Command, FromArgMatches, Parser};

use crate::cli::Failure;
use crate::cli::args::Args;
use crate::profile::SourceKind;
use crate::render::Format;
use crate::top::Sort;

/// Show a live view of processes and call sites, refreshed every second
///
/// Press ? for a list of keys. Files are written only with --format or --out; key e writes the current view as a flame graph.
/// A command started by jjleak gets no input, and its output is not shown.
#[derive(Debug, Parser)]
#[command(name = "jjleak top", version, max_term_width = 100)]
#[command(override_usage = "jjleak top [OPTIONS] -p PID [INTERVAL] [COUNT]\n       \
    jjleak top [OPTIONS] --name REGEX | --system-wide [INTERVAL] [COUNT]\n       \
    jjleak top [OPTIONS] [INTERVAL] [COUNT] -- CMD [ARGS]...")]
pub(super) struct TopArgs {
    #[command(flatten)]
    profiling: Profiling,

    /// Initial order of the rows: verdict, size (live bytes), count (live allocations), growth (since the previous snapshot),
    /// rate (of growth) or age (of the oldest live allocation)
    #[arg(id = "order", long = "sort", value_name = "ORDER", default_value_t = Sort::Verdict)]
    pub(super) sort: Sort,

    /// Show pages that become resident, as jjleak growth does, instead of allocations
    #[arg(id = "of_growth", long = "growth")]
    #[arg(conflicts_with_all = ["mmap", "max_overhead", "baseline", "sample_rate", "sample_bytes", "combined_only", "older", "sampled"])]
    of_growth: bool,

    /// Show who allocates in Java heaps, as jjleak heap does, instead of native allocations
    #[arg(id = "of_heap", long = "heap", conflicts_with = "of_growth")]
    #[arg(conflicts_with_all = ["mmap", "max_overhead", "baseline", "combined_only", "older", "sampled"])]
    of_heap: bool,
}

impl TopArgs {
    /// Rejects options that a view cannot show.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.profiling().trace {
            return Err(Failure::usage(
                "--trace prints single events, which the live view does not show".to_owned(),
            ));
        }
        if self.profiling().estimate {
            return Err(Failure::usage("--estimate only counts calls: there is nothing to view".to_owned()));
        }
        Ok(())
    }

    /// Verbosity on stderr.
    pub(super) const fn verbosity(&self) -> u8 {
        self.profiling().verbose
    }

    /// The arguments of profiling.
    pub(super) const fn profiling(&self) -> &Args {
        &self.profiling.0
    }
}

/// Arguments of profiling, with defaults that suit a view.
#[derive(Debug)]
struct Profiling(Args);

impl Profiling {
    fn adapted(command: Command) -> Command {
        /// No format.
        const NOTHING: [&str; 0] = [];
        // Modified in place: removing and adding them again would reorder positional arguments.
        command.mut_args(|arg| match arg.get_id().as_str() {
            "interval" => arg.default_value("1").help("Seconds between snapshots"),
            "count" => arg.help("Number of snapshots [default: until q]"),
            "format" => {
                let help = format!("Output formats, written at the end: {}", Format::names());
                arg.default_values(NOTHING).help(help.clone()).long_help(help)
            }
            // A view has its own sort orders, and cannot show single events.
            "sort" => {
                arg.long("report-sort").help("Order of the stacks in reports: size, count, growth or age")
            }
            "trace" | "estimate" => arg.hide(true),
            _ => arg,
        })
    }
}

impl clap::Args for Profiling {
    fn augment_args(command: Command) -> Command {
        Self::adapted(Args::augment_args(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::adapted(Args::augment_args_for_update(command))
    }
}

impl FromArgMatches for Profiling {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |id| matches.try_get_one::<bool>(id).ok().flatten().is_some_and(|given| *given);
        let args = Args::from_arg_matches(matches)?;
        Ok(Self(match (is_given("of_growth"), is_given("of_heap")) {
            (true, _) => Args { source: SourceKind::Growth, ..args },
            (_, true) => Args { source: SourceKind::JavaHeap, ..args },
            _ => args.with_source(),
        }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<TopArgs, clap::Error> {
        TopArgs::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_consistent() {
        TopArgs::command().debug_assert();
    }

    #[test]
    fn a_view_is_renewed_every_second_and_writes_nothing_unasked() {
        let args = parse("top -p 42").unwrap();
        assert_eq!((args.profiling().interval, args.sort), (Duration::from_secs(1), Sort::Verdict));
        assert!(args.profiling().outputs.format.is_empty());
        let args = parse("top --sort rate --format svg 0.5 -- prog --sort x").unwrap();
        assert_eq!((args.profiling().interval, args.sort), (Duration::from_millis(500), Sort::Rate));
        assert_eq!(args.profiling().outputs.format.len(), 1);
        assert_eq!(args.profiling().argv, ["prog", "--sort", "x"]);
    }

    #[test]
    fn what_a_view_cannot_show_is_refused() {
        assert!(parse("top").is_err() && parse("top -p 1 --sort colour").is_err());
        assert!(parse("top -p 1 --trace").unwrap().check().is_err());
        assert!(parse("top -p 1 --estimate").unwrap().check().is_err());
        assert!(parse("top -p 1").unwrap().check().is_ok());
    }
}
