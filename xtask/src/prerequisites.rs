//! Programs that fixtures and tests need besides the toolchains.

use anyhow::Result;

use crate::{apt, command::on_path};

/// A program, and the Debian package that holds it.
struct Prerequisite {
    program: &'static str,
    package: &'static str,
    /// The service that comes with the package; only the program is wanted.
    service: Option<&'static str>,
}

const fn program(program: &'static str, package: &'static str) -> Prerequisite {
    Prerequisite { program, package, service: None }
}

/// Compilers for the leaking fixtures, the oracle of stacks, and real programs that are profiled.
const FOR_TESTS: &[Prerequisite] = &[
    program("gcc", "gcc"),
    program("g++", "g++"),
    program("gdb", "gdb"),
    program("git", "git"),
    program("perl", "perl"),
    program("python3", "python3"),
    program("sqlite3", "sqlite3"),
    Prerequisite { program: "redis-server", package: "redis-server", service: Some("redis-server.service") },
    program("redis-benchmark", "redis-tools"),
];

/// Installs what the tests need and is missing.
pub(crate) fn for_tests() -> Result<()> {
    let missing: Vec<_> = FOR_TESTS.iter().filter(|it| on_path(it.program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<_> = missing.iter().map(|it| it.package).collect();
    apt::install(&packages, "compilers and programs that the tests profile")?;
    missing.iter().filter_map(|it| it.service).try_for_each(apt::keep_off)
}
