//! Profiles processes, and files that they map, made to harm jjleak, and writes what came of it.

use std::{env, fs, path::Path, process::ExitCode};

use anyhow::{Context, Result};

use crate::{prerequisites, test, workspace};

/// The page with the table.
const PAGE: &str = "docs/benchmarks/hostile.md";
/// Environment variable with the file for rows of the table.
const TABLE: &str = "JJLEAK_HOSTILE_TABLE";
/// Environment variable with another jjleak.
const OTHER: &str = "JJLEAK_HOSTILE_BINARY";

/// Environment variable with a part of the names of entries: only those run, and the page stays as it is.
const ONLY: &str = "JJLEAK_HOSTILE_ONLY";

/// What stands above the table.
const INTRODUCTION: &str = "# Hostile files and processes

`cargo xtask hostile` profiles each of these beside an honest process, whose count must be exact to the byte, with `-p` and under a daemon
whose control group may use 512 MiB. Memory is the highest resident memory, with `-p` that of jjleak and of the process that reads its
symbols together, which may be 256 MiB. Time is that from start to end of jjleak in a debug build, and of a profile of five seconds under
the daemon; four entries run at a time, on two cores that do other work, too. Each entry is in `tests/real/hosts/hostile`.

*Before* is main at 9e591c6 in a release build, which was interrupted after 3 s, and could use 4 GiB of address space; `cargo xtask
hostile --old BINARY` measures it.

| entry | before | with `-p` | under the daemon | what jjleak says |
|---|---|---|---|---|
";

/// `cargo xtask hostile [--old BINARY]`.
pub(crate) fn hostile(old: Option<&Path>) -> Result<ExitCode> {
    prerequisites::for_tests(false)?;
    let rows = workspace::target()?.join("hostile.rows");
    let shown = rows.to_str().context("the target folder's name is not UTF-8")?;
    let mut variables = vec![(test::REQUIRE_BPF, "1"), (TABLE, shown)];
    if let Some(old) = old {
        variables.push((OTHER, old.to_str().context("the binary's path is not UTF-8")?));
    }
    test::on_kernel("hostile::", &variables, "profile hostile processes")
        .context("a hostile file or process costs jjleak more than it may")?;
    if env::var_os(ONLY).is_some() {
        return Ok(ExitCode::SUCCESS);
    }
    let page = workspace::root().join(PAGE);
    let rows = fs::read_to_string(&rows).with_context(|| format!("cannot read {}", rows.display()))?;
    let rows =
        if old.is_some() { rows } else { with_kept(&rows, &fs::read_to_string(&page).unwrap_or_default()) };
    fs::write(&page, format!("{INTRODUCTION}{rows}")).with_context(|| format!("cannot write {PAGE}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Rows with the outcome of the old binary as it is on the page.
fn with_kept(rows: &str, page: &str) -> String {
    let kept = |entry: &str| {
        let row = page.lines().find(|line| cell(line, 1) == Some(entry))?;
        cell(row, 2)
    };
    let with = |row: &str| match cell(row, 1).and_then(kept) {
        Some(kept) => row.replacen("|  |", &format!("| {kept} |"), 1) + "\n",
        None => format!("{row}\n"),
    };
    rows.lines().map(with).collect()
}

/// The trimmed content of a column, counted from 1.
fn cell(row: &str, nth: usize) -> Option<&str> {
    row.split(" | ").nth(nth - 1).map(|cell| cell.trim_start_matches("| ").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_outcome_stays_if_it_is_not_measured_again() {
        let page = "| a | hangs | 1 s | 2 s | says |\n";
        assert_eq!(
            with_kept("| a |  | 3 s | 4 s |  |\n| b |  | 5 s | 6 s |  |\n", page),
            "| a | hangs | 3 s | 4 s |  |\n| b |  | 5 s | 6 s |  |\n"
        );
    }
}
