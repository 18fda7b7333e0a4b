//! Run time of each BPF program per call, and of each stage of the slowest one, as measured by the kernel.

use jjleak::allocators::CallFollowing;
use jjleak::attach::{Measuring, Programs, Runs, RunsByPart};
use jjleak_common::stage::{STEPS, Stage, Step};

use crate::Result;
use crate::attached::{Attached, Sites};
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Calls, Environment, Micro};
use crate::timings::{Figure, Timings};

const FRAMES: [u32; 3] = [8, 27, 67];
/// Turns of all programs, because a machine's speed varies over time.
const TURNS: usize = 3;
const TIMINGS: usize = 3;
const ROUNDS: usize = 20_000;

/// Work of each stage beyond the previous one.
const STAGES: [(Stage, &str); 6] = [
    (Stage::Process, "decode the cookie, read registers, look up the process"),
    (Stage::Calls, "detect nested calls (task storage)"),
    (Stage::Words, "claim a buffer, copy the words of the stack"),
    (Stage::Stack, "hash the words, find the stack of an earlier walk"),
    (Stage::Counted, "read the time, count the allocation"),
    (Stage::All, "insert the block"),
];

/// Indispensable steps, each repeated many times in one run for its minimum cost.
const LEAST: [(Step, &str); 6] = [
    (Step::Claim, "claim and release a buffer"),
    (Step::Copy, "the same, with a copy of 384 bytes of the stack (`bpf_probe_read_user`)"),
    (Step::Word, "read a word of the stack (`bpf_probe_read_user`)"),
    (Step::Storage, "look up the thread's storage (`bpf_task_storage_get`)"),
    (Step::Time, "read the time (`bpf_ktime_get_ns`)"),
    (Step::Add, "add to two sums of a row"),
];

/// Timings of the parts of a call, in nanoseconds.
#[derive(Default)]
struct Parts {
    given: Timings,
    entry: Timings,
    leave: Timings,
    free: Timings,
}

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let mut program = Calls::start(&Environment::new())?;
    let mut facts = Vec::new();
    let mut free_ns = f64::NAN;
    for (index, frames) in FRAMES.into_iter().enumerate() {
        let (of_frames, of_free_ns) = of_frames(&mut program, frames, options)?;
        facts.extend(of_frames);
        if index == 0 {
            free_ns = of_free_ns;
        }
    }
    facts.extend(least(&mut program, free_ns, options)?);
    Ok(Section {
        title: "Time per stage".to_owned(),
        says: "Run time statistics of the kernel (`BPF_ENABLE_STATS`) for each program in a round of `malloc(64)` and \
               `free`: two where `malloc` is probed inside, three with `--entry-and-return`. The overhead of measuring is in the \
               first row for each number of frames. The rows of single stages do not include it: they are differences between \
               programs that end with a stage and with the one before. The rest of a round is the kernel's: its breakpoints. The \
               last rows are of programs that repeat one step many times in a run: its minimum cost, with all data in the caches."
            .to_owned(),
        facts,
        ..Section::default()
    })
}

/// Facts for a number of frames, and the time of `free` without the overhead of measuring.
fn of_frames(program: &mut Calls, frames: u32, options: &Options) -> Result<(Vec<Fact>, f64)> {
    let (mut nothing, mut apart) = (Parts::default(), Parts::default());
    let mut stages: [Parts; STAGES.len()] = Default::default();
    for _ in 0..options.choose(TURNS, 1) {
        let mut time = |parts: &mut Parts, stage, programs, following| {
            let attached = Attached::up_to(stage, program.pid(), programs, Sites::Chosen(following))?;
            parts.time(program, &attached, frames, options)
        };
        time(&mut nothing, Stage::All, Programs::Bare, CallFollowing::EntryAndReturn)?;
        for ((stage, _), parts) in STAGES.iter().zip(&mut stages) {
            time(parts, *stage, Programs::Accounting, CallFollowing::Inside)?;
        }
        time(&mut apart, Stage::All, Programs::Accounting, CallFollowing::EntryAndReturn)?;
    }
    let mut facts = Vec::new();
    let mut add = |what: &str, figure: Option<Figure>| {
        facts.push(Fact::new(format!("{frames} frames: {what}"), "ns", figure));
    };
    let [.., whole] = &stages;
    add("empty program: overhead of measuring", nothing.entry.figure());
    // Other C libraries may not allow a probe inside `malloc`.
    if whole.given.figure().is_some() {
        add("`malloc`, probed inside", whole.given.figure());
        let mut before = nothing.entry.median();
        for ((_, what), parts) in STAGES.iter().zip(&stages) {
            let median = parts.given.median();
            add(&format!("of which: {what}"), Some(Figure::of(median - before)));
            before = median;
        }
    }
    add("`free`: remove the block", whole.free.figure());
    add("with `--entry-and-return`: entry of `malloc`", apart.entry.figure());
    add("with `--entry-and-return`: return of `malloc`", apart.leave.figure());
    Ok((facts, whole.free.median() - nothing.entry.median()))
}

/// Time of single steps, and of a round of these steps only, with the known time of `free`.
fn least(program: &mut Calls, free_ns: f64, options: &Options) -> Result<Vec<Fact>> {
    let mut nothing = Parts::default();
    let mut steps: [Parts; LEAST.len()] = Default::default();
    for _ in 0..options.choose(TURNS, 1) {
        let mut time = |parts: &mut Parts, step| {
            let sites = Sites::Chosen(CallFollowing::Inside);
            let attached = Attached::to(program.pid(), Programs::Steps(step), sites)?;
            parts.time(program, &attached, FRAMES[0], options)
        };
        time(&mut nothing, Step::Nothing)?;
        for ((step, _), parts) in LEAST.iter().zip(&mut steps) {
            time(parts, *step)?;
        }
    }
    if nothing.given.figure().is_none() {
        return Ok(Vec::new());
    }
    let of_one = |parts: &Parts| (parts.given.median() - nothing.given.median()) / f64::from(STEPS);
    let mut round_ns = free_ns;
    let mut facts = Vec::new();
    for ((step, what), parts) in LEAST.iter().zip(&steps) {
        facts.push(Fact::new(format!("minimum: {what}"), "ns", Some(Figure::of(of_one(parts)))));
        // The copy includes both.
        if !matches!(step, Step::Claim | Step::Word) {
            round_ns += of_one(parts);
        }
    }
    let round = "minimum: a round of these steps only, with the time of `free` at 8 frames";
    facts.push(Fact::new(round, "ns", Some(Figure::of(round_ns))));
    Ok(facts)
}

impl Parts {
    fn time(
        &mut self,
        program: &mut Calls,
        attached: &Attached,
        frames: u32,
        options: &Options,
    ) -> Result<()> {
        let _measuring = Measuring::begin()?;
        for _ in 0..options.choose(TIMINGS, 1) {
            let before = attached.attachment.runs();
            program.time(Micro::of_frames(frames), options.choose(ROUNDS, 1_000))?;
            let RunsByPart { given, entries, returns, frees, .. } = attached.attachment.runs().since(before);
            let mean = |runs: Runs| runs.mean_ns().into_iter();
            self.given.0.extend(mean(given));
            self.entry.0.extend(mean(entries));
            self.leave.0.extend(mean(returns));
            self.free.0.extend(mean(frees));
        }
        Ok(())
    }
}
