//! Table of the programs: their packages, their commands, and their oracles.
//!
//! Data only: `cargo xtask world` installs the packages, and the tests run the programs.

mod built;
mod debian;
mod languages;
mod registries;
mod servers;

/// A third-party program, or one built by a third-party toolchain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) packages: &'static [Package],
    /// Shell commands, run in the program's folder before all runs.
    pub(crate) prepare: &'static [&'static str],
    /// In every word, `{folder}` stands for the folder, and `{wheels}`, `{npm}` and `{crates}` for the folders of packages from
    /// registries.
    pub(crate) command: &'static [&'static str],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) oracle: Oracle,
    pub(crate) exceptions: &'static [Exception],
    /// True if `cargo xtask test` runs it.
    pub(crate) is_in_tests: bool,
}

/// A required package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Package {
    /// A file, and the Debian package that contains it.
    Debian { file: &'static str, package: &'static str },
    /// The same for a package that comes with a service, which must stay off.
    Service { file: &'static str, package: &'static str, service: &'static str },
    /// `NAME==VERSION` of `PyPI`.
    Wheel(&'static str),
    /// `NAME@VERSION` of npm.
    Npm(&'static str),
    /// `NAME@VERSION` of crates.io, built by cargo with its default linker.
    Crate(&'static str),
}

/// Independent source of a program's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Oracle {
    /// The preloaded counter, in the same run as jjleak, which searches the C library only: it counts the calls that the counter
    /// passes on, not the counter's own functions.
    Counter,
    /// The same for a program with another allocator that is loaded as a library, so that jjleak searches all files.
    CounterOfAll,
    /// The same, except that the counter does not see calls of the allocators in these modules.
    CounterBeside(&'static [&'static str]),
    /// Statistics that `AddressSanitizer` prints at the end.
    AddressSanitizer,
    /// None, for this reason: only losses, stacks and output are judged.
    Nobody(&'static str),
}

/// A known deviation from a target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exception {
    pub(crate) of: Target,
    pub(crate) why: &'static str,
}

/// Requirement on every program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// Allocations and bytes match the oracle.
    Allocated,
    /// Live blocks and bytes at the end match the oracle.
    Live,
    /// Figures without the counter match those with it.
    Unobserved,
    /// Stacks of the second run are complete.
    Complete,
    /// Nothing is lost.
    Losses,
    /// Output and exit code are the same as without jjleak.
    Output,
}

impl Program {
    /// A program whose allocations are all visible to the counter.
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
