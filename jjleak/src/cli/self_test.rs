//! `jjleak self-test`.

use std::io::{self, Write};

use clap::ValueEnum;

use super::Failure;
use super::failure::{OTHER, PREFLIGHT};
use crate::attach;
use crate::self_test::{SelfTest, Trial, text, try_profile};

/// Check what works on this host, in a few seconds, with a profile of a program that leaks
///
/// Put the output into bug reports.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 jjleak works here, 1 the profile is not exact, 2 usage, 3 missing privilege or kernel feature."
)]
pub(super) struct SelfTestArgs {
    /// Form of the report
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// Tests this host.
pub(super) fn test(args: &SelfTestArgs) -> Result<(), Failure> {
    let missing = attach::preflight().err();
    let (trial, failure) = match (missing, try_profile()) {
        (None, Ok(measured)) => (Trial::Measured(Box::new(measured)), None),
        (Some(missing), _) => failed(Failure::new(PREFLIGHT, missing.to_string(), missing.remedy())),
        (None, Err(error)) => failed(error.into()),
    };
    let test = SelfTest::new(trial);
    let report = match args.format {
        Form::Text => text(&test),
        Form::Json => serde_json::to_string_pretty(&test)
            .map(|json| json + "\n")
            .map_err(|error| Failure::new(OTHER, error.to_string(), "please report this"))?,
    };
    // If the reader has gone away, nobody needs the rest.
    let _ = io::stdout().write_all(report.as_bytes());
    match failure {
        Some(failure) => Err(failure),
        None if !test.works => Err(Failure::new(
            OTHER,
            "the profile of the trial is not exact",
            "report this with the output of jjleak self-test --format json",
        )),
        None => Ok(()),
    }
}

fn failed(failure: Failure) -> (Trial, Option<Failure>) {
    let (why, to_do) = (failure.to_string(), failure.remedy().to_owned());
    (Trial::Failed { why, to_do }, Some(failure))
}
