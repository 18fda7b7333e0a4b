//! The systemd unit, checked by systemd's own tools. Its behaviour under systemd is tested by `cargo xtask vm-test --service`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::jjleak::PROGRAM;
use crate::support::privilege::{lack_of_program, require};

/// Maximum exposure level in `systemd-analyze security`, in tenths.
const EXPOSURE: &str = "30";

fn analyze(arguments: &[&str], unit: &Path) -> Output {
    Command::new("systemd-analyze").args(arguments).arg("--no-pager").arg(unit).output().unwrap()
}

#[test]
fn the_unit_has_nothing_that_systemd_does_not_know_and_exposes_little() {
    require!(lack_of_program("systemd-analyze"));
    let deployed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd/jjleak.service");
    let text = fs::read_to_string(deployed).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("jjleak.service");
    // It is not installed here.
    fs::write(&unit, text.replace("/usr/bin/jjleak", PROGRAM)).unwrap();

    let verified = analyze(&["verify", "--man=no"], &unit);
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("jjleak.service"), "{said}");
    let threshold = format!("--threshold={EXPOSURE}");
    let security = analyze(&["security", "--offline=yes", &threshold], &unit);
    assert!(security.status.success(), "{}", String::from_utf8_lossy(&security.stdout));
}
