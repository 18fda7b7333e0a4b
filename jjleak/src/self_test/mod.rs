//! `jjleak self-test`: what works on this host, for bug reports and before it is needed.
//!
//! In: this host, and a program that leaks a known number of blocks. Out: a [`SelfTest`], as [`text`] and as JSON.

mod host;
mod program;
mod text;
mod trial;

use serde::Serialize;

use crate::attach::{Check, Host};

pub use host::HostFacts;
pub use program::{VERB, run as run_program};
pub use text::text;
pub use trial::{Expected, Measured, run as try_profile};

/// Version of the JSON document.
const SCHEMA: u32 = 1;

/// Result of a self-test of this host.
#[derive(Debug, Serialize)]
pub struct SelfTest {
    schema: u32,
    /// Version of jjleak.
    version: &'static str,
    /// True if the figures of the trial are exact, and nothing required is missing.
    pub works: bool,
    /// Description of the host.
    host: HostFacts,
    /// Kernel features and privileges.
    requirements: Vec<Requirement>,
    /// The profile of a program that leaks.
    trial: Trial,
}

/// A kernel feature or a privilege.
#[derive(Debug, Serialize)]
struct Requirement {
    name: &'static str,
    /// False if only some options need it.
    is_required: bool,
    is_there: bool,
    /// Reason why it is missing; empty if it is there.
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    to_do: String,
}

/// Outcome of the trial.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trial {
    /// The program was profiled.
    Measured(Box<Measured>),
    /// It could not be profiled.
    Failed {
        /// The failure and its cause.
        why: String,
        /// Remedy for the user.
        to_do: String,
    },
}

impl SelfTest {
    /// The requirements of this host with the outcome of a trial.
    #[must_use]
    pub fn new(trial: Trial) -> Self {
        let requirements: Vec<_> = Host::this().checks().into_iter().map(Requirement::of).collect();
        let has_all = requirements.iter().all(|it| it.is_there || !it.is_required);
        let is_exact = matches!(&trial, Trial::Measured(measured) if measured.problems().is_empty());
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            works: has_all && is_exact,
            host: HostFacts::read(),
            requirements,
            trial,
        }
    }
}

impl Requirement {
    fn of(check: Check) -> Self {
        let missing = check.outcome.err();
        Self {
            name: check.name,
            is_required: check.is_required,
            is_there: missing.is_none(),
            why: missing.map(|it| it.to_string()).unwrap_or_default(),
            to_do: missing.map(crate::attach::Missing::remedy).unwrap_or_default(),
        }
    }
}
