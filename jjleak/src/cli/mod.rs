//! The command line: wires the stages together.
//!
//! In: arguments. Out: reports on stdout, files, one exit code. Errors are one line of what failed and why, and
//! one line of what to do.

mod args;
mod audience;
mod choice;
mod doctor;
mod failure;
mod notices;
mod outputs;
mod session;
mod signals;
mod top;
mod trace;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use args::Args;
use audience::Wanted;
use failure::Failure;
use top::TopArgs;

use crate::jcmd;

/// Runs the command with the arguments of this process.
#[must_use]
pub fn run() -> ExitCode {
    run_with(std::env::args_os())
}

fn run_with(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut arguments: Vec<_> = arguments.collect();
    // The first word can only be a number otherwise.
    if arguments.get(1).is_some_and(|word| word == "top") {
        arguments.remove(1);
        return with_arguments(&arguments, |args: TopArgs| {
            init_log(args.verbosity());
            top::watch(&args)
        });
    }
    if arguments.get(1).is_some_and(|word| word == "doctor") {
        arguments.remove(1);
        return with_arguments(&arguments, |args| {
            init_log(0);
            doctor::examine(&args)
        });
    }
    if arguments.get(1).is_some_and(|word| word == jcmd::VERB) {
        return ask_jvm(arguments.into_iter().skip(2));
    }
    with_arguments(&arguments, |args: Args| {
        init_log(args.verbose);
        session::profile(&args, &Wanted::Reports)
    })
}

/// jjleak has been started by itself, to ask a JVM for something.
fn ask_jvm(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
    ExitCode::from(if jcmd::run(&arguments) { failure::DONE } else { failure::OTHER })
}

/// Does what the arguments say, once they are understood.
fn with_arguments<A: Parser>(arguments: &[OsString], run: impl FnOnce(A) -> Result<(), Failure>) -> ExitCode {
    let outcome = match A::try_parse_from(arguments) {
        Ok(args) => run(args),
        // Help and version are no errors. A closed stdout leaves nobody to tell.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            Ok(())
        }
        Err(error) => Err(usage(&error)),
    };
    match outcome {
        Ok(()) => ExitCode::from(failure::DONE),
        Err(failure) => failure.report(),
    }
}

/// What is wrong with the arguments: clap says so up to the first empty line, and goes on about usage.
fn usage(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let what = lines.join(" ");
    Failure::usage(what.strip_prefix("error: ").unwrap_or(&what).to_owned())
}

fn init_log(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| notices::Log)
        .without_time()
        .with_target(false)
        .init();
}
