//! Runs all tests: unit tests, documentation tests, and those on the running kernel.

use std::{
    env, fs,
    hash::{BuildHasher, RandomState},
    io::{BufRead, BufReader, Read, Write, stdout},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result};

use crate::{
    build::{self, OBJECT_VARIABLE},
    command::{self, announce, host_cargo, shown},
    dist,
    failures::Failures,
    fuzz, go, jdks, preload, prerequisites,
    sudo::Root,
    tally::Tally,
    vm, workspace, world,
};

/// Environment variable that makes tests fail, instead of skipping them, if they cannot run on this kernel.
pub(crate) const REQUIRE_BPF: &str = "JJLEAK_REQUIRE_BPF";
/// Environment variable with the file to which each skipped test appends a line with its name and reason.
const SKIPPED: &str = "JJLEAK_SKIPPED";
/// Environment variable that enables the tests that take minutes.
pub(crate) const LONG: &str = "JJLEAK_LONG";
/// Environment variable with the random seed of property tests (proptest's `Config::rng_seed`).
const SEED: &str = "PROPTEST_RNG_SEED";
/// The same seed in each run, so that results are reproducible: a new failure has its cause in a change, or in a seed set on
/// purpose.
const USUAL_SEED: &str = "1";

/// Runs the tests on the kernel whose names contain `filter`, with their output.
pub(crate) fn on_kernel(filter: &str, variables: &[(&str, &str)], reason: &str) -> Result<()> {
    let object = build::bpf_object()?;
    let root = Root::obtain(reason)?;
    let mut cargo = host_cargo();
    cargo
        .current_dir(workspace::root())
        .args(["test", "--quiet", "--package", "jjleak", "--test", "real", "--", filter, "--nocapture"])
        .env(OBJECT_VARIABLE, object)
        .envs(variables.iter().copied());
    set_runner(&mut cargo, root)?;
    command::run(&mut cargo)
}

/// `cargo xtask test [--long] [-- ARGS]`.
pub(crate) fn test(long: bool, args: &[String]) -> Result<ExitCode> {
    prerequisites::for_tests(long)?;
    let world = world::install_for_tests()?;
    let object = build::bpf_object()?;
    preload::build(&workspace::target()?.join("debug"), |_| {})?;
    let skipped = SkippedFile::create()?;
    let mut cargo = host_cargo();
    cargo
        .current_dir(workspace::root())
        .args([
            "test",
            "--workspace",
            "--exclude",
            "jjleak-ebpf",
            "--exclude",
            "jjleak-fuzz",
            "--no-fail-fast",
        ])
        .env(OBJECT_VARIABLE, object)
        .env(SKIPPED, &skipped.0)
        .env(world::CACHE, world)
        .env(SEED, seed(env::var(SEED).ok(), long));
    if !args.is_empty() {
        cargo.arg("--").args(args);
    }
    if long {
        cargo.env(LONG, "1").env(jdks::HOMES, jdks::homes()?).env(go::COMMANDS, go::commands()?);
    }
    let root = Root::obtain("load jjleak's BPF programs");
    match &root {
        Ok(root) => set_runner(&mut cargo, *root)?,
        Err(error) => announce(&format!("{error:#}; until then, tests on the kernel cannot run")),
    }
    if root.is_ok() || env::var("CI").is_ok_and(|value| value == "true") {
        cargo.env(REQUIRE_BPF, "1");
    }

    let (mut tally, failures) = run_counting(&mut cargo)?;
    if long && args.is_empty() {
        let others = [
            ("vm-test", vm::test()),
            ("fuzz", fuzz::fuzz(None, fuzz::Effort::Runs(fuzz::RUNS))),
            ("dist --check", dist::dist(true)),
            ("vm-test --service", vm::service::test()),
        ];
        for (name, outcome) in others {
            match outcome {
                Ok(_) => tally.passed += 1,
                Err(error) => {
                    announce(&format!("{name}: {error:#}"));
                    tally.failed += 1;
                }
            }
        }
    }
    let skipped = skipped.lines()?;
    for line in &skipped {
        println!("skipped: {line}");
    }
    print!("{failures}");
    tally.skip(skipped.len());
    println!("{tally}");
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Seed of property tests: the requested one, the default, or, in long runs, a random one to find new cases.
fn seed(asked_for: Option<String>, long: bool) -> String {
    let another = || RandomState::new().hash_one(std::process::id()).to_string();
    let seed = asked_for.unwrap_or_else(|| if long { another() } else { USUAL_SEED.to_owned() });
    announce(&format!("property tests draw their cases by {SEED}={seed}"));
    seed
}

/// Makes cargo run what it builds as `root`.
pub(crate) fn set_runner(cargo: &mut Command, root: Root) -> Result<()> {
    if let Some(runner) = root.runner() {
        let version = command::stdout(host_cargo().arg("-vV"))?;
        cargo.env(runner_variable(&version).context("`cargo -vV` does not say what host it is for")?, runner);
    }
    Ok(())
}

/// Name of the variable for the runner of the host that `cargo -vV` prints.
fn runner_variable(cargo_version: &str) -> Option<String> {
    let host = cargo_version.lines().find_map(|line| line.strip_prefix("host: "))?;
    Some(format!("CARGO_TARGET_{}_RUNNER", host.replace(['-', '.'], "_").to_uppercase()))
}

/// Runs `cargo test` and passes its output through as it arrives.
fn run_counting(cargo: &mut Command) -> Result<(Tally, Failures)> {
    let mut child =
        cargo.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start `{}`", shown(cargo)))?;
    let (mut tally, mut failures) = (Tally::default(), Failures::default());
    if let Some(output) = child.stdout.take() {
        pass_on(output, &mut stdout(), &mut tally, &mut failures)?;
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{}`", shown(cargo)))?;
    tally.note_exit(status.success());
    Ok((tally, failures))
}

fn pass_on(
    output: impl Read,
    terminal: &mut impl Write,
    tally: &mut Tally,
    failures: &mut Failures,
) -> Result<()> {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    // The output of tests may not be UTF-8.
    while output.read_until(b'\n', &mut line).context("cannot read the tests' output")? > 0 {
        terminal.write_all(&line).context("cannot write to stdout")?;
        let text = String::from_utf8_lossy(&line);
        tally.add_line(&text);
        failures.add_line(&text);
        line.clear();
    }
    Ok(())
}

/// File that lists skipped tests; removed when dropped.
struct SkippedFile(PathBuf);

impl SkippedFile {
    /// In the target folder: in a world-writable one, Linux would not let tests running as root append to a file of this user
    /// (`fs.protected_regular`).
    fn create() -> Result<Self> {
        let folder = workspace::target()?;
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("skipped-tests-{}", std::process::id()));
        fs::write(&path, "").with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    fn lines(&self) -> Result<Vec<String>> {
        let Self(path) = self;
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect())
    }
}

impl Drop for SkippedFile {
    fn drop(&mut self) {
        let path: &Path = &self.0;
        if let Err(error) = fs::remove_file(path) {
            announce(&format!("cannot remove {}: {error}", path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runner_variable_is_cargos_name_for_the_host() {
        let version =
            "cargo 1.95.0 (f2d3ce0bd 2026-03-21)\nrelease: 1.95.0\nhost: x86_64-unknown-linux-gnu\n";
        assert_eq!(runner_variable(version).unwrap(), "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER");
    }

    #[test]
    fn property_tests_draw_the_same_each_time_unless_new_cases_are_searched_for() {
        assert_eq!(seed(None, false), seed(None, false));
        assert_ne!(seed(None, true), seed(None, true));
        assert_eq!(seed(Some("7".to_owned()), true), "7");
    }

    #[test]
    fn output_that_is_not_utf8_is_passed_on_and_counted() {
        let mut tally = Tally::default();
        let output = b"\xff\xfe\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        let mut terminal = Vec::new();
        pass_on(&output[..], &mut terminal, &mut tally, &mut Failures::default()).unwrap();
        assert_eq!(terminal, output);
        assert_eq!(tally.passed, 1);
    }
}
