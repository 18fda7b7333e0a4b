//! The whole command line: profiling, which has no subcommand, and the subcommands.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::args::Args;
use super::daemon::DaemonArgs;
use super::diff::DiffArgs;
use super::doctor::DoctorArgs;
use super::growth::GrowthArgs;
use super::heap::HeapArgs;
use super::manual::{CompletionsArgs, ManualArgs};
use super::memory::MemoryArgs;
use super::report::ReportArgs;
use super::self_test::SelfTestArgs;
use super::top_args::TopArgs;

/// Names the call paths that leak memory in a running process.
///
/// Attaches to a process or starts a command, records every allocation and free with its call path, and reports
/// the memory that has been allocated since then and not freed.
#[derive(Debug, Parser)]
#[command(name = "jjleak", version, max_term_width = 100)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
#[command(override_usage = "jjleak [OPTIONS] -p PID [INTERVAL] [COUNT]\n       \
    jjleak [OPTIONS] --name REGEX | --system-wide [INTERVAL] [COUNT]\n       \
    jjleak [OPTIONS] [INTERVAL] [COUNT] -- CMD [ARGS]...\n       \
    jjleak COMMAND ...")]
#[command(after_help = "Exit codes: 0 done, 1 failure, 2 usage, 3 missing privilege or kernel feature, \
    4 no such process or command, or it ended too early, 5 something was lost (with --strict).")]
pub(super) struct CommandLine {
    #[command(subcommand)]
    pub(super) command: Option<Command>,

    #[command(flatten)]
    pub(super) args: Args,

    /// Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it
    #[arg(long, value_name = "FILE", global = true, hide_short_help = true)]
    pub(super) kernel_btf: Option<PathBuf>,
}

/// Commands that do not profile by themselves.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Top(Box<TopArgs>),
    Report(Box<ReportArgs>),
    Diff(Box<DiffArgs>),
    Memory(MemoryArgs),
    Growth(Box<GrowthArgs>),
    Heap(Box<HeapArgs>),
    Doctor(DoctorArgs),
    Daemon(DaemonArgs),
    SelfTest(SelfTestArgs),
    Completions(CompletionsArgs),
    #[command(hide = true)]
    Manual(ManualArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<CommandLine, clap::Error> {
        CommandLine::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn commands_need_no_target_and_profiling_does() {
        assert!(matches!(parse("jjleak doctor").unwrap().command, Some(Command::Doctor(_))));
        assert!(matches!(parse("jjleak report a.pb.gz").unwrap().command, Some(Command::Report(_))));
        assert!(parse("jjleak -p 1 5").unwrap().command.is_none());
        assert!(parse("jjleak 5").is_err());
    }

    #[test]
    fn a_program_may_be_called_like_a_command() {
        let command_line = parse("jjleak 5 -- report x").unwrap();
        assert!(command_line.command.is_none());
        assert_eq!(command_line.args.argv, ["report", "x"]);
        assert!(parse("jjleak -p 1 doctor").is_err());
    }
}
