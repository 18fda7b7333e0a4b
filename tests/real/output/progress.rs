//! Progress of long steps is shown on a terminal, and nowhere else.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::jjleak::{Jjleak, PROGRAM};
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;

/// Steps of a run that may take long.
const STEPS: [&str; 2] = ["attaching (", "writing files and detaching probes ("];

/// Options of a short run.
const SHORT: [&str; 6] = ["--format", "json", "--out", "/dev/null", "0.2", "2"];

/// Terminal output of a shell command.
fn on_a_terminal(command: &str) -> String {
    let mut script = Command::new("script");
    let output = script.args(["-qec", command, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn slow_steps_are_reported_on_a_terminal_and_taken_back() {
    require_bpf!();
    let ledger = Ledger::start();

    let shown = on_a_terminal(&format!("{PROGRAM} -p {} {}", ledger.pid(), SHORT.join(" ")));

    for step in STEPS {
        let (_, after) = shown.split_once(step).unwrap_or_else(|| panic!("no {step:?} in {shown:?}"));
        assert!(after.contains("\u{1b}[2K"), "{step:?} stays: {shown:?}");
    }
}

#[test]
fn nothing_is_reported_of_them_where_stderr_is_no_terminal() {
    require_bpf!();
    let ledger = Ledger::start();
    let pid = ledger.pid().to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stderr");

    let command = format!("{PROGRAM} -p {pid} {} 2> {}", SHORT.join(" "), file.display());
    let shown = on_a_terminal(&command);
    let redirected = fs::read_to_string(file).unwrap();
    let piped = Jjleak::attached([&["-p", &pid][..], &SHORT].concat()).end().assert_done().stderr.join("\n");

    for said in [shown, redirected, piped] {
        assert!(
            !STEPS.iter().any(|step| said.contains(step)) && !said.contains(['\u{1b}', '\r']),
            "{said:?}"
        );
    }
}
