//! What each of jjleak's programs takes of a call, and each stage of the one that takes most, as the kernel measures it.

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
/// Machines have moods: every program has its turn in each of them.
const TURNS: usize = 3;
const TIMINGS: usize = 3;
const ROUNDS: usize = 20_000;

/// What is done up to the end of each stage, beyond the one before.
const STAGES: [(Stage, &str); 6] = [
    (Stage::Process, "the cookie, the registers, the process's row"),
    (Stage::Calls, "whether it is a part of another call (task storage)"),
    (Stage::Words, "a buffer is claimed, and the words of the stack are copied"),
    (Stage::Stack, "they are compared with those of an earlier walk"),
    (Stage::Counted, "the time is taken, the allocation is counted"),
    (Stage::All, "the block is entered"),
];

/// What cannot be done without, as it is at least: each is done many times in one run.
const LEAST: [(Step, &str); 6] = [
    (Step::Claim, "a buffer is claimed, and given back"),
    (Step::Copy, "the same, with 384 bytes copied there from the stack (`bpf_probe_read_user`)"),
    (Step::Word, "a word is read from the stack (`bpf_probe_read_user`)"),
    (Step::Storage, "what is kept of the thread is looked up (`bpf_task_storage_get`)"),
    (Step::Time, "the time is taken (`bpf_ktime_get_ns`)"),
    (Step::Add, "two sums of a row are added to"),
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
        title: "Where the time goes".to_owned(),
        says: "Run time statistics of the kernel (`BPF_ENABLE_STATS`), for each of the programs that run in a round of \
               `malloc(64)` and `free`: two where `malloc` is probed inside, three with `--entry-and-return`. What measuring \
               takes is in the first line of each, and not in the lines of single stages, which are differences between programs that \
               end with one stage and with the one before. What a round takes beyond these is the kernel's: its \
               breakpoints. The last lines are of programs that do one thing many times in a run: what it takes at least, with all \
               of it in the caches."
            .to_owned(),
        facts,
        ..Section::default()
    })
}

/// What is known of a number of frames, and what `free` takes, without what measuring does.
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
    add("a program that does nothing: what measuring takes", nothing.entry.figure());
    // What another C library's code does not allow cannot be measured with it.
    if whole.given.figure().is_some() {
        add("`malloc`, probed inside", whole.given.figure());
        let mut before = nothing.entry.median();
        for ((_, what), parts) in STAGES.iter().zip(&stages) {
            let median = parts.given.median();
            add(&format!("of that: {what}"), Some(Figure::of(median - before)));
            before = median;
        }
    }
    add("`free`: the block is taken out", whole.free.figure());
    add("with `--entry-and-return`: entry of `malloc`", apart.entry.figure());
    add("with `--entry-and-return`: return of `malloc`", apart.leave.figure());
    Ok((facts, whole.free.median() - nothing.entry.median()))
}

/// What single steps take, and what a round takes that does nothing else, but for `free`, of which that is known.
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
        facts.push(Fact::new(format!("at least: {what}"), "ns", Some(Figure::of(of_one(parts)))));
        // The copy has a buffer, and the words.
        if !matches!(step, Step::Claim | Step::Word) {
            round_ns += of_one(parts);
        }
    }
    let round = "at least: a round that does no more than that, with what `free` takes at 8 frames";
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
