//! Tables of tools by workloads.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Matrix, Section, ToolRow};
use crate::subjects::{Buffers, Calls, LIBC, MICRO, Redis, Subject, compiler, python, sqlite};
use crate::timings::{Figure, Timings};
use crate::tools::{BARE, BPFTRACE, JJLEAK, SAMPLED, SAMPLER, TOOLS, Tool, UNTRACED};

/// Rounds per timing: some ten milliseconds with probes, long beside the clock's resolution, short beside other load.
const ROUNDS: usize = 5_000;
/// Rounds per timing without traps, which take nanoseconds each.
const UNTRACED_ROUNDS: usize = 200_000;
/// Timings per workload and turn.
const TIMINGS: usize = 5;
/// Maximum overhead relative to a bpftrace script.
const OF_BPFTRACE: f64 = 0.25;
/// Maximum cost of the preloaded sampler, in nanoseconds per round and relative to the untraced program.
const SAMPLERS: [(&str, f64, f64); 2] = [(SAMPLER, 3., 1.005), (SAMPLED, 6., 1.01)];
/// Maximum time of real programs relative to bare probes at the same sites.
const OF_BARE: f64 = 1.3;
/// Work of a program with samples, as a multiple of that with traps: they cost so little that a program takes a second.
const TIMES: usize = 25;
/// Turns of each program with samples.
const TURNS: usize = 9;
/// Tools in the table of programs with samples.
const OF_SAMPLES: [&str; 5] =
    [UNTRACED, SAMPLER, SAMPLED, "jemalloc, profiling off", "jemalloc, one sample per 512 KiB"];

/// Timings of a tool.
struct Taken {
    tool: &'static Tool,
    timings: Vec<Timings>,
    /// Reasons for missing timings, by workload.
    failures: BTreeMap<usize, String>,
}

/// Measures a program that only calls the allocator.
#[expect(clippy::unnecessary_wraps, reason = "the signature of every part")]
pub(crate) fn calls(options: &Options) -> Result<Section> {
    let rounds = options.choose(ROUNDS, 500);
    let timings = options.choose(TIMINGS, 1);
    let turn = |taken: &mut Taken| {
        // A failed tool would fail again, perhaps after a long time.
        if taken.failures.is_empty()
            && let Err(error) = call(taken, rounds, timings)
        {
            taken.failures.insert(0, error.to_string());
        }
    };
    let workloads = MICRO.iter().map(|micro| micro.name.to_owned()).collect();
    let matrix = measure(options.turns(), "ns per round", workloads, |tool| tool.is_for_calls, turn);
    let facts = calls_beside_bare(&matrix)
        .chain(beside_bpftrace(&matrix))
        .chain(added_by_samplers(&matrix))
        .collect();
    Ok(Section {
        title: "Allocator calls".to_owned(),
        says: "A round is `malloc` and `free`: 64 bytes, 8 frames and one thread, unless the column says otherwise. In the \
               last two columns it is `calloc` and `free`, and `malloc`, `realloc` to twice the size, and `free`. *Bare probes* \
               are empty BPF programs, attached by uprobe-multi: the cost of the kernel's traps on this machine. *bpftrace* \
               runs [a plain script](../../jjleak/benches/cost/tools/memleak.bt) that records sizes and stacks of live \
               blocks, like bcc's `memleak`."
            .to_owned(),
        matrix: Some(matrix),
        facts,
        failure: None,
    })
}

/// Measures real programs.
pub(crate) fn programs(options: &Options) -> Result<Section> {
    let subjects: [Box<dyn Subject>; 5] = [
        python(options, 1, true),
        sqlite(options, 1),
        compiler(options, 1)?,
        Box::new(Redis::new(options, 1)),
        Box::new(Buffers::new(options, 1)?),
    ];
    let matrix = of_programs(options.turns(), &subjects, |tool| tool.is_for_programs);
    let facts = programs_beside_bare(&matrix).chain(beside_bpftrace(&matrix)).collect();
    Ok(Section {
        title: "Programs".to_owned(),
        says: "Time from the program's first instruction (server and JVM: from the first request) to the end of its work, \
               with the tool attached before. python3 allocates each object with the C library (`PYTHONMALLOC=malloc`); \
               redis-server is linked to jemalloc and uses it in every row."
            .to_owned(),
        matrix: Some(matrix),
        facts,
        failure: None,
    })
}

/// Measures real programs with samples, for longer.
pub(crate) fn samples(options: &Options) -> Result<Section> {
    let times = options.choose(TIMES, 1);
    let subjects: [Box<dyn Subject>; 6] = [
        python(options, times, true),
        python(options, times, false),
        sqlite(options, times),
        compiler(options, times / 5 + 1)?,
        Box::new(Redis::new(options, times)),
        Box::new(Buffers::new(options, times)?),
    ];
    let turns = options.choose(TURNS, 1);
    let matrix = of_programs((turns, turns), &subjects, |tool| OF_SAMPLES.contains(&tool.name));
    let facts = samplers_beside_untraced(&matrix).collect();
    Ok(Section {
        title: "Programs with samples".to_owned(),
        says: format!(
            "As above, with some {times} times the work. The second column is of python3's own allocator, which calls the C library's for \
             large objects and for its arenas."
        ),
        matrix: Some(matrix),
        facts,
        failure: None,
    })
}

/// Measures programs with some tools.
fn of_programs(turns: (usize, usize), subjects: &[Box<dyn Subject>], is_wanted: fn(&Tool) -> bool) -> Matrix {
    let turn = |taken: &mut Taken| {
        for (workload, subject) in subjects.iter().enumerate() {
            if taken.failures.contains_key(&workload) {
                continue;
            }
            match run(taken.tool, subject.as_ref()) {
                Ok(seconds) => taken.timings[workload].0.push(seconds),
                Err(error) => drop(taken.failures.insert(workload, format!("{}: {error}", subject.name()))),
            }
        }
    };
    let workloads = subjects.iter().map(|subject| subject.name()).collect();
    measure(turns, "seconds", workloads, is_wanted, turn)
}

/// Runs one turn of a tool.
fn call(taken: &mut Taken, rounds: usize, timings: usize) -> Result<()> {
    let (environment, _prepared) = taken.tool.prepare()?;
    let mut program = Calls::start(&environment)?;
    let _at_work = taken.tool.attach(program.pid(), LIBC.as_ref())?;
    let rounds = if taken.tool.is_without_traps() { UNTRACED_ROUNDS } else { rounds };
    for (micro, taken) in MICRO.iter().zip(&mut taken.timings) {
        for _ in 0..timings {
            taken.0.push(program.time(*micro, rounds)?);
        }
    }
    Ok(())
}

fn run(tool: &Tool, subject: &dyn Subject) -> Result<f64> {
    let (environment, _prepared) = tool.prepare()?;
    let mut running = subject.start(&environment, tool.waiting(&environment))?;
    let _at_work = tool.attach(running.pid(), subject.allocator())?;
    running.run()
}

/// Repeats turns while figures are noisy, up to a maximum of turns and time.
fn measure(
    (least, most): (usize, usize),
    unit: &'static str,
    workloads: Vec<String>,
    is_wanted: fn(&Tool) -> bool,
    turn: impl Fn(&mut Taken),
) -> Matrix {
    let begun = Instant::now();
    let taken =
        |tool| Taken { tool, timings: vec![Timings::default(); workloads.len()], failures: BTreeMap::new() };
    let mut all: Vec<_> = TOOLS.iter().filter(|tool| is_wanted(tool)).map(taken).collect();
    for turns in 1..=most {
        all.iter_mut().for_each(&turn);
        let is_noisy = all.iter().any(Taken::is_noisy);
        if turns >= least && (!is_noisy || begun.elapsed() > Options::PATIENCE) {
            break;
        }
    }
    Matrix { unit, workloads, tools: all.into_iter().map(Taken::row).collect() }
}

impl Taken {
    /// Returns true if the tool enters ratios and is noisy.
    fn is_noisy(&self) -> bool {
        let matters = [BARE, JJLEAK, BPFTRACE].contains(&self.tool.name);
        matters && self.timings.iter().filter_map(Timings::figure).any(|figure| figure.is_noisy())
    }

    fn row(self) -> ToolRow {
        let figures = self.timings.iter().map(Timings::figure).collect();
        ToolRow { tool: self.tool.name, figures, failures: self.failures.into_values().collect() }
    }
}

/// Cost of jjleak relative to bare probes at the same sites, for calls.
fn calls_beside_bare(matrix: &Matrix) -> impl Iterator<Item = Fact> {
    MICRO.iter().enumerate().filter_map(|(workload, micro)| {
        Some(beside_bare(matrix, workload, micro.name).at_most(micro.budget?))
    })
}

/// The same for programs.
fn programs_beside_bare(matrix: &Matrix) -> impl Iterator<Item = Fact> {
    let each = matrix.workloads.iter().enumerate();
    each.map(|(workload, name)| beside_bare(matrix, workload, name).at_most(OF_BARE))
}

fn beside_bare(matrix: &Matrix, workload: usize, name: &str) -> Fact {
    let ratio = matrix.median(JJLEAK, workload).zip(matrix.median(BARE, workload));
    fact(format!("jjleak relative to bare probes at the same sites: {name}"), ratio)
}

/// Overhead of jjleak relative to bpftrace's.
fn beside_bpftrace(matrix: &Matrix) -> impl Iterator<Item = Fact> {
    matrix.workloads.iter().enumerate().map(|(workload, name)| {
        let ratio = matrix.added(JJLEAK, workload).zip(matrix.added(BPFTRACE, workload));
        fact(format!("overhead of jjleak relative to bpftrace: {name}"), ratio).at_most(OF_BPFTRACE)
    })
}

/// Time that the sampler adds to each workload of calls.
fn added_by_samplers(matrix: &Matrix) -> impl Iterator<Item = Fact> {
    each_sampler(matrix).map(|((tool, most, _), workload, name)| {
        let added = matrix.added(tool, workload).map(Figure::of);
        Fact::new(format!("added by {tool}: {name}"), "ns", added).at_most(most)
    })
}

/// Time of programs with the sampler relative to that without.
fn samplers_beside_untraced(matrix: &Matrix) -> impl Iterator<Item = Fact> {
    each_sampler(matrix).map(|((tool, _, most), workload, name)| {
        let ratio = matrix.median(tool, workload).zip(matrix.median(UNTRACED, workload));
        fact(format!("{tool} relative to untraced: {name}"), ratio).at_most(most)
    })
}

fn each_sampler(matrix: &Matrix) -> impl Iterator<Item = ((&'static str, f64, f64), usize, &String)> {
    SAMPLERS.into_iter().flat_map(|sampler| {
        matrix.workloads.iter().enumerate().map(move |(workload, name)| (sampler, workload, name))
    })
}

fn fact(what: String, ratio: Option<(f64, f64)>) -> Fact {
    Fact::new(what, "x", ratio.map(|(one, other)| Figure::of(one / other)))
}
