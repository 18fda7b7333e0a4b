//! Overhead with `--max-overhead`, from the CPU time of a process without and with jjleak.

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Calls, Environment, Paced};
use crate::timings::Timings;
use crate::tools::Jjleak;

/// In per cent of the process's own CPU time.
const BOUNDS: [&str; 2] = ["20", "4"];
const TURNS: usize = 3;
/// A bound holds over spans of ten seconds; without one, CPU usage is constant.
const BOUNDED_MS: usize = 25_000;
const STEADY_MS: usize = 5_000;

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let steady_ms = options.choose(STEADY_MS, 1_000);
    let bounded_ms = options.choose(BOUNDED_MS, 1_000);
    let mut taken: [Timings; BOUNDS.len()] = Default::default();
    let mut whole = Timings::default();
    let mut cores = Timings::default();
    for _ in 0..options.choose(TURNS, 1) {
        // A new process for each run, so that all begin in the same state.
        let run = |milliseconds: usize, jjleak: Option<&[&str]>| -> Result<Paced> {
            let mut program = Calls::start(&Environment::new())?;
            let _at_work = jjleak.map(|arguments| Jjleak::attach(program.pid(), arguments)).transpose()?;
            program.pace(milliseconds)
        };
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let seconds = |milliseconds: usize| milliseconds as f64 / 1000.;
        let alone = run(steady_ms, None)?;
        cores.0.push(alone.used_s / seconds(steady_ms) * 100.);
        // The time in calls is constant; that of sleeping and waking up varies, and is several times as long.
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
        Fact::new("CPU usage of the program alone (of one core)", "%", cores.figure()),
        Fact::new("overhead of counting everything", "%", whole.figure()),
    ];
    for (bound, taken) in BOUNDS.iter().zip(&taken) {
        let fact = Fact::new(format!("overhead with `--max-overhead {bound}`"), "%", taken.figure());
        // The first milliseconds dominate a quick run.
        facts.push(if options.quick { fact } else { fact.at_most(bound.parse()?) });
    }
    Ok(Section {
        title: "Bounded overhead".to_owned(),
        says: "A program makes 60 pairs of `malloc` and `free` each millisecond and sleeps in between, for 25 seconds with a \
               bound and 5 without. jjleak attaches just before. The overhead is what the calls take on the program's CPU clock \
               beyond their time without jjleak: breakpoints, BPF programs, and the effect of both on CPU caches. It is a share \
               of all other CPU time of the same run."
            .to_owned(),
        facts,
        ..Section::default()
    })
}
