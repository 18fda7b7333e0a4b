//! Programs of the world: what each needs, how it is run, and what its figures are compared with.
//!
//! Data alone: `cargo xtask world` installs what it names, and the tests run it.

mod built;
mod debian;
mod languages;
mod registries;
mod servers;

/// A program that nobody here wrote, or that a toolchain of others has built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) packages: &'static [Package],
    /// Lines for the shell, run in the program's folder before all runs.
    pub(crate) prepare: &'static [&'static str],
    /// In every word `{folder}` is the folder, and `{wheels}`, `{npm}` and `{crates}` are where packages of registries lie.
    pub(crate) command: &'static [&'static str],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) oracle: Oracle,
    pub(crate) exceptions: &'static [Exception],
    /// Whether `cargo xtask test` runs it.
    pub(crate) is_in_tests: bool,
}

/// What has to be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Package {
    /// A file, and the Debian package that holds it.
    Debian { file: &'static str, package: &'static str },
    /// The same, of a package that comes with a service, which stays off.
    Service { file: &'static str, package: &'static str, service: &'static str },
    /// `NAME==VERSION` of `PyPI`.
    Wheel(&'static str),
    /// `NAME@VERSION` of npm.
    Npm(&'static str),
    /// `NAME@VERSION` of crates.io: built by cargo with its default linker.
    Crate(&'static str),
}

/// Who else knows what a program allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Oracle {
    /// The preloaded counter, in the same run as jjleak.
    Counter,
    /// The same, which does not see calls of the allocators in these modules.
    CounterBeside(&'static [&'static str]),
    /// What `AddressSanitizer` prints of itself at the end.
    AddressSanitizer,
    /// Nobody, for this reason: only losses, stacks and output are judged.
    Nobody(&'static str),
}

/// A known deviation from what should be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exception {
    pub(crate) of: Target,
    pub(crate) why: &'static str,
}

/// What should be so of every program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// Allocations and bytes are the oracle's.
    Allocated,
    /// What lives at the end is the oracle's.
    Live,
    /// Without the counter as much is counted as with it.
    Unobserved,
    /// Stacks of the second run are complete.
    Complete,
    /// Nothing is lost.
    Losses,
    /// Output and exit code are as without jjleak.
    Output,
}

impl Program {
    /// A program that the counter sees all of.
    const fn new(name: &'static str, packages: &'static [Package], command: &'static [&'static str]) -> Self {
        Self {
            name,
            packages,
            prepare: &[],
            command,
            environment: &[],
            oracle: Oracle::Counter,
            exceptions: &[],
            is_in_tests: false,
        }
    }

    const fn prepared(self, prepare: &'static [&'static str]) -> Self {
        Self { prepare, ..self }
    }

    const fn with(self, environment: &'static [(&'static str, &'static str)]) -> Self {
        Self { environment, ..self }
    }

    const fn compared_with(self, oracle: Oracle) -> Self {
        Self { oracle, ..self }
    }

    const fn but(self, exceptions: &'static [Exception]) -> Self {
        Self { exceptions, ..self }
    }

    const fn in_tests(self) -> Self {
        Self { is_in_tests: true, ..self }
    }
}

const fn debian(file: &'static str, package: &'static str) -> Package {
    Package::Debian { file, package }
}

/// All programs.
pub(crate) fn programs() -> impl Iterator<Item = &'static Program> {
    let parts =
        [debian::PROGRAMS, languages::PROGRAMS, servers::PROGRAMS, registries::PROGRAMS, built::PROGRAMS];
    parts.into_iter().flatten()
}
