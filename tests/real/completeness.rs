//! Programs that nobody here wrote, as Debian builds them: stacks are complete, and the rest is explained.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use jjleak::render::json::Document;

use crate::support::jjleak::{Jjleak, PROGRAM};
use crate::support::privilege::require_program;

/// Of all allocations whose code jjleak knows, those whose stack may be incomplete.
const INCOMPLETE_PER_MILLION: u64 = 1000;

/// Objects by how their stack ended.
struct Shares(BTreeMap<String, u64>);

impl Shares {
    fn of(report: &Document) -> Self {
        let mut shares = BTreeMap::new();
        for stack in &report.stacks {
            *shares.entry(stack.status.clone()).or_default() += stack.allocated.objects;
        }
        Self(shares)
    }

    fn all(&self) -> u64 {
        self.0.values().sum()
    }

    fn get(&self, status: &str) -> u64 {
        self.0.get(status).copied().unwrap_or_default()
    }

    /// Prints each.
    fn tell(&self, program: &str) {
        for (status, objects) in &self.0 {
            let millionths = objects * 1_000_000 / self.all();
            println!(
                "{program}: {status}: {objects} of {}, {}.{:04} %",
                self.all(),
                millionths / 10_000,
                millionths % 10_000
            );
        }
    }
}

/// Runs a command under jjleak. What is loaded while the command runs is not known for a moment (`no_mapping`): how much
/// falls into that is told, and depends on the machine.
fn assert_complete(command: &[&str], at_least: u64) {
    let mut jjleak = Command::new(PROGRAM);
    jjleak.args(["--out", "report.json", "--format", "json", "--"]).args(command);
    jjleak.env("PYTHONMALLOC", "malloc").stdout(Stdio::piped());

    let ended = Jjleak::start(jjleak).end().assert_done();

    let reports = std::fs::read_to_string(ended.file("report.json")).unwrap();
    let report: Document = serde_json::from_str(reports.lines().last().unwrap()).unwrap();
    let shares = Shares::of(&report);
    shares.tell(command[0]);
    assert!(shares.all() >= at_least, "only {} allocations: {:#?}", shares.all(), ended.stderr);
    let known = shares.all() - shares.get("no_mapping") - shares.get("lost");
    let incomplete = known - shares.get("complete");
    assert!(
        incomplete * 1_000_000 <= known * INCOMPLETE_PER_MILLION,
        "{incomplete} of {known} are incomplete"
    );
}

#[test]
fn stacks_of_perl_are_complete() {
    require_program!("perl");
    let work = r#"my @kept = map { { number => $_, text => "x" x $_ } } 1 .. 1000;
        my %index = map { $_->{text} => $_ } @kept; print scalar(sort keys %index), "\n";"#;
    assert_complete(&["/usr/bin/perl", "-MPOSIX", "-MData::Dumper", "-e", work], 5000);
}

#[test]
fn stacks_of_python_are_complete() {
    require_program!("python3");
    let work = "import hashlib, json\nfor i in range(100):\n \
                json.loads(json.dumps({'id': i, 'items': [{'name': 'n%d' % j} for j in range(40)]}))";
    assert_complete(&["/usr/bin/python3", "-c", work], 10_000);
}

#[test]
fn stacks_of_sqlite_are_complete() {
    require_program!("sqlite3");
    let work = "create table t(name text); with recursive n(i) as (select 1 union all select i + 1 from n where \
                i < 2000) insert into t select 'name ' || i from n; select count(distinct name) from t;";
    assert_complete(&["/usr/bin/sqlite3", ":memory:", work], 1000);
}

#[test]
fn stacks_of_git_are_complete() {
    require_program!("git");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests");
    let no_repository = ["diff", "--no-index", "--stat", "/dev/null"];
    let file = format!("{folder}/real/support/books.rs");
    // Git compares with a status of 1; what counts is its stacks.
    let command: Vec<_> = ["/usr/bin/git"].iter().chain(&no_repository).copied().chain([&*file]).collect();
    assert_complete(&command, 100);
}

#[test]
fn stacks_of_the_cplusplus_compiler_are_complete() {
    require_program!("g++");
    // The compiler itself: g++ only starts it.
    let output = Command::new("g++").arg("-print-prog-name=cc1plus").output().unwrap();
    let compiler = String::from_utf8(output.stdout).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/stacks/stacks.cpp");
    assert_complete(&[compiler.trim(), "-quiet", "-O1", source, "-o", "/dev/null"], 1000);
}

#[test]
fn stacks_of_gdb_are_complete() {
    require_program!("gdb");
    let program =
        ["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "info line main", "/usr/bin/perl"];
    assert_complete(&[&["/usr/bin/gdb"], &program[..]].concat(), 10_000);
}
