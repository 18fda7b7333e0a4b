//! What `--max-overhead` takes of a process, by what the process has used without and with it.

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Calls, Environment};
use crate::timings::Timings;
use crate::tools::Jjleak;

/// In per cent of what the process uses itself.
const BOUNDS: [&str; 2] = ["20", "4"];
const TURNS: usize = 2;
/// A bound takes its time to be found out, and to be kept on average; what is used without one is the same at any time.
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
        // Seconds that it has used of each one.
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let run = |milliseconds: usize, jjleak: Option<&[&str]>| -> Result<f64> {
            let mut program = Calls::start(&Environment::new())?;
            let _at_work = jjleak.map(|arguments| Jjleak::attach(program.pid(), arguments)).transpose()?;
            Ok(program.pace(milliseconds)? / (milliseconds as f64 / 1000.))
        };
        let alone = run(steady_ms, None)?;
        cores.0.push(alone * 100.);
        let per_cent = |used: f64| (used / alone - 1.) * 100.;
        whole.0.push(per_cent(run(steady_ms, Some(&[]))?));
        for (bound, taken) in BOUNDS.iter().zip(&mut taken) {
            taken.0.push(per_cent(run(bounded_ms, Some(&["--max-overhead", bound]))?));
        }
    }
    let mut facts = vec![
        Fact::new("the program uses of a core", "%", cores.figure()),
        Fact::new("counting everything takes, of that", "%", whole.figure()),
    ];
    for (bound, taken) in BOUNDS.iter().zip(&taken) {
        facts.push(Fact::new(format!("`--max-overhead {bound}` takes, of that"), "%", taken.figure()));
    }
    Ok(Section {
        title: "Below a bound".to_owned(),
        says: "A program makes 60 pairs of `malloc` and `free` each millisecond, for 25 seconds below a bound and 5 else, and rests in between. What it has used \
               by its own CPU clock, beyond what it uses alone: breakpoints, programs, and whatever the caches of the processor make \
               of both. jjleak is attached just before. Of a run that is longer, the bound is kept better: finding out that not \
               everything can be counted is the dearest."
            .to_owned(),
        facts,
        ..Section::default()
    })
}
