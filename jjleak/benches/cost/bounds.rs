//! What `--max-overhead` takes of a process, by what the process has used without and with it.

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Calls, Environment};
use crate::timings::Timings;
use crate::tools::Jjleak;

/// In per cent of what the process uses itself.
const BOUNDS: [&str; 2] = ["20", "4"];
const TURNS: usize = 3;
const MILLISECONDS: usize = 25_000;

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let milliseconds = options.choose(MILLISECONDS, 1_000);
    let mut taken: [Timings; BOUNDS.len()] = Default::default();
    let mut whole = Timings::default();
    let mut cores = Timings::default();
    for _ in 0..options.choose(TURNS, 1) {
        // A program of its own for each: what a JIT or a heap has become is the same for all.
        let run = |jjleak: Option<&[&str]>| -> Result<f64> {
            let mut program = Calls::start(&Environment::new())?;
            let _at_work = jjleak.map(|arguments| Jjleak::attach(program.pid(), arguments)).transpose()?;
            program.pace(milliseconds)
        };
        let alone_s = run(None)?;
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        cores.0.push(alone_s / (milliseconds as f64 / 1000.) * 100.);
        let per_cent = |used_s: f64| (used_s / alone_s - 1.) * 100.;
        whole.0.push(per_cent(run(Some(&[]))?));
        for (bound, taken) in BOUNDS.iter().zip(&mut taken) {
            taken.0.push(per_cent(run(Some(&["--max-overhead", bound]))?));
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
        says: "A program makes 60 pairs of `malloc` and `free` each millisecond, for 25 seconds, and rests in between. What it has used \
               by its own CPU clock, beyond what it uses alone: breakpoints, programs, and whatever the caches of the processor make \
               of both. jjleak is attached just before. Of a run that is longer, the bound is kept better: finding out that not \
               everything can be counted is the dearest."
            .to_owned(),
        facts,
        ..Section::default()
    })
}
