//! `jjleak heap`: the arguments of profiling without those that are about native allocations.

use clap::Parser;

use super::source_args::{ProfiledSource, SourceArgs};
use super::{Failure, profile};
use crate::profile::SourceKind;
use crate::reports::Reports;

/// Show who allocates in Java heaps, by class and call path
///
/// HotSpot announces an object when a thread takes a new buffer (TLAB) in the heap, and each object outside of buffers. jjleak takes the
/// class and the stack of each, from outside: without an option, an agent or a pause. The innermost frame is the class. The total is
/// HotSpot's own; shares of classes and stacks are estimates, with errors. Garbage counts, too: --histogram shows the classes that grow.
#[derive(Debug, Parser)]
#[command(name = "jjleak heap", version, max_term_width = 100)]
#[command(override_usage = "jjleak heap [OPTIONS] -p PID [INTERVAL] [COUNT]\n       \
    jjleak heap [OPTIONS] --name REGEX | --system-wide [INTERVAL] [COUNT]\n       \
    jjleak heap [OPTIONS] [INTERVAL] [COUNT] -- CMD [ARGS]...")]
pub(super) struct HeapArgs {
    #[command(flatten)]
    profiling: SourceArgs<Objects>,

    /// Ask the JVM for class histograms, at the beginning and with reports, and show the classes that grow. It stops for a full collection
    /// each time
    #[arg(long)]
    histogram: bool,
}

/// Objects in Java heaps.
#[derive(Debug)]
struct Objects;

impl ProfiledSource for Objects {
    const KIND: SourceKind = SourceKind::JavaHeap;
    const EXCLUDED: &'static [&'static str] = &[];
    const HELP: &'static [(&'static str, &'static str, &'static str)] = &[(
        "max_overhead",
        "Limit the cost of profiling to this percentage of the CPU time that the process itself uses; intervals become wider",
        "Where recording all announced objects costs more, jjleak records one in so many bytes, and changes that number each second. \
         Where the breakpoints alone cost more, it says so and stops following objects. One process only.",
    )];
    const REFUSAL: &'static str =
        "is about native allocations: it cannot be used with heap, which follows objects of Java heaps";
}

impl HeapArgs {
    /// Verbosity on stderr.
    pub(super) const fn verbosity(&self) -> u8 {
        self.profiling.args.verbose
    }
}

/// Follows the JVMs that the arguments name, and writes reports.
pub(super) fn follow(args: &HeapArgs) -> Result<(), Failure> {
    let profiling = &args.profiling.args;
    if !args.histogram {
        return profile::profile(profiling);
    }
    check_asked(profiling.pid.len())?;
    profile::profile_with(profiling, Reports::new(profiling.output_plan()).with_histograms())
}

/// Fails unless the arguments name a single running process.
fn check_asked(pids: usize) -> Result<(), Failure> {
    if pids == 1 {
        return Ok(());
    }
    Err(Failure::usage("--histogram asks one JVM that runs already: give one -p".to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<HeapArgs, clap::Error> {
        HeapArgs::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_consistent_and_all_hidden_options_exist() {
        let command = HeapArgs::command();
        for id in SourceArgs::<Objects>::excluded() {
            assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{id}");
        }
        command.debug_assert();
    }

    #[test]
    fn options_about_native_allocations_are_refused_by_name() {
        let args = parse("heap -p 1 --sample-bytes 1048576 5").unwrap();
        assert_eq!(args.profiling.args.source, SourceKind::JavaHeap);
        let refused = parse("heap -p 1 --mmap").unwrap_err().to_string();
        assert!(refused.contains("--mmap is about native allocations"), "{refused}");
        let pids = |line| parse(line).unwrap().profiling.args.pid.len();
        assert!(check_asked(pids("heap --histogram -- java Shop")).is_err(), "it is for a running JVM");
        assert!(check_asked(pids("heap --histogram -p 1")).is_ok());
    }
}
