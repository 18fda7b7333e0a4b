//! Cost that `--estimate` predicts, compared with the cost that a report gives.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Environment, Redis, Subject};
use crate::timings::Timings;

const TURNS: usize = 3;
/// Maximum ratio of both, in either direction.
const WANTED: f64 = 1.3;
/// Time until a program does the same again and again.
const WARM_UP: Duration = Duration::from_secs(1);
const COUNTED_S: &str = "2";
const PROFILED_S: &str = "4";

/// Programs by name, each with its interpreter and script: allocators, languages and paces differ.
const PROGRAMS: [(&str, &[&str]); 9] = [
    (
        "python3, json",
        &[
            "env",
            "PYTHONMALLOC=malloc",
            "python3",
            "-c",
            "import json, time\nd = {str(i): [i] * 5 for i in range(200)}\nwhile True:\n    json.loads(json.dumps(d)); time.sleep(0.05)",
        ],
    ),
    (
        "python3, XML",
        &[
            "env",
            "PYTHONMALLOC=malloc",
            "python3",
            "-c",
            "import time, xml.etree.ElementTree as E\nx = '<a>' + '<b c=\"1\">t</b>' * 200 + '</a>'\n\
             while True:\n    E.fromstring(x); time.sleep(0.02)",
        ],
    ),
    (
        "python3, sqlite3",
        &[
            "env",
            "PYTHONMALLOC=malloc",
            "python3",
            "-c",
            "import sqlite3, time\nc = sqlite3.connect(':memory:'); c.execute('create table t(a, b)')\nwhile True:\n    \
             c.executemany('insert into t values(?, ?)', [(i, str(i)) for i in range(50)])\n    \
             c.execute('select sum(a), max(b) from t').fetchall(); c.execute('delete from t'); time.sleep(0.005)",
        ],
    ),
    (
        "python3, 4 threads",
        &[
            "env",
            "PYTHONMALLOC=malloc",
            "python3",
            "-c",
            "import json, threading, time\ndef f():\n    while True:\n        json.loads(json.dumps(list(range(100)))); time.sleep(0.02)\n\
             [threading.Thread(target=f).start() for _ in range(4)]",
        ],
    ),
    (
        "python3, bytes",
        &[
            "python3",
            "-c",
            "import time\nwhile True:\n    [bytes(n) for n in range(600, 1600, 20)]; time.sleep(0.01)",
        ],
    ),
    (
        "python3, mostly computing",
        &[
            "python3",
            "-c",
            "while True:\n    sum(i * i for i in range(20000)); [bytearray(n) for n in range(600, 620)]",
        ],
    ),
    (
        "perl",
        &[
            "perl",
            "-e",
            "while (1) { my %h; $h{$_} = 'x' x ($_ % 50) for 1..300; select(undef, undef, undef, 0.02) }",
        ],
    ),
    (
        "bash",
        &[
            "bash",
            "-c",
            "while :; do s=; for i in 1 2 3 4 5 6 7 8 9 10; do s=\"$s$i-${s/1/2}\"; done; read -t 0.005 < <(:); done",
        ],
    ),
    ("mawk", &["mawk", "BEGIN { while (1) { for (i = 0; i < 2000; i++) a[i] = a[i] \"x\" i; delete a } }"]),
];

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let mut facts = Vec::new();
    let mut add = |name: &str, pid: u32| -> Result<()> {
        let turns = (0..options.choose(TURNS, 1)).map(|_| Ok(predicted(pid)? / reported(pid)?));
        let ratio = Timings(turns.collect::<Result<_>>()?);
        facts.push(Fact::new(
            format!("{name}: predicted, as a part of what was reported"),
            "x",
            ratio.figure(),
        ));
        let either_way = Timings(ratio.0.iter().map(|ratio| ratio.max(1. / ratio)).collect());
        facts.push(
            Fact::new(format!("{name}: the larger by the smaller"), "x", either_way.figure()).at_most(WANTED),
        );
        Ok(())
    };
    for (name, command) in PROGRAMS {
        let program = Busy::start(command)?;
        sleep(WARM_UP);
        add(name, program.0.id())?;
    }
    let redis = Redis::new(options, 1).start(&Environment::new(), &[])?;
    let _load = Busy::start(&["redis-benchmark", "-s", &Redis::socket(), "-l", "-c", "2", "-t", "set"])?;
    sleep(WARM_UP);
    add("redis-server", redis.pid())?;
    Ok(Section {
        title: "Predicted cost".to_owned(),
        says: "The share of a process's CPU time that `--estimate` predicts, beside the one that a report gives, for programs that do the same again and \
               again."
            .to_owned(),
        facts,
        ..Section::default()
    })
}

/// A program that works until it is dropped.
struct Busy(Child);

impl Busy {
    fn start(command: &[&str]) -> Result<Self> {
        let [program, arguments @ ..] = command else { return Err("no program".into()) };
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Share of CPU time that profiling is predicted to take.
fn predicted(pid: u32) -> Result<f64> {
    number(&json(pid, &["--estimate", COUNTED_S])?["of_cpu"])
}

/// Share of CPU time that profiling took.
fn reported(pid: u32) -> Result<f64> {
    number(&json(pid, &["--out", "-", PROFILED_S, "1"])?["cost"]["of_cpu"])
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().ok_or_else(|| format!("not a number: {value}").into())
}

/// The last document that jjleak writes about a process.
fn json(pid: u32, arguments: &[&str]) -> Result<Value> {
    let pid = pid.to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_jjleak"))
        .args(["-p", &pid, "--format", "json"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let last = text.lines().last().ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(serde_json::from_str(last)?)
}
