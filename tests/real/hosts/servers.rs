//! Third-party servers, profiled under load: their clients get correct answers, and nothing is lost.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::User;
use tempfile::TempDir;

use crate::support::accounts::assert_nothing_lost;
use crate::support::bounded::SOON;
use crate::support::jjleak::Jjleak;
use crate::support::lines::Lines;
use crate::support::privilege::require_program;
use crate::support::process::Process;
use crate::support::shares::Shares;

fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    stdout.into_owned()
}

#[test]
fn redis_serves_a_benchmark_while_it_is_profiled() {
    require_program!("redis-benchmark");
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--unixsocket", "redis.sock", "--save", ""]).current_dir(folder.path());
    let mut redis = Process::spawn(command.stdout(Stdio::piped()));
    let mut log = Lines::of("redis-server", redis.stdout.take().unwrap());
    while !log.next(SOON).to_lowercase().contains("ready to accept connections") {}

    let jjleak = Jjleak::attached(["-p", &redis.id().to_string(), "3600", "--format", "json"]);
    let mut benchmark = Command::new("redis-benchmark");
    benchmark.args(["-t", "set,get,incr,lpush,lpop,mset", "-n", "2000", "-c", "4", "-q", "-s"]);
    let told = output(benchmark.arg(folder.path().join("redis.sock")));
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!(told.matches("requests per second").count(), 6, "{told}");
    Shares::of([&report]).assert_complete("redis-server", 10_000, &[]);
    assert_nothing_lost(&report);
}

/// A `PostgreSQL` server in its own folder, which listens only on a socket there. It refuses to run as root.
struct Postgres {
    process: Process,
    folder: TempDir,
    programs: PathBuf,
}

impl Postgres {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let user = User::from_name("postgres").unwrap().expect("the package brings a user");
        chown(folder.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        let programs = newest(Path::new("/usr/lib/postgresql")).join("bin");
        let data = folder.path().join("data");
        output(as_postgres(&programs.join("initdb")).args(["--no-sync", "-A", "trust", "-D"]).arg(&data));
        let mut command = as_postgres(&programs.join("postgres"));
        command.arg("-D").arg(&data).arg("-k").arg(folder.path());
        command.args(["-c", "listen_addresses=", "-c", "fsync=off"]).stderr(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let mut log = Lines::of("postgres", process.stderr.take().unwrap());
        while !log.next(SOON).contains("ready to accept connections") {}
        Self { process, folder, programs }
    }

    fn pgbench(&self, arguments: &[&str]) -> String {
        let mut command = as_postgres(&self.programs.join("pgbench"));
        output(command.arg("-h").arg(self.folder.path()).args(arguments).arg("postgres"))
    }
}

/// setpriv replaces itself with the program.
fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(program);
    command.env("LC_ALL", "C").current_dir("/");
    command
}

fn newest(folder: &Path) -> PathBuf {
    let versions = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    versions.max().expect("a version of it")
}

#[test]
fn postgres_serves_pgbench_while_it_and_its_backends_are_profiled() {
    require_program!("pg_createcluster");
    let postgres = Postgres::start();
    postgres.pgbench(&["-i", "-q", "-s", "1"]);

    let pid = postgres.process.id().to_string();
    let jjleak = Jjleak::attached(["-p", &pid, "--follow", "3600", "--format", "json"]);
    let told = postgres.pgbench(&["-c", "4", "-t", "50"]);
    let ended = jjleak.interrupt().assert_done();

    assert!(told.contains("number of transactions actually processed: 200/200"), "{told}");
    assert!(told.contains("number of failed transactions: 0"), "{told}");
    let reports = ended.reports();
    // A backend can start and end before its mappings are read.
    Shares::of(&reports).assert_complete("postgres", 1000, &["no_mapping"]);
    let backends: Vec<_> =
        reports.into_iter().filter(|report| report.process.forked_from.is_some()).collect();
    assert!(backends.len() >= 4, "only {} backends", backends.len());
    for report in &backends {
        assert_nothing_lost(report);
    }
    assert!(backends.iter().map(|report| report.allocated.objects).sum::<u64>() > 1000);
}
