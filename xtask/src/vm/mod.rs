//! Tests jjleak on another kernel: Debian's, in a virtual machine that needs no hardware support.

mod initramfs;
pub(crate) mod kernels;
pub(crate) mod service;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    apt, build,
    command::{announce, on_path, run, stdout},
    ledger::functions,
    preload, workspace,
};
use initramfs::Initramfs;

/// Package that depends on Debian's kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
/// The limit ends a hung machine, which would otherwise run forever; it allows for software emulation.
const SMALL: Machine = Machine { memory_mib: "1024", limit_seconds: "600" };
/// Prefix of each report on the machine's console.
const REPORT: &str = "jjleak-vm-report:";
/// Blocks and bytes that `leak.c` leaks and allocates.
const LEAKED: [u64; 2] = [1000, 123_000];
const ALLOCATED: [u64; 2] = [2000, 200_000];

/// Options of the runs of jjleak on a program that leaks.
const RUNS: [&str; 5] = ["", "--follow", "--mmap", "--combined-only", "--sample-bytes=1 --threads"];

/// Prefix of what came of another source, on the machine's console.
const SOURCE: &str = "jjleak-vm-source:";
/// Other sources whose programs the kernel must load.
const SOURCES: [&str; 1] = ["heap"];

/// Prefix of the report on blocks that the program announces itself.
const SAMPLES: &str = "jjleak-vm-samples:";

/// Prefix of the report on pages that became resident.
const GROWTH: &str = "jjleak-vm-growth:";
/// Bytes that `leak.c` touches, and that it gives back.
const TOUCHED: u64 = 400 * 4096;
const GIVEN_BACK: u64 = 100 * 4096;

/// Limits of a machine.
struct Machine {
    memory_mib: &'static str,
    limit_seconds: &'static str,
}

/// `cargo xtask vm-test`.
pub(crate) fn test() -> Result<ExitCode> {
    let folder = prepare()?;
    let built = build::program(&build::bpf_object()?, true)?;
    // Its debug information would not fit into the machine's memory.
    let jjleak = folder.join("jjleak");
    run(Command::new("strip").args(["--strip-debug", "-o"]).args([&jjleak, &built]))?;
    let kernel = kernel(&folder)?;
    let archive = folder.join("initramfs");
    let sampler = built.with_file_name(preload::LIBRARY);
    fs::write(&archive, root(&jjleak, &sampler, &folder)?).context("cannot write the machine's files")?;
    announce(&format!("booting {}", kernel.display()));
    let console = boot(&kernel, &archive, &SMALL, "")?;
    match check(&console) {
        Ok(()) => {
            println!(
                "vm-test: {} reports are exact on {}, and so are samples",
                RUNS.len(),
                release(&console)
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            println!("{console}");
            Err(error)
        }
    }
}

/// Installs the requirements of virtual machines. Returns the folder for their files.
fn prepare() -> Result<PathBuf> {
    if on_path("qemu-system-x86_64").is_none() {
        apt::install(&["qemu-system-x86"], "another kernel is tested in a virtual machine")?;
    }
    let folder = workspace::target()?.join("vm");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Debian's kernel, downloaded once per version.
fn kernel(folder: &Path) -> Result<PathBuf> {
    let depends = stdout(Command::new("apt-cache").args(["depends", "--no-recommends", KERNEL]))?;
    let image = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let image =
        image.with_context(|| format!("apt-cache knows no {KERNEL}: this needs Debian 12's archive"))?;
    let version = image.trim_start_matches("linux-image-");
    let unpacked = folder.join(image);
    let kernel = unpacked.join(format!("boot/vmlinuz-{version}"));
    if !kernel.is_file() {
        announce(&format!("fetching {image}"));
        run(Command::new("apt-get").args(["download", "--quiet", image]).current_dir(folder))?;
        let package = fs::read_dir(folder)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(image))
                    && path.is_file()
            })
            .context("apt-get has left no package")?;
        run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked))?;
    }
    Ok(kernel)
}

/// The machine's files: jjleak with its sampler, the program that leaks, a program that runs both, and the libraries of all.
fn root(jjleak: &Path, sampler: &Path, folder: &Path) -> Result<Vec<u8>> {
    let sources = workspace::root().join("tests/fixtures/vm");
    let mut archive = Initramfs::default();
    let mut programs = vec![(jjleak.to_owned(), "bin/jjleak")];
    for (source, place, flags) in [("leak.c", "bin/leak", "-g"), ("init.c", "init", "-static")] {
        let program = folder.join(source).with_extension("");
        run(Command::new("cc")
            .args(["-O2", "-Wall", "-fno-builtin", "-fomit-frame-pointer", flags, "-o"])
            .arg(&program)
            .arg(sources.join(source)))?;
        programs.push((program, place));
    }
    for mount in ["dev", "proc", "sys", "tmp"] {
        archive.add_folders(Path::new(mount));
    }
    for (program, place) in &programs {
        archive.copy(program, Path::new(place))?;
        if *place != "init" {
            for library in libraries(program)? {
                archive.copy(&library, library.strip_prefix("/").unwrap_or(&library))?;
            }
        }
    }
    archive.copy(sampler, &Path::new("bin").join(preload::LIBRARY))?;
    Ok(archive.finish())
}

/// The shared libraries that a program needs, including the loader.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let needed = stdout(Command::new("ldd").arg(program))?;
    let paths = needed.split_ascii_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths.map(|word| PathBuf::from(word.trim_end_matches(':'))).collect())
}

/// Boots the machine, with further words on the kernel's command line, and returns its console output.
fn boot(kernel: &Path, archive: &Path, machine: &Machine, words: &str) -> Result<String> {
    let output = Command::new("timeout")
        .args([machine.limit_seconds, "qemu-system-x86_64", "-m", machine.memory_mib])
        .args(["-nographic", "-no-reboot", "-kernel"])
        .arg(kernel)
        .arg("-initrd")
        .arg(archive)
        .args(["-append", &format!("console=ttyS0 quiet panic=-1 {words}")])
        .stdin(Stdio::null())
        .output()
        .context("cannot start qemu-system-x86_64")?;
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("the machine did not shut down by itself ({}):\n{console}", output.status);
    }
    Ok(console)
}

fn release(console: &str) -> &str {
    console.lines().find_map(|line| line.trim_start().strip_prefix("jjleak-vm-kernel:")).unwrap_or("?").trim()
}

/// Checks that every run's report equals the known leaks of the program, to the byte, and that the programs of other sources load.
fn check(console: &str) -> Result<()> {
    let reports: Vec<_> = console.lines().filter_map(|line| line.split_once(REPORT)).collect();
    ensure!(reports.len() == RUNS.len(), "{} reports of {}", reports.len(), RUNS.len());
    for (way, (_, report)) in RUNS.iter().zip(reports) {
        check_report(report.trim()).with_context(|| format!("jjleak {way}"))?;
    }
    for source in SOURCES {
        ensure!(console.contains(&format!("{SOURCE} {source}: loads")), "jjleak {source} fails");
    }
    let growth = console.lines().find_map(|line| line.split_once(GROWTH)).context("jjleak growth fails")?;
    check_growth(growth.1.trim()).context("jjleak growth")?;
    let samples =
        console.lines().find_map(|line| line.split_once(SAMPLES)).context("jjleak --sampled fails")?;
    check_report(samples.1.trim()).context("jjleak --sampled")
}

/// Checks that the pages that are resident, and those that were, belong to the function that has touched them.
fn check_growth(report: &str) -> Result<()> {
    let report: Value = serde_json::from_str(report).context("no report in JSON")?;
    let stacks = report["stacks"].as_array().context("no stacks")?;
    let of = |key: &str| -> u64 {
        let touching = stacks.iter().filter(|stack| functions(&report, stack).any(|name| name == "touch"));
        touching.map(|stack| stack[key]["bytes"].as_u64().unwrap_or_default()).sum()
    };
    let (live, touched) = (of("live"), of("allocated"));
    ensure!(live == TOUCHED - GIVEN_BACK, "{live} bytes are resident, not {}", TOUCHED - GIVEN_BACK);
    ensure!(touched == TOUCHED, "{touched} bytes were touched, not {TOUCHED}");
    ensure!(report["lost"].as_object().is_some_and(|lost| lost.values().all(|count| *count == 0)), "losses");
    Ok(())
}

fn check_report(report: &str) -> Result<()> {
    let report: Value = serde_json::from_str(report).context("no report in JSON")?;
    // Allocations of the C library are excluded.
    let own = |stack: &&Value| {
        functions(&report, stack)
            .nth(1)
            .is_some_and(|caller| ["leak", "main"].iter().any(|own| caller == own))
    };
    let stacks = report["stacks"].as_array().context("no stacks")?;
    let sum = |key: &str| {
        let of = |stack: &Value, what| stack[key][what].as_u64().unwrap_or_default();
        stacks.iter().filter(own).fold([0, 0], |[objects, bytes], stack| {
            [objects + of(stack, "objects"), bytes + of(stack, "bytes")]
        })
    };
    ensure!(sum("live") == LEAKED, "live {:?}, not {LEAKED:?}", sum("live"));
    ensure!(sum("allocated") == ALLOCATED, "allocated {:?}, not {ALLOCATED:?}", sum("allocated"));
    let incomplete = stacks.iter().find(|stack| stack["status"] != "complete");
    ensure!(incomplete.is_none(), "a stack is not complete: {incomplete:?}");
    let losses = report["lost"].as_object().context("no losses")?;
    ensure!(losses.values().all(|count| *count == 0), "losses: {losses:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(live: u64, status: &str) -> String {
        format!(
            r#"{{"lost":{{"x":0}},
            "frames":[{{"symbol":"malloc"}},{{"symbol":"leak"}},{{"symbol":"main"}},{{"symbol":"puts"}}],"stacks":[
            {{"live":{{"bytes":{live},"objects":1000}},"allocated":{{"bytes":123000,"objects":1000}},"status":"{status}",
              "frames":[0,1,2]}},
            {{"live":{{"bytes":0,"objects":0}},"allocated":{{"bytes":77000,"objects":1000}},"status":"complete",
              "frames":[0,2]}},
            {{"live":{{"bytes":9,"objects":1}},"allocated":{{"bytes":9,"objects":1}},"status":"complete",
              "frames":[0,3]}}]}}"#
        )
    }

    #[test]
    fn a_report_must_be_exact_whole_and_without_losses() {
        assert!(check_report(&report(123_000, "complete")).is_ok());
        assert!(check_report(&report(122_877, "complete")).is_err());
        assert!(check_report(&report(123_000, "no_row")).is_err());
        assert!(check_report(&report(123_000, "complete").replace(r#""x":0"#, r#""x":1"#)).is_err());
    }

    #[test]
    fn every_path_must_have_its_report() {
        let line = format!("{REPORT} {}\n", report(123_000, "complete").replace('\n', ""));
        let pages = |live: u64| {
            format!(
                r#"{GROWTH} {{"lost":{{"x":0}},"frames":[{{"symbol":"anonymous memory"}},{{"symbol":"touch"}}],"stacks":[
                {{"live":{{"bytes":{live}}},"allocated":{{"bytes":1228800}},"frames":[0,1]}},
                {{"live":{{"bytes":0}},"allocated":{{"bytes":409600}},"frames":[0,1]}},
                {{"live":{{"bytes":4096}},"allocated":{{"bytes":4096}},"frames":[0]}}]}}"#
            )
            .replace('\n', "")
        };
        let samples = line.replace(REPORT, SAMPLES);
        let sources = format!("{samples}{SOURCE} heap: loads\n{}\n", pages(1_228_800));
        assert!(check(&(line.repeat(RUNS.len()) + &sources)).is_ok());
        let failed = sources.replace(&samples, "");
        assert!(check(&(line.repeat(RUNS.len()) + &failed)).is_err());
        assert!(check(&(line.clone() + &sources)).is_err());
        assert!(check(&line.repeat(RUNS.len())).is_err());
        let wrong = format!("{samples}{SOURCE} heap: loads\n{}\n", pages(1_228_801));
        assert!(check(&(line.repeat(RUNS.len()) + &wrong)).is_err());
    }
}
