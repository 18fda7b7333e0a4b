//! Tries the portable binary on each kernel that Debian's archive has, and on restricted ones, and writes the table.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{SMALL, boot, check, prepare, release, root};
use crate::{
    command::{announce, run, stdout},
    dist, preload, workspace,
};

/// Debian's archive, with the releases that have kernels.
const ARCHIVE: &str = "http://deb.debian.org/debian";
const SUITES: [&str; 5] = ["bullseye", "bookworm", "trixie", "trixie-backports", "sid"];
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Kernels for virtual machines.
const NAMES: &str = "^linux-image-[0-9].*-cloud-amd64$";

/// Prefix of the self-test on the machine's console.
const SELF_TEST: &str = "jjleak-vm-self-test:";

/// Release whose kernel is tried with restrictions.
const RESTRICTED: &str = "trixie";
/// Words on the kernel's command line, and what they do.
const RESTRICTIONS: [(&str, &str); 5] = [
    ("jjleak.unprivileged_bpf_disabled=0", "unprivileged BPF permitted"),
    ("jjleak.unprivileged_bpf_disabled=1", "`kernel.unprivileged_bpf_disabled=1`"),
    ("lockdown=integrity", "`lockdown=integrity`"),
    ("lockdown=confidentiality", "`lockdown=confidentiality`"),
    ("jjleak.hide_btf", "no `/sys/kernel/btf`; `--kernel-btf FILE`"),
];

/// A row of the table.
struct Row {
    kernel: String,
    what: String,
    outcome: String,
}

/// `cargo xtask kernels`.
pub(crate) fn test() -> Result<ExitCode> {
    let folder = prepare()?;
    let archive = folder.join("initramfs");
    let jjleak = dist::portable()?;
    let sampler = jjleak.with_file_name(preload::LIBRARY);
    fs::write(&archive, root(&jjleak, &sampler, &folder)?).context("cannot write the machine's files")?;
    let mut rows = Vec::new();
    for suite in SUITES {
        for kernel in kernels(suite, &folder)? {
            rows.push(try_kernel(&kernel, &archive, "", suite)?);
            if suite == RESTRICTED {
                for (words, what) in RESTRICTIONS {
                    rows.push(try_kernel(&kernel, &archive, words, what)?);
                }
            }
        }
    }
    let table = workspace::root().join("docs/benchmarks/kernels.md");
    fs::write(&table, written(&rows)).with_context(|| format!("cannot write {}", table.display()))?;
    println!("kernels: {} machines; {}", rows.len(), table.display());
    Ok(ExitCode::SUCCESS)
}

/// The newest kernel of each version that a release of Debian has.
fn kernels(suite: &str, folder: &Path) -> Result<Vec<PathBuf>> {
    let lists = folder.join(format!("apt-{suite}"));
    fs::create_dir_all(lists.join("lists/partial"))?;
    fs::create_dir_all(lists.join("cache/archives/partial"))?;
    let sources = lists.join("sources.list");
    fs::write(&sources, format!("deb [signed-by={KEYS}] {ARCHIVE} {suite} main\n"))?;
    let apt = |program: &str| {
        let mut command = Command::new(program);
        command.current_dir(folder);
        for (key, value) in [
            ("Dir::Etc::sourcelist", sources.display().to_string()),
            ("Dir::Etc::sourceparts", "-".to_owned()),
            ("Dir::State::Lists", lists.join("lists").display().to_string()),
            ("Dir::Cache", lists.join("cache").display().to_string()),
        ] {
            command.args(["-o", &format!("{key}={value}")]);
        }
        command
    };
    run(apt("apt-get").args(["--quiet", "--quiet", "update"])).with_context(|| format!("no {suite}"))?;
    let found = stdout(apt("apt-cache").args(["search", "--names-only", NAMES]))?;
    let mut names: Vec<&str> = found.lines().filter_map(|line| line.split(' ').next()).collect();
    names.sort_by_key(|name| numbers(name));
    // The last of each version is its newest.
    let mut newest: Vec<&str> = Vec::new();
    for name in names {
        if newest.last().is_some_and(|last| numbers(last)[..2] == numbers(name)[..2]) {
            newest.pop();
        }
        newest.push(name);
    }
    let mut kernels = Vec::new();
    for name in newest {
        // A package may be listed whose parts the archive does not have yet.
        match unpack(name, folder, || apt("apt-get")) {
            Ok(kernel) => kernels.push(kernel),
            Err(error) => announce(&format!("{error:#}: left out")),
        }
    }
    Ok(kernels)
}

/// The numbers in a package's name, for comparison.
fn numbers(name: &str) -> Vec<u32> {
    let digits = name.split(|byte: char| !byte.is_ascii_digit()).filter(|digits| !digits.is_empty());
    digits.filter_map(|digits| digits.parse().ok()).chain([0, 0]).collect()
}

/// The kernel's image, downloaded once. Since 6.19, it is in a package of its own, and since 7.2 beside its modules.
fn unpack(name: &str, folder: &Path, apt_get: impl Fn() -> Command) -> Result<PathBuf> {
    let release = name.trim_start_matches("linux-image-");
    for package in [name.to_owned(), format!("linux-binary-{release}")] {
        let unpacked = folder.join(&package);
        let kernel = || {
            let places = [format!("boot/vmlinuz-{release}"), format!("usr/lib/modules/{release}/vmlinuz")];
            places.map(|place| unpacked.join(place)).into_iter().find(|kernel| kernel.is_file())
        };
        if let Some(kernel) = kernel() {
            return Ok(kernel);
        }
        announce(&format!("fetching {package}"));
        if run(apt_get().args(["--quiet", "--quiet", "download", &package])).is_err() {
            continue;
        }
        let is_it = |path: &PathBuf| {
            let file = path.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
            path.is_file() && file.starts_with(&format!("{package}_"))
        };
        let archive = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).find(is_it);
        let archive = archive.context("apt-get has left no package")?;
        run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&unpacked))?;
        fs::remove_file(archive)?;
        if let Some(kernel) = kernel() {
            return Ok(kernel);
        }
    }
    bail!("no package of {name} has a kernel")
}

fn try_kernel(kernel: &Path, archive: &Path, words: &str, what: &str) -> Result<Row> {
    announce(&format!("booting {} {words}", kernel.display()));
    let console = boot(kernel, archive, &SMALL, words)?;
    let row =
        Row { kernel: release(&console).to_owned(), what: what.to_owned(), outcome: outcome(&console)? };
    println!("{}: {}: {}", row.kernel, row.what, row.outcome);
    Ok(row)
}

/// Result of the self-test and the runs.
fn outcome(console: &str) -> Result<String> {
    let report = console.lines().find_map(|line| line.split_once(SELF_TEST)).context("no self-test")?.1;
    let report: Value = serde_json::from_str(report.trim()).context("the self-test is no JSON")?;
    let missing: Vec<_> = report["requirements"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|it| it["is_there"] == false)
        .filter_map(|it| Some((it["is_required"].as_bool()?, it["why"].as_str()?, it["to_do"].as_str()?)))
        .collect();
    if let Some((_, why, to_do)) = missing.iter().find(|(is_required, ..)| *is_required) {
        return Ok(format!("refused: {why}; to do: {to_do}"));
    }
    let failed = &report["trial"]["failed"];
    if let Some(why) = failed["why"].as_str() {
        return Ok(format!("refused: {why}; to do: {}", failed["to_do"].as_str().unwrap_or_default()));
    }
    if report["works"] != true {
        return Ok(format!("NOT exact: {}", report["trial"]["measured"]));
    }
    let runs = match check(console) {
        Ok(()) => "self-test, 5 runs, `growth` and `--sampled` exact; `heap` loads".to_owned(),
        Err(error) => format!("self-test exact; {error:#}"),
    };
    let optional: Vec<_> = missing.iter().map(|(_, why, _)| format!("without: {why}")).collect();
    Ok([vec![runs], optional].concat().join("; "))
}

fn written(rows: &[Row]) -> String {
    let mut out = String::from(
        "# jjleak on kernels\n\n`cargo xtask kernels` boots Debian's kernels in a virtual machine with the portable binary, and runs \
         `jjleak self-test`\nand seven profiles of a program that leaks (plain, `--follow`, `--mmap`, `--combined-only`, `--sample-bytes` with \
         `--threads`, `--sampled`, and\n`jjleak growth`). It has each kernel load the program of `jjleak heap`, too. [What this means](../kernels.md).\n\n\
         | kernel | from, or restricted by | outcome |\n|---|---|---|\n",
    );
    for Row { kernel, what, outcome } in rows {
        let _ = writeln!(out, "| {kernel} | {what} | {} |", outcome.replace('|', "\\|"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(
            numbers("linux-image-6.19.10+deb13-cloud-amd64")
                > numbers("linux-image-6.19.9+deb13-cloud-amd64")
        );
        assert_eq!(numbers("linux-image-5.10.0-32-cloud-amd64")[..2], [5, 10]);
    }

    #[test]
    fn a_missing_requirement_is_the_outcome() {
        let line = |json: &str| format!("[1.0] {SELF_TEST} {json}\n");
        let refused = r#"{"works":false,"requirements":[{"is_there":false,"is_required":true,"why":"no x","to_do":"boot y"}]}"#;
        assert_eq!(outcome(&line(refused)).unwrap(), "refused: no x; to do: boot y");
        let failed =
            r#"{"works":false,"requirements":[],"trial":{"failed":{"why":"locked","to_do":"unlock"}}}"#;
        assert_eq!(outcome(&line(failed)).unwrap(), "refused: locked; to do: unlock");
        let wrong = r#"{"works":false,"requirements":[],"trial":{"measured":{"stacks":0}}}"#;
        assert!(outcome(&line(wrong)).unwrap().starts_with("NOT exact"));
        assert!(outcome("nothing").is_err());
    }
}
