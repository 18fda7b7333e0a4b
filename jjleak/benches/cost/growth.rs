//! Cost of `jjleak growth` for programs that do not grow.

use std::process::{Command, Stdio};

use jjleak::processes::{Pid, cpu_time};

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Environment, Redis, Running, Subject, Talker, java_classes};
use crate::timings::Timings;
use crate::tools::Jjleak;

const TURNS: usize = 20;
const WANTED: f64 = 1.01;
const REQUESTS: &str = "40000";

/// For each line, works and answers with the CPU time.
const PYTHON: &str = "import json, sys, time\ndata = [{'id': i, 'name': 'n%d' % i, 'at': i / 7} for i in range(300)]\nprint('ready', flush=True)\n\
    for line in sys.stdin:\n    begin = time.process_time()\n    for _ in range(1000): json.loads(json.dumps(data))\n    \
    print(time.process_time() - begin, flush=True)\n";

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let turns = options.choose(TURNS, 1);
    let mut python =
        Talker::start(Command::new("/usr/bin/python3").args(["-c", PYTHON]), &Environment::new())?;
    let of_python = ratios(turns, python.pid(), || python.ask("work"))?;
    drop(python);
    let mut java = Command::new("java");
    java.args(["-Xmx512m", "-XX:+UseG1GC", "-XX:+AlwaysPreTouch", "-Xms512m", "-cp"])
        .arg(java_classes("Objects")?)
        .arg("Objects");
    let mut java = Talker::start(&mut java, &Environment::new())?;
    java.ask_for::<2>("5")?;
    let of_java = ratios(turns, java.pid(), || java.ask_for::<2>("1").map(|[thread, _]| thread))?;
    drop(java);
    let redis = Redis::new(options, 1).start(&Environment::new(), &[])?;
    get(&*redis)?;
    let of_redis = ratios(turns, redis.pid(), || get(&*redis))?;
    let fact = |name: &str, ratios: Timings| Fact::new(name, "x", ratios.figure()).at_most(WANTED);
    Ok(Section {
        title: "Growth".to_owned(),
        says: "CPU time for the same work with `jjleak growth`, as a ratio to the mean of the times before and after without, in the same process. None of \
               the programs grows."
            .to_owned(),
        facts: vec![
            fact("python3, json", of_python),
            fact("java, a thread that allocates 1 GB/s", of_java),
            fact("redis-server, GET", of_redis),
        ],
        ..Section::default()
    })
}

/// Times of work with `jjleak growth` by those without.
fn ratios(turns: usize, pid: u32, mut work: impl FnMut() -> Result<f64>) -> Result<Timings> {
    let mut ratios = Timings::default();
    work()?;
    let mut before = work()?;
    for _ in 0..turns {
        let growth = Jjleak::run(&["growth"], pid, &[])?;
        let with = work()?;
        drop(growth);
        let after = work()?;
        ratios.0.push(2. * with / (before + after));
        before = after;
    }
    Ok(ratios)
}

/// CPU time of the server for some requests.
fn get(redis: &dyn Running) -> Result<f64> {
    let pid = Pid::new(redis.pid()).ok_or("PID 0")?;
    let taken = || cpu_time(pid).ok_or("the server has ended");
    let begin = taken()?;
    let status = Command::new("redis-benchmark")
        .args(["-s", &Redis::socket(), "-t", "get", "-r", "1000", "-n", REQUESTS, "--csv"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if !status.success() {
        return Err(format!("redis-benchmark failed: {status}").into());
    }
    Ok(taken()?.saturating_sub(begin).as_secs_f64())
}
