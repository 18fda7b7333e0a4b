//! The command line: turns arguments into plans, and errors into exit codes and remedies.
//!
//! In: arguments. Out: what is run, and an exit code. Errors are one line that says what failed and why, and one line
//! with the remedy.

mod allocator_tables;
mod args;
mod baseline;
mod command_line;
mod daemon;
mod diff;
mod doctor;
mod estimate;
mod failure;
mod growth;
mod heap;
mod hints;
mod manual;
mod memory;
mod naming_args;
mod output_args;
mod plan;
mod profile;
mod report;
mod sampler;
mod self_test;
mod signals;
mod source_args;
mod top;
mod top_args;
mod view;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use command_line::{Command, CommandLine};
use failure::Failure;

use crate::attach;
use crate::http_client;
use crate::jcmd;
use crate::notices::Log;
use crate::processes::opener;
use crate::self_test as host_test;
use crate::symbolize::child;

/// Runs the command with the arguments of this process.
#[must_use]
pub fn run() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // Internal commands: jjleak runs itself with them. The other arguments must not be parsed as options.
    if arguments.get(1).is_some_and(|word| word == jcmd::VERB) {
        return ask_jvm(arguments.into_iter().skip(2));
    }
    if arguments.get(1).is_some_and(|word| word == child::VERB) {
        return ExitCode::from(if child::run() { failure::DONE } else { failure::OTHER });
    }
    if arguments.get(1).is_some_and(|word| word == opener::VERB) {
        return ExitCode::from(if opener::run() { failure::DONE } else { failure::OTHER });
    }
    if arguments.get(1).is_some_and(|word| word == host_test::VERB) {
        host_test::run_program();
        return ExitCode::from(failure::DONE);
    }
    opener::open_in_child(Path::new(child::OWN_PROGRAM));
    if hints::is_bare(&arguments) {
        // If stderr is closed, nobody can be informed.
        let _ = std::io::stderr().write_all(hints::START.as_bytes());
        return ExitCode::from(failure::USAGE);
    }
    let outcome = match CommandLine::try_parse_from(&arguments) {
        Ok(command_line) => run_with(command_line),
        // Help and version are not errors. If stdout is closed, nobody can be informed.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            Ok(())
        }
        Err(error) => Err(hints::usage(&error, &arguments)),
    };
    match outcome {
        Ok(()) => ExitCode::from(failure::DONE),
        Err(failure) => failure.report(),
    }
}

/// Entry point of a jjleak that was started by another one to send a request to a JVM.
fn ask_jvm(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
    ExitCode::from(if jcmd::run(&arguments) { failure::DONE } else { failure::OTHER })
}

/// Runs the command.
fn run_with(command_line: CommandLine) -> Result<(), Failure> {
    if let Some(path) = &command_line.kernel_btf {
        use_kernel_btf(path)?;
    }
    if let Some(Command::Daemon(args)) = &command_line.command {
        // The daemon sets up logging from its configuration.
        return daemon::serve(args);
    }
    init_log(match &command_line.command {
        Some(Command::Top(args)) => args.verbosity(),
        Some(Command::Growth(args)) => args.verbosity(),
        Some(Command::Heap(args)) => args.verbosity(),
        _ => command_line.args.verbose,
    });
    match command_line.command {
        None if command_line.args.estimate => estimate::estimate(&command_line.args),
        None => profile::profile(&command_line.args.with_source()),
        Some(Command::Top(args)) => top::watch(&args),
        Some(Command::Memory(args)) => memory::scan(&args),
        Some(Command::Growth(args)) => growth::follow(&args),
        Some(Command::Heap(args)) => heap::follow(&args),
        Some(Command::Doctor(args)) => doctor::examine(&args),
        Some(Command::SelfTest(args)) => self_test::test(&args),
        Some(Command::Completions(args)) => {
            manual::completions(&args);
            Ok(())
        }
        Some(Command::Manual(args)) => manual::write(&args),
        Some(Command::Diff(args)) => diff::diff(&args),
        Some(Command::Report(args)) => report::report(&args),
        Some(Command::Daemon(args)) => daemon::serve(&args),
    }
}

fn use_kernel_btf(path: &Path) -> Result<(), Failure> {
    attach::kernel_btf::use_file(path).map_err(|error| {
        let what = format!("--kernel-btf: cannot use {}: {error}", path.display());
        Failure::new(failure::USAGE, what, "name a file with the type information of the running kernel")
    })
}

fn init_log(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Log).without_time().with_target(false);
    tracing_subscriber::registry().with(http_client::messages(level)).with(lines).init();
}
