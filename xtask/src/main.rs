//! jjleak's developer and CI tasks, run as `cargo xtask <verb>`.
//!
//! | module | job |
//! |---|---|
//! | [`toolchain`] | finds or installs a compiler and a linker for BPF objects |
//! | [`build`] | builds the BPF object, then the jjleak binary around it |
//! | [`run`], [`demo`], [`ledger`] | run jjleak, by default on a bundled program that leaks |
//! | [`mod@test`], [`tally`] | run every test and count the results |
//! | [`mod@verifier`] | instructions that the kernel's verifier processes for each BPF program |
//! | [`caps`] | capabilities that jjleak needs |
//! | [`hostile`] | the cost of hostile files and processes |
//! | [`mod@fuzz`] | random input for all parsers |
//! | [`vm`] | jjleak on another kernel, and its service under systemd |
//! | [`mod@soak`] | resource usage of a long-running daemon |
//! | [`mod@jdks`], [`go`] | Java stacks on every JDK; versions of Go |
//! | [`pypi`] | packages of Python's index that contain them |
//! | [`check`], [`imports`], [`licences`] | formatting, direction of imports, lints, docs, licences |
//! | [`manual`] | man pages and completions |
//! | [`mod@dist`] | a release: portable binary, packages, image, chart; validation of all files in deploy/ |
//! | [`mod@world`] | third-party programs and their oracles |
//! | [`mod@verdicts`] | precision and recall of verdicts on labelled histories and programs |
//! | [`mod@bench`] | benchmarks on the running kernel |
//! | [`apt`], [`prerequisites`], [`sudo`] | installation of prerequisites, and the privileges for it |
//! | [`command`], [`workspace`] | running programs; paths of the workspace |

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a developer tool talks on the terminal")]

mod apt;
mod bench;
mod build;
mod caps;
mod check;
mod command;
mod demo;
mod dist;
mod failures;
mod fuzz;
mod go;
mod hostile;
mod imports;
mod jdks;
mod ledger;
mod licences;
mod manual;
mod object;
mod preload;
mod prerequisites;
mod pypi;
mod run;
mod soak;
mod sudo;
mod tally;
mod test;
mod toolchain;
mod verdicts;
mod verifier;
mod vm;
mod workspace;
mod world;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// jjleak's developer and CI tasks.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build the BPF object and jjleak with it; install a BPF toolchain if there is none
    Build {
        /// Build jjleak without optimization (the BPF object is always optimized)
        #[arg(long)]
        debug: bool,
    },
    /// Build, then run jjleak with ARGS; without ARGS, profile a bundled program that leaks
    Run {
        /// Arguments for jjleak, after `--`
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run every test, those on the running kernel included
    Test {
        /// Also run the tests that take minutes
        #[arg(long)]
        long: bool,
        /// Filter and options for the test binaries, after `--`
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Write down how much the kernel's verifier has to follow in each BPF program
    Verifier,
    /// Take each capability that jjleak needs away in turn, and see what it says
    Caps,
    /// Profile hostile processes, fail if one costs more memory or time than it may, and write the table: half an hour
    Hostile {
        /// An older jjleak whose outcome is written down, too
        #[arg(long, value_name = "BINARY")]
        old: Option<PathBuf>,
    },
    /// Test jjleak on Debian's kernel, in a virtual machine
    VmTest {
        /// Boot Debian with systemd instead, and test the service that its package installs
        #[arg(long)]
        service: bool,
    },
    /// Try the portable binary on all kernels of Debian's archive, in virtual machines, and write the table: half an hour
    Kernels,
    /// Have a daemon profile processes that come and go, and fail if it takes more in the end than at first
    Soak {
        /// For how long
        #[arg(long, default_value_t = 10)]
        minutes: u32,
    },
    /// Write down how many Java stacks are whole, on every JDK, in every mode and with every collector
    Jdks,
    /// Count what programs of the world allocate, compare it with oracles, and write the table: a quarter of an hour
    World {
        /// Only this program, and write no table; can be given several times
        #[arg(long, value_name = "NAME")]
        only: Vec<String>,
        /// Print the programs' names
        #[arg(long)]
        list: bool,
    },
    /// Build a release: portable binary, packages, image, chart, checksums
    Dist {
        /// Also install, upgrade, run and remove everything in copies of this system and in other roots, and check deploy/
        #[arg(long)]
        check: bool,
    },
    /// Try random input on what parses input
    Fuzz {
        /// Fuzz target; all by default
        target: Option<String>,
        /// Seconds for each target
        #[arg(long, default_value_t = fuzz::SECONDS)]
        seconds: u32,
        /// Runs for each target, instead of seconds
        #[arg(long, conflicts_with = "seconds")]
        runs: Option<u64>,
    },
    /// Write man pages and shell completions into deploy/
    Manual,
    /// Check formatting, lints, documentation and licences
    Check,
    /// Judge call sites of every kind, synthetic and of programs, and print precision and recall
    Verdicts {
        /// Number of runs of each kind
        #[arg(default_value_t = 40)]
        seeds: u32,
    },
    /// Measure what jjleak costs, beside bare probes and other tools, and write docs/benchmarks anew: some ten minutes
    Bench {
        /// Little of everything, to see whether it works; nothing is kept
        #[arg(long)]
        quick: bool,
        /// Only this part; can be given several times, and an unknown one lists all
        #[arg(long, value_name = "PART")]
        only: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Build { debug } => build::build(debug),
        Verb::Run { args } if args.is_empty() => demo::demo(),
        Verb::Run { args } => run::run(&args),
        Verb::Test { long, args } => test::test(long, &args),
        Verb::Verifier => verifier::verifier(),
        Verb::Caps => caps::caps(),
        Verb::Hostile { old } => hostile::hostile(old.as_deref()),
        Verb::VmTest { service: false } => vm::test(),
        Verb::VmTest { service: true } => vm::service::test(),
        Verb::Kernels => vm::kernels::test(),
        Verb::Soak { minutes } => soak::soak(minutes),
        Verb::Jdks => jdks::jdks(),
        Verb::World { only, list } => world::world(&only, list),
        Verb::Dist { check } => dist::dist(check),
        Verb::Fuzz { target, runs: Some(runs), .. } => {
            fuzz::fuzz(target.as_deref(), fuzz::Effort::Runs(runs))
        }
        Verb::Fuzz { target, seconds, .. } => fuzz::fuzz(target.as_deref(), fuzz::Effort::Seconds(seconds)),
        Verb::Manual => manual::write(),
        Verb::Check => check::check(),
        Verb::Verdicts { seeds } => verdicts::verdicts(seeds),
        Verb::Bench { quick, only } => bench::bench(quick, &only),
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: error: {error:#}");
        ExitCode::FAILURE
    })
}
