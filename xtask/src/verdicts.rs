//! Accuracy of verdicts: on synthetic labelled histories, and on programs with known behaviour.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{
    command::{host_cargo, run},
    test::{self, REQUIRE_BPF},
    workspace,
};

/// The tests that measure it and print the tables: with ages, and without.
const TESTS: [&str; 2] = [
    "analyze::labelled::verdicts_on_labelled_histories_are_precise_and_complete",
    "analyze::labelled::leaks_on_labelled_histories_are_leaks_without_ages_too",
];

/// The test on programs.
const PROGRAMS: &str = "verdicts::verdicts_on_labelled_programs_are_precise_and_complete";

/// Environment variable with the number of histories of each kind.
const SEEDS_VARIABLE: &str = "JJLEAK_VERDICT_SEEDS";

/// `cargo xtask verdicts [SEEDS]`.
pub(crate) fn verdicts(seeds: u32) -> Result<ExitCode> {
    let mut cargo = host_cargo();
    cargo.current_dir(workspace::root()).env(SEEDS_VARIABLE, seeds.to_string());
    cargo.args(["test", "--quiet", "--package", "jjleak", "--lib", "--"]);
    cargo.args(["--exact", "--nocapture", "--test-threads=1"]).args(TESTS);
    run(&mut cargo).context("a precision or recall is below what is required")?;
    test::on_kernel(PROGRAMS, &[(REQUIRE_BPF, "1")], "watch programs that leak")
        .context("a precision or recall on programs is below what is required")?;
    Ok(ExitCode::SUCCESS)
}
