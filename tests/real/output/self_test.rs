//! `jjleak self-test`: what works on this host.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::jjleak::PROGRAM;
use crate::support::privilege::{require_bpf, require_program};

fn self_test(program: &Path, arguments: &[&str]) -> Output {
    // Nothing of this environment is needed.
    Command::new(program).arg("self-test").args(arguments).env_clear().output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {output:?}"))
}

#[test]
fn a_host_where_all_works_is_said_to_work() {
    require_bpf!();
    let output = self_test(Path::new(PROGRAM), &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text.contains("123000 bytes live in 1000 blocks, 200000 bytes allocated in 2000"), "{text}");
    assert!(text.trim_end().lines().last().unwrap().starts_with("jjleak works here"), "{text}");
}

#[test]
fn the_functions_of_the_trial_are_found_and_named_in_a_stripped_program() {
    require_bpf!();
    require_program!("strip");
    let folder = tempfile::tempdir().unwrap();
    let stripped = folder.path().join("jjleak");
    assert!(
        Command::new("strip").arg("-o").args([&stripped, Path::new(PROGRAM)]).status().unwrap().success()
    );

    let output = self_test(&stripped, &["--format", "json"]);

    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let measured = &report["trial"]["measured"];
    assert_eq!((&report["works"], &measured["names_leaker"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(measured["counted"], measured["expected"]);
    assert_eq!(measured["stacks"], measured["complete_stacks"]);
}

#[test]
fn without_privileges_it_names_what_is_missing_and_what_to_do() {
    require_bpf!();
    require_program!("setpriv");
    let unprivileged = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", PROGRAM, "self-test"]).args(arguments);
        command.output().unwrap()
    };

    let output = unprivileged(&[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        text.contains("  NO   privilege to load BPF programs") && text.contains("to do: run it with sudo"),
        "{text}"
    );
    assert!(text.trim_end().ends_with("jjleak does NOT work here"), "{text}");

    let report = json(&unprivileged(&["--format", "json"]));
    assert_eq!(report["works"], false);
    assert!(report["trial"]["failed"]["why"].as_str().unwrap().contains("CAP_BPF"), "{report:#}");
}

#[test]
fn the_kernels_types_can_be_in_a_file() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let types = folder.path().join("vmlinux.btf");
    fs::copy("/sys/kernel/btf/vmlinux", &types).unwrap();
    let with = |path: &Path| {
        self_test(Path::new(PROGRAM), &["--format", "json", "--kernel-btf", path.to_str().unwrap()])
    };

    assert_eq!(json(&with(&types))["works"], true);

    // What is named is used: nothing else, although this host has it in sysfs.
    let other = folder.path().join("other");
    fs::write(&other, "no types").unwrap();
    for unusable in [&other, &folder.path().join("missing")] {
        let refused = with(unusable);
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("--kernel-btf: cannot use") && said.contains("to do: name a file"), "{said}");
    }
}
