//! Processes with PIDs and files of their own, as in a container.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::books::assert_nothing_lost;
use crate::support::compile;
use crate::support::ledger::Ledger;
use crate::support::privilege::require_program;

/// A folder with all that the ledger program needs to run in it as its root.
fn root() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let needed = Command::new("ldd").arg(compile::ledger()).output().unwrap().stdout;
    let needed = String::from_utf8(needed).unwrap();
    let libraries = needed.split_whitespace().filter(|word| word.starts_with('/'));
    for path in libraries.map(Path::new) {
        let folder = root.path().join(path.parent().unwrap().strip_prefix("/").unwrap());
        fs::create_dir_all(&folder).unwrap();
        compile::copy(path, &folder);
    }
    compile::copy(compile::ledger(), root.path());
    root
}

#[test]
fn a_process_in_a_container_is_exact_and_known_by_both_its_pids() {
    require_program!("unshare");
    let root = root();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "chroot"]).arg(root.path()).arg("/ledger");
    let mut ledger = Ledger::spawn_in(&mut command);

    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("malloc");
    let report = jjleak.interrupt().assert_done().report();

    ledger.books().assert_reported(&report);
    assert_nothing_lost(&report);
    assert_eq!(report.process.container_pid, Some(1));
}
