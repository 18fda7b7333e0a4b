//! The arguments of `jjleak top`: those of profiling, with what a view needs for defaults.

use clap::Parser;

use crate::cli::args::Args;
use crate::top::Sort;

/// Watch what lives, live: a view of processes and call sites that is renewed every second
///
/// Keys are shown on ?. Nothing is written unless --format or --out asks for it; key e writes what is shown as a flame graph.
/// A command that is started has no input, and its output is not shown.
#[derive(Debug, Parser)]
#[command(name = "jjleak top", version, max_term_width = 100)]
#[command(override_usage = "jjleak top [OPTIONS] -p PID [INTERVAL] [COUNT]\n       \
    jjleak top [OPTIONS] --name REGEX | --system-wide [INTERVAL] [COUNT]\n       \
    jjleak top [OPTIONS] [INTERVAL] [COUNT] -- CMD [ARGS]...")]
#[command(mut_arg("interval", |arg| arg.default_value("1").help("Seconds between two looks")))]
#[command(mut_arg("count", |arg| arg.help("Number of looks [default: until q]")))]
#[command(mut_arg("format", |arg| arg.default_values(NOTHING).help("What to write at the end: text, json, svg, pprof, collapsed")))]
// The order of the view is another one than that of reports, and single events have no place in it.
#[command(mut_arg("sort", |arg| arg.long(None).hide(true)))]
#[command(mut_arg("trace", |arg| arg.long(None).short(None).hide(true)))]
pub(in crate::cli) struct TopArgs {
    #[command(flatten)]
    pub(super) profiling: Args,

    /// First order of the rows: verdict, size (live bytes), count (live allocations), growth (since the look before), rate (of
    /// growth) or age (of the oldest live allocation)
    #[arg(id = "order", long = "sort", value_name = "ORDER", default_value_t = Sort::Verdict)]
    pub(super) sort: Sort,
}

impl TopArgs {
    /// How much to say on stderr.
    pub(in crate::cli) const fn verbosity(&self) -> u8 {
        self.profiling.verbose
    }
}

/// No format.
const NOTHING: [&str; 0] = [];

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
        assert_eq!((args.profiling.interval, args.sort), (Duration::from_secs(1), Sort::Verdict));
        assert!(args.profiling.format.is_empty());
        let args = parse("top --sort rate --format svg 0.5 -- prog --sort x").unwrap();
        assert_eq!((args.profiling.interval, args.sort), (Duration::from_millis(500), Sort::Rate));
        assert_eq!(args.profiling.format.len(), 1);
        assert_eq!(args.profiling.argv, ["prog", "--sort", "x"]);
    }

    #[test]
    fn what_a_view_cannot_show_is_refused() {
        for line in ["top", "top -p 1 --sort colour", "top -p 1 -t", "top -p 1 --trace"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
