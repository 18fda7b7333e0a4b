//! Real-world programs: profiled, they finish with the same output as without jjleak, and nothing is lost.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use jjleak::render::json::Document;

use crate::support::accounts::{assert_nothing_lost, call_site};
use crate::support::bounded::LONG;
use crate::support::compile;
use crate::support::jjleak::{Jjleak, PROGRAM};
use crate::support::lines::Lines;
use crate::support::privilege::require_program;
use crate::support::process::Process;

/// Builds, prints and parses nested documents; the output shows whether the run was correct.
const JSON_WORK: &str = r#"
import hashlib, json
kept, digest = [], hashlib.sha256()
for i in range(300):
    document = {"id": i, "items": [{"name": "n%d" % j, "value": [j] * 5} for j in range(40)]}
    text = json.dumps(document)
    digest.update(json.dumps(json.loads(text), indent=1).encode())
    if i % 3 == 0:
        kept.append(json.loads(text))
print(len(kept), digest.hexdigest())
"#;

const SQL_WORK: &str = "
create table t(id integer primary key, name text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
  insert into t select i, 'name ' || i * 7919 % 20011 from n;
create index t_name on t(name);
select count(*), sum(id), min(name), max(name), sum(length(name)) from t where name > 'name 5';
select group_concat(name) from (select name from t order by name desc limit 20);
";

/// A Python that allocates every object with malloc.
fn python() -> Command {
    // Debian's own; an earlier one on the PATH may be a script.
    let debian = Path::new("/usr/bin/python3");
    let mut command = Command::new(if debian.exists() { debian } else { Path::new("python3") });
    command.env("PYTHONMALLOC", "malloc");
    command
}

fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Starts a command under jjleak; its output must be `expected`, and nothing may be lost.
fn assert_unharmed_under_jjleak(mut command: Command, expected: &str) {
    let words: Vec<_> =
        [command.get_program()].into_iter().chain(command.get_args()).map(ToOwned::to_owned).collect();
    let mut jjleak = Command::new(PROGRAM);
    jjleak.args(["--out", "report.json", "--format", "json", "--"]).args(words).stdout(Stdio::piped());
    jjleak.envs(command.env("LC_ALL", "C").get_envs().filter_map(|(name, value)| Some((name, value?))));

    let ended = Jjleak::start(jjleak).end().assert_done();

    assert_eq!(ended.stdout, expected);
    assert!(
        ended.stderr.iter().any(|line| line.ends_with("has ended: exit status: 0")),
        "{:#?}",
        ended.stderr
    );
    let reports = std::fs::read_to_string(ended.file("report.json")).unwrap();
    assert_counted(&serde_json::from_str(reports.lines().last().unwrap()).unwrap());
}

/// Starts a command that waits for a line, attaches jjleak, lets it continue, and compares its output with `expected`.
fn assert_unharmed_when_attached(mut command: Command, ready: &str, work: &str, expected: &str) {
    let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut stdin = process.stdin.take().unwrap();
    let mut stdout = Lines::of("the program", process.stdout.take().unwrap());
    writeln!(stdin, "{ready}").unwrap();
    assert_eq!(stdout.next(LONG), "ready");

    let jjleak = Jjleak::attached(["-p", &process.id().to_string(), "3600", "--format", "json"]);
    writeln!(stdin, "{work}").unwrap();
    drop(stdin);
    let status = process.end(LONG);
    let report = jjleak.end().assert_done().report();

    assert!(status.success(), "{status}");
    assert_eq!(stdout.all(LONG)[1..].join("\n"), expected.trim_end());
    assert_counted(&report);
}

fn assert_counted(report: &Document) {
    assert_nothing_lost(report);
    assert!(report.allocated.objects > 10_000, "only {:?} allocated", report.allocated);
}

#[test]
fn python_says_under_jjleak_what_it_says_alone() {
    require_program!("python3");
    let command = || {
        let mut command = python();
        command.args(["-c", JSON_WORK]);
        command
    };
    let expected = output(&mut command());

    assert_unharmed_under_jjleak(command(), &expected);
}

#[test]
fn python_says_the_same_when_jjleak_comes_while_it_runs() {
    require_program!("python3");
    let expected = output(python().args(["-c", JSON_WORK]));
    let mut command = python();
    command.args(["-u", "-c", "import sys; print(sys.stdin.readline().strip()); exec(sys.stdin.read())"]);

    assert_unharmed_when_attached(command, "ready", JSON_WORK, &expected);
}

#[test]
fn sqlite_says_under_jjleak_what_it_says_alone() {
    require_program!("sqlite3");
    let command = || {
        let mut command = Command::new("sqlite3");
        command.args([":memory:", SQL_WORK]);
        command
    };
    let expected = output(&mut command());

    assert_unharmed_under_jjleak(command(), &expected);
}

#[test]
fn sqlite_says_the_same_when_jjleak_comes_while_it_runs() {
    require_program!("sqlite3");
    let expected = output(Command::new("sqlite3").args([":memory:", SQL_WORK]));
    let mut command = Command::new("sqlite3");
    command.arg(":memory:");

    assert_unharmed_when_attached(command, "select 'ready';", SQL_WORK, &expected);
}

#[test]
fn a_leak_in_an_extension_of_python_is_named_and_counted_to_the_byte() {
    require_program!("python3-config");
    let code = format!(
        "import sys; sys.path.insert(0, {:?}); import leaky\nprint('ready', flush=True); input()\n\
         for size in range(1, 1001): leaky.leak(size)\nprint('done', flush=True); input()",
        compile::leaky().parent().unwrap(),
    );
    let mut command = Command::new("/usr/bin/python3");
    let mut python = Process::spawn(command.args(["-c", &code]).stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut stdout = Lines::of("python3", python.stdout.take().unwrap());
    assert_eq!(stdout.next(LONG), "ready");

    let jjleak = Jjleak::attached(["-p", &python.id().to_string(), "3600", "--format", "json"]);
    writeln!(python.stdin.as_mut().unwrap()).unwrap();
    assert_eq!(stdout.next(LONG), "done");
    let report = jjleak.interrupt().assert_done().report();

    let leaked = report.stacks.iter().filter(|stack| call_site(stack) == "forget");
    let (mut bytes, mut objects) = (0, 0);
    for stack in leaked {
        assert_eq!(stack.status, "complete");
        bytes += stack.live.bytes;
        objects += stack.live.objects;
    }
    assert_eq!((bytes, objects), (500_500, 1000));
    assert_nothing_lost(&report);
}
