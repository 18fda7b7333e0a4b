//! `jjleak growth`: the arguments of profiling without those that are about allocations.

use clap::Parser;

use super::source_args::{ProfiledSource, SourceArgs};
use super::{Failure, profile};
use crate::profile::SourceKind;

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
    profiling: SourceArgs<Pages>,
}

/// Pages that become resident.
#[derive(Debug)]
struct Pages;

impl ProfiledSource for Pages {
    const KIND: SourceKind = SourceKind::Growth;
    const EXCLUDED: &'static [&'static str] = &["sample_rate", "sample_bytes", "max_overhead"];
    const REFUSAL: &'static str = "is about allocations: it cannot be used with growth, which follows pages";
}

impl GrowthArgs {
    /// Verbosity on stderr.
    pub(super) const fn verbosity(&self) -> u8 {
        self.profiling.args.verbose
    }
}

/// Follows the processes that the arguments name, and writes reports.
pub(super) fn follow(args: &GrowthArgs) -> Result<(), Failure> {
    profile::profile(&args.profiling.args)
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
        for id in SourceArgs::<Pages>::excluded() {
            assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{id}");
        }
        command.debug_assert();
    }

    #[test]
    fn options_about_allocations_are_refused_by_name() {
        assert_eq!(parse("growth -p 1 5").unwrap().profiling.args.source, SourceKind::Growth);
        let refused = parse("growth -p 1 --min-size 64").unwrap_err().to_string();
        assert!(refused.contains("--min-size is about allocations"), "{refused}");
    }
}
