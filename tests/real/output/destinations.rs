//! Destinations that cannot be written: the failure comes before anything is attached if possible, and in any case no partial
//! file remains.

use std::fs::OpenOptions;
use std::process::{Command, Stdio};

use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;
use crate::support::probes::{self, Text};

#[test]
fn a_folder_that_is_missing_or_closed_is_known_before_attaching() {
    let _quiet = probes::quiet();
    require_bpf!();
    let mut ledger = Ledger::start();
    let before = Text::of(&mut ledger);
    let pid = ledger.pid().to_string();

    // Not even root can create files in /proc.
    for (place, folder) in
        [("/proc/none/", "/proc/none/"), ("/nonexistent/a.svg", "/nonexistent"), ("/proc/", "/proc")]
    {
        let ended = Ended::of(["-p", &pid, "--out", place]);

        ended.assert_failed(
            1,
            &format!("cannot write to folder {folder}"),
            "choose another destination with --out",
        );
        assert_eq!(ended.stderr.len(), 2, "{:#?}", ended.stderr);
    }
    before.assert_unchanged(&mut ledger);
}

#[test]
fn a_full_disk_leaves_no_file() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    // One page is too small for a flame graph. The remaining files are listed before the unmount.
    let script = "mount -t tmpfs -o size=4k none \"$0\" && \"$@\"; code=$?; ls -A \"$0\" >&2; exit $code";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(folder.path()).arg(PROGRAM).arg("--out").arg(folder.path());
    command
        .args(["--format", "svg", "--by", "bytes,objects", "--"])
        .arg(compile::early())
        .stdout(Stdio::piped());

    let ended = Jjleak::start(command).end();

    ended.assert_failed(1, ": No space left on device", "free some space");
}

#[test]
fn a_full_stdout_is_a_failure_and_keeps_no_file_from_being_written() {
    let _quiet = probes::quiet();
    require_bpf!();
    let mut ledger = Ledger::start();
    let before = Text::of(&mut ledger);
    let mut command = Command::new(PROGRAM);
    command.args(["-p", &ledger.pid().to_string(), "--format", "json,svg"]);
    command.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap());

    let jjleak = Jjleak::start(command).until_attached();
    ledger.run("malloc");
    let ended = jjleak.interrupt();

    let [.., wrote, why, to_do] = &ended.stderr[..] else { panic!("{:#?}", ended.stderr) };
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        wrote.starts_with("jjleak: wrote jjleak-") && why.contains("writing to stdout failed: No space left")
    );
    assert_eq!(to_do, "jjleak: to do: check where stdout goes");
    assert_eq!(ended.files(), [format!("jjleak-{}.svg", ledger.pid())]);
    before.assert_unchanged(&mut ledger);
}
