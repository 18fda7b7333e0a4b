//! `jjleak growth`: the arguments of profiling without those that are about allocations.

use clap::{ArgMatches, Command, FromArgMatches, Parser};

use super::args::Args;
use super::{Failure, profile};
use crate::profile::SourceKind;

/// Options that choose or describe allocations, by their IDs.
const OF_ALLOCATIONS: [&str; 20] = [
    "min_size",
    "max_size",
    "obj",
    "symbols_prefix",
    "allocators",
    "entry_and_return",
    "mmap",
    "older",
    "sample_rate",
    "sample_bytes",
    "combined_only",
    "show_allocs",
    "trace",
    "max_live",
    "settle",
    "outstanding",
    "verdicts",
    "max_overhead",
    "estimate",
    "baseline",
];

/// Show which stacks make memory resident
///
/// Follows page faults: each resident page belongs to the stack that touched it last. The innermost frame is the memory, such as the
/// Java heap or malloc. It costs nothing while a process does not touch new memory. Figures are of pages that are resident now.
#[derive(Debug, Parser)]
#[command(name = "jjleak growth", version, max_term_width = 100)]
#[command(override_usage = "jjleak growth [OPTIONS] -p PID [INTERVAL] [COUNT]\n       \
    jjleak growth [OPTIONS] --name REGEX | --system-wide [INTERVAL] [COUNT]\n       \
    jjleak growth [OPTIONS] [INTERVAL] [COUNT] -- CMD [ARGS]...")]
pub(super) struct GrowthArgs {
    #[command(flatten)]
    following: Following,
}

impl GrowthArgs {
    /// Verbosity on stderr.
    pub(super) const fn verbosity(&self) -> u8 {
        self.following.0.verbose
    }
}

/// Follows the processes that the arguments name, and writes reports.
pub(super) fn follow(args: &GrowthArgs) -> Result<(), Failure> {
    profile::profile(&args.following.0)
}

/// Arguments of profiling, for pages.
#[derive(Debug)]
struct Following(Args);

impl Following {
    fn adapted(command: Command) -> Command {
        command.mut_args(|arg| {
            let is_of_allocations = OF_ALLOCATIONS.contains(&arg.get_id().as_str());
            if is_of_allocations { arg.hide(true) } else { arg }
        })
    }

    /// The arguments, unless an option is about allocations.
    fn of(args: Args, matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |id: &&&str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
        if let Some(id) = OF_ALLOCATIONS.iter().find(is_given) {
            let option = id.replace('_', "-");
            let what = format!(
                "--{option} is about allocations: it cannot be used with growth, which follows pages\n"
            );
            return Err(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, what));
        }
        Ok(Self(Args { source: SourceKind::Growth, ..args }))
    }
}

impl clap::Args for Following {
    fn augment_args(command: Command) -> Command {
        Self::adapted(Args::augment_args(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::adapted(Args::augment_args_for_update(command))
    }
}

impl FromArgMatches for Following {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::of(Args::from_arg_matches(matches)?, matches)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<GrowthArgs, clap::Error> {
        GrowthArgs::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_consistent_and_all_hidden_options_exist() {
        let command = GrowthArgs::command();
        for id in OF_ALLOCATIONS {
            assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{id}");
        }
        command.debug_assert();
    }

    #[test]
    fn options_about_allocations_are_refused_by_name() {
        assert_eq!(parse("growth -p 1 5").unwrap().following.0.source, SourceKind::Growth);
        let refused = parse("growth -p 1 --min-size 64").unwrap_err().to_string();
        assert!(refused.contains("--min-size is about allocations"), "{refused}");
    }
}
