//! Tests the service under a real systemd, with the user, the capabilities and the filters of its unit.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};

use super::{Machine, boot, kernel, prepare};
use crate::{
    apt,
    command::{announce, on_path, run},
    dist,
    sudo::Root,
    workspace,
};

/// Debian with systemd takes 200 MiB, twice that while it is unpacked, and boots in half a minute.
const MACHINE: Machine = Machine { memory_mib: "2048", limit_seconds: "900" };
/// Release of systemd and the kernel.
const RELEASE: &str = "bookworm";
/// Prefix of results on the machine's console.
const SAID: &str = "jjleak-vm:";
/// The unit's capabilities by number (include/uapi/linux/capability.h): `DAC_READ_SEARCH`, `SYS_PTRACE`, `PERFMON`, `BPF` and
/// `CHECKPOINT_RESTORE`.
const CAPABILITIES: [u32; 5] = [2, 19, 38, 39, 40];
/// Further capabilities that this old kernel needs: `SYS_ADMIN` permanently, and `NET_ADMIN` at the start.
const SYS_ADMIN: u32 = 21;
const NET_ADMIN: u32 = 12;

/// `cargo xtask vm-test --service`.
pub(crate) fn test() -> Result<ExitCode> {
    let folder = prepare()?;
    for (program, package) in [("mmdebstrap", "mmdebstrap"), ("cpio", "cpio")] {
        if on_path(program).is_none() {
            apt::install(&[package], "the machine's files are Debian's")?;
        }
    }
    let package = dist::packages()?.deb;
    let archive = folder.join("service-initramfs");
    let root = Root::obtain("make the files of a machine")?;
    run(root
        .command("unshare", &[])
        .args(["--mount", "--propagation", "private"])
        .arg(workspace::root().join("tests/package/boot.sh"))
        .args([system(&folder, root)?, package, leaking(&folder)?, archive.clone()]))
    .context("cannot make the machine's files")?;
    let kernel = kernel(&folder)?;
    announce(&format!("booting {} with systemd", kernel.display()));
    let console = boot(&kernel, &archive, &MACHINE, "")?;
    if let Err(error) = check(&console) {
        println!("{console}");
        return Err(error);
    }
    println!("vm-test: the service does under systemd what its unit says");
    Ok(ExitCode::SUCCESS)
}

/// A Debian with systemd, created once.
fn system(folder: &Path, root: Root) -> Result<PathBuf> {
    let system = folder.join(RELEASE);
    if !system.exists() {
        announce(&format!("making {} (once, some minutes)", system.display()));
        let unfinished = folder.join(format!("{RELEASE}.unfinished"));
        run(root.command("rm", &[]).arg("-rf").arg(&unfinished))?;
        run(root
            .command("mmdebstrap", &[])
            .args(["--quiet", "--variant=minbase", "--include=systemd,systemd-sysv", RELEASE])
            .arg(&unfinished))?;
        run(root.command("mv", &[]).args([&unfinished, &system]))?;
    }
    Ok(system)
}

/// The program that leaks. The machine has Debian's own C library.
fn leaking(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("leaking");
    let source = workspace::root().join("tests/fixtures/verdicts.c");
    run(Command::new("cc").args(["-O2", "-g", "-std=c11", "-pthread", "-o"]).args([&program, &source]))?;
    Ok(program)
}

/// Checks that the service runs as its unit specifies.
fn check(console: &str) -> Result<()> {
    let said: BTreeMap<&str, &str> = console
        .lines()
        .filter_map(|line| line.split_once(SAID)?.1.trim().split_once(' '))
        .map(|(key, value)| (key, value.trim()))
        .collect();
    let value = |key: &str| said.get(key).copied().with_context(|| format!("nothing is said of {key}"));
    for (key, expected) in [
        ("pid1", "/usr/lib/systemd/systemd"),
        ("verified", "0"),
        ("started", "active"),
        ("user", "jjleak"),
        ("no_new_privileges", "1"),
        ("seccomp", "2"),
        ("state", "750:jjleak:jjleak"),
        ("socket", "660:jjleak:jjleak"),
        ("reloaded", "0"),
        ("stopped", "success"),
        ("restarted", "active"),
        ("profile", "640:jjleak:jjleak"),
        ("ended", "success"),
        ("status_at_end", "0"),
        ("left", "0"),
    ] {
        let value = value(key)?;
        ensure!(value == expected, "{key} is {value}, not {expected}");
    }
    let expected = CAPABILITIES.iter().fold(0, |set, number| set | 1u64 << number);
    let kept = expected | 1 << SYS_ADMIN;
    for (set, expected) in [
        ("capabilities", expected),
        ("ambient", expected),
        ("bounding", expected),
        ("capabilities_with_more", kept),
        ("bounding_with_more", kept | 1 << NET_ADMIN),
    ] {
        let value = u64::from_str_radix(value(set)?, 16)?;
        ensure!(value == expected, "{set} are {value:x}, not {expected:x}");
    }
    let exposure: f64 = value("exposure")?.parse()?;
    ensure!(exposure <= 3.0, "systemd-analyze security says {exposure}");
    for (key, part) in [("status", "watching 0 processes"), ("profiling", "1 being profiled")] {
        ensure!(value(key)?.contains(part), "{key} is {}, without \"{part}\"", value(key)?);
    }
    ensure!(value("names")? != "0", "the profile does not name what leaks");
    // The time is printed, but not checked: emulation is slow.
    let stopping: u64 = value("stopping_ms")?.parse()?;
    announce(&format!("the service ended within {stopping} ms, profiling"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID_BY_A_GOOD_ONE: &str = "
        jjleak-vm: pid1 /usr/lib/systemd/systemd\n jjleak-vm: verified 0\n jjleak-vm: started active\n jjleak-vm: user jjleak
        jjleak-vm: no_new_privileges 1\n jjleak-vm: seccomp 2\n jjleak-vm: state 750:jjleak:jjleak
        jjleak-vm: socket 660:jjleak:jjleak\n jjleak-vm: reloaded 0\n jjleak-vm: stopped success\n jjleak-vm: restarted active
        jjleak-vm: profile 640:jjleak:jjleak\n jjleak-vm: ended success\n jjleak-vm: status_at_end 0\n jjleak-vm: left 0
        jjleak-vm: capabilities 000001c000080004\n jjleak-vm: ambient 000001c000080004\n jjleak-vm: bounding 000001c000080004
        jjleak-vm: capabilities_with_more 000001c000280004\n jjleak-vm: bounding_with_more 000001c000281004
        jjleak-vm: exposure 2.5\n jjleak-vm: status watching 0 processes: 0 suspected\n jjleak-vm: names 3
        jjleak-vm: profiling watching 1 processes: 0 suspected, 1 being profiled\n jjleak-vm: stopping_ms 900";

    #[test]
    fn a_service_must_be_in_every_point_what_its_unit_says() {
        assert!(check(SAID_BY_A_GOOD_ONE).is_ok());
        for (good, bad) in [
            ("user jjleak", "user root"),
            ("capabilities 000001c000080004", "capabilities 000001ffffffffff"),
            ("capabilities_with_more 000001c000280004", "capabilities_with_more 000001c000281004"),
            ("exposure 2.5", "exposure 9.2"),
            ("names 3", "names 0"),
            ("status_at_end 0", "status_at_end 9"),
            ("1 being profiled", "0 being profiled"),
            ("jjleak-vm: left 0", ""),
        ] {
            assert!(check(&SAID_BY_A_GOOD_ONE.replace(good, bad)).is_err(), "{bad}");
        }
    }
}
