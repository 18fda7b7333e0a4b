//! What `--max-overhead` takes of a process, by what the process has used without and with it.

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Calls, Environment, Paced};
use crate::timings::Timings;
use crate::tools::Jjleak;

/// In per cent of what the process uses itself.
const BOUNDS: [&str; 2] = ["20", "4"];
const TURNS: usize = 3;
/// A bound is kept over spans of ten seconds; what is used without one is the same at any time.
const BOUNDED_MS: usize = 25_000;
const STEADY_MS: usize = 5_000;

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let steady_ms = options.choose(STEADY_MS, 1_000);
    let bounded_ms = options.choose(BOUNDED_MS, 1_000);
    let mut taken: [Timings; BOUNDS.len()] = Default::default();
    let mut whole = Timings::default();
    let mut cores = Timings::default();
    for _ in 0..options.choose(TURNS, 1) {
        // A program of its own for each: what a JIT or a heap has become is the same for all.
        let run = |milliseconds: usize, jjleak: Option<&[&str]>| -> Result<Paced> {
            let mut program = Calls::start(&Environment::new())?;
            let _at_work = jjleak.map(|arguments| Jjleak::attach(program.pid(), arguments)).transpose()?;
            program.pace(milliseconds)
        };
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let seconds = |milliseconds: usize| milliseconds as f64 / 1000.;
        let alone = run(steady_ms, None)?;
        cores.0.push(alone.used_s / seconds(steady_ms) * 100.);
        // What calls take themselves is the same at any time; what the process takes to sleep and wake up is not, and is
        // several times as much.
        let per_cent = |milliseconds: usize, with: Paced| {
            let calls_s = alone.in_calls_s * seconds(milliseconds) / seconds(steady_ms);
            let taken_s = with.in_calls_s - calls_s;
            taken_s / (with.used_s - taken_s) * 100.
        };
        whole.0.push(per_cent(steady_ms, run(steady_ms, Some(&[]))?));
        for (bound, taken) in BOUNDS.iter().zip(&mut taken) {
            taken.0.push(per_cent(bounded_ms, run(bounded_ms, Some(&["--max-overhead", bound]))?));
        }
    }
    let mut facts = vec![
        Fact::new("the program uses of a core", "%", cores.figure()),
        Fact::new("counting everything takes, of that", "%", whole.figure()),
    ];
    for (bound, taken) in BOUNDS.iter().zip(&taken) {
        let fact = Fact::new(format!("`--max-overhead {bound}` takes, of that"), "%", taken.figure());
        // The milliseconds of the beginning are much of a quick run.
        facts.push(if options.quick { fact } else { fact.at_most(bound.parse()?) });
    }
    Ok(Section {
        title: "Below a bound".to_owned(),
        says: "A program makes 60 pairs of `malloc` and `free` each millisecond, for 25 seconds below a bound and 5 else, and rests in between. \
               jjleak is attached just before. What its calls have taken by its own CPU clock beyond what they take alone: breakpoints, \
               programs, and whatever the caches of the processor make of both; as a share of all else that it has used in the same \
               run."
            .to_owned(),
        facts,
        ..Section::default()
    })
}
