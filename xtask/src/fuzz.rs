//! Fuzzing: random input for all parsers of data that a profiled process, or the author of a file, controls.
//!
//! libFuzzer needs coverage instrumentation (`tests/fuzz/coverage`), which the stable compiler supports. Only sanitizers need a
//! nightly one, and the fuzzed code contains hardly any `unsafe`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail, ensure};
use syn::{Expr, ExprLit, Item, Lit};

use crate::{
    command::{announce, host_cargo, run},
    workspace,
};

/// The file with the table of targets.
const TARGETS: &str = "tests/fuzz/src/main.rs";

/// Seconds per target in `cargo xtask fuzz`.
pub(crate) const SECONDS: u32 = 30;
/// Runs per target in `cargo xtask test --long`.
pub(crate) const RUNS: u64 = 10_000_000;

/// For how long a target is tried.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Effort {
    Seconds(u32),
    Runs(u64),
}

impl Effort {
    /// libFuzzer's option.
    fn option(self) -> String {
        match self {
            Self::Runs(runs) => format!("-runs={runs}"),
            Self::Seconds(seconds) => format!("-max_total_time={seconds}"),
        }
    }
}

/// Maximum size of an input: larger ones take longer and rarely find anything new.
const MAX_INPUT_BYTES: u32 = 64 << 10;

/// Seconds after which an input counts as a finding.
const MAX_SECONDS: u32 = 10;

/// libFuzzer's exit code after SIGINT or SIGTERM.
const INTERRUPTED: i32 = 72;

/// Small files of the host as first inputs.
const LIBRARIES: [&str; 3] = ["libdl.so.2", "libthread_db.so.1", "libnss_compat.so.2"];
const LIBRARY_FOLDER: &str = "/lib/x86_64-linux-gnu";

/// `cargo xtask fuzz [TARGET] [--seconds N | --runs N]`.
pub(crate) fn fuzz(target: Option<&str>, effort: Effort) -> Result<ExitCode> {
    let targets = targets()?;
    if let Some(unknown) = target.filter(|target| targets.iter().all(|known| known != target)) {
        bail!("there is no fuzz target `{unknown}`, but {}", targets.join(", "));
    }
    let folder = workspace::target()?.join("fuzz");
    let program = build()?;
    let child = program.with_file_name("jjleak");
    let mut found = Vec::new();
    for target in targets.iter().filter(|name| target.is_none_or(|target| target == **name)) {
        let corpus = folder.join("corpus").join(target);
        seed(target, &corpus).with_context(|| format!("cannot prepare {}", corpus.display()))?;
        announce(&format!("fuzzing {target} with {}", effort.option()));
        let mut command = Command::new(&program);
        command.current_dir(&folder).env("JJLEAK_FUZZ_TARGET", target).env("JJLEAK_FUZZ_CHILD", &child);
        command.args([
            effort.option(),
            format!("-max_len={MAX_INPUT_BYTES}"),
            format!("-timeout={MAX_SECONDS}"),
            format!("-artifact_prefix={}-", folder.join(target).display()),
            "-verbosity=0".to_owned(),
            "-print_final_stats=1".to_owned(),
        ]);
        let status = command.arg(&corpus).status().context("cannot start the fuzzer")?;
        match status.code() {
            Some(0) => {}
            Some(INTERRUPTED) | None => bail!("{target}: the fuzzer was stopped before its end ({status})"),
            Some(_) => {
                announce(&format!("{target}: {status}"));
                found.push(target.as_str());
            }
        }
    }
    if found.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!("inputs that do harm were found for {}: they are in {}", found.join(", "), folder.display())
}

/// Names of the targets.
fn targets() -> Result<Vec<String>> {
    let source = fs::read_to_string(workspace::root().join(TARGETS)).context(TARGETS)?;
    let names = names(&source)?;
    ensure!(!names.is_empty(), "{TARGETS} has no table of targets");
    Ok(names)
}

/// First elements of the tuples in the constant array `TARGETS`.
fn names(source: &str) -> Result<Vec<String>> {
    let tables = syn::parse_file(source)?.items.into_iter().filter_map(|item| match item {
        Item::Const(table) if table.ident == "TARGETS" => Some(*table.expr),
        _ => None,
    });
    let rows =
        tables.filter_map(|table| if let Expr::Array(table) = table { Some(table.elems) } else { None });
    let name = |row: Expr| match row {
        Expr::Tuple(row) => match row.elems.into_iter().next()? {
            Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) => Some(name.value()),
            _ => None,
        },
        _ => None,
    };
    Ok(rows.flatten().filter_map(name).collect())
}

const BUILD: [&str; 4] = ["build", "--quiet", "--profile", "fuzzing"];

/// Builds the program with all targets, and jjleak itself, which becomes the process that reads symbols.
fn build() -> Result<PathBuf> {
    let mut own = host_cargo();
    own.current_dir(workspace::root()).args(BUILD).args(["--package", "jjleak", "--bin", "jjleak"]);
    run(&mut own).context("cannot build jjleak")?;
    let mut cargo = host_cargo();
    // Only jjleak itself is compiled with other flags; all dependencies are reused.
    cargo.current_dir(workspace::root());
    cargo.env("RUSTC_WORKSPACE_WRAPPER", workspace::root().join("tests/fuzz/coverage"));
    run(cargo.args(BUILD).args(["--package", "jjleak-fuzz"])).context("cannot build the fuzz targets")?;
    Ok(workspace::target()?.join("fuzzing/jjleak-fuzz"))
}

/// Small libraries with debug information, and the compiler's flags for them.
const SYMBOLS: [(&str, &[&str]); 3] =
    [("dwarf-5", &["-g", "-O2"]), ("dwarf-4", &["-gdwarf-4", "-O2"]), ("compressed", &["-g", "-gz=zlib"])];

/// Creates the corpus of real inputs from which others are derived.
fn seed(target: &str, corpus: &Path) -> Result<()> {
    fs::create_dir_all(corpus)?;
    let seeds = workspace::root().join("tests/fuzz/seeds").join(target);
    for seed in fs::read_dir(seeds).into_iter().flatten().flatten() {
        fs::copy(seed.path(), corpus.join(seed.file_name()))?;
    }
    match target {
        "elf" => {
            for library in LIBRARIES {
                // The host may have only some of them.
                let _ = fs::copy(Path::new(LIBRARY_FOLDER).join(library), corpus.join(library));
            }
        }
        "symbols" => {
            let source = corpus.with_extension("c");
            fs::write(&source, "int first(int a) { return a + 1; }\nint second(int a) { return a * 3; }\n")?;
            for (name, flags) in SYMBOLS {
                let mut compiler = Command::new("cc");
                compiler.args(["-shared", "-fPIC", "-Wl,-z,noseparate-code"]).args(flags);
                run(compiler.arg("-o").arg(corpus.join(name)).arg(&source))?;
            }
        }
        "maps" => {
            fs::write(corpus.join("own"), fs::read("/proc/self/maps")?)?;
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_rows_of_the_table() {
        let table =
            "const OTHERS: [u8; 1] = [1]; const TARGETS: [(&str, fn()); 2] = [(\"a\", x), (\"b\", y::z)];";
        assert_eq!(names(table).unwrap(), ["a", "b"]);
        assert!(targets().unwrap().contains(&"elf".to_owned()));
    }
}
