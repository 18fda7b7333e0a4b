//! What each of jjleak's programs takes of a call, as the kernel measures it.

use jjleak::allocators::CallFollowing;
use jjleak::attach::{Measuring, Programs, Runs, RunsByPart};

use crate::Result;
use crate::attached::{Attached, Sites};
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Calls, Environment, Micro};
use crate::timings::Timings;

const FRAMES: [u32; 3] = [8, 27, 67];
const TURNS: usize = 7;
const ROUNDS: usize = 20_000;

/// Of the parts of a call, in nanoseconds.
#[derive(Default)]
struct Stages {
    entry: Timings,
    leave: Timings,
    free: Timings,
}

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let mut program = Calls::start(&Environment::new())?;
    let mut facts = Vec::new();
    for frames in FRAMES {
        let mut of = |programs| stages(&mut program, programs, frames, options);
        let nothing = of(Programs::Bare)?;
        let all = of(Programs::Accounting)?;
        let mut add = |what: &str, timings: &Timings| {
            let what = format!("{what}, {frames} frames");
            facts.push(Fact::new(what, "ns", timings.figure()));
        };
        add("a program that does nothing: what measuring takes", &nothing.entry);
        add("entry of `malloc`: arguments, the stack, the pending call", &all.entry);
        add("return of `malloc`: the block is entered", &all.leave);
        add("`free`: the block is taken out", &all.free);
    }
    Ok(Section {
        title: "Where the time goes".to_owned(),
        says: "Run time statistics of the kernel (`BPF_ENABLE_STATS`), for each of the three programs that run in a round of \
               `malloc(64)` and `free`. They take some ten nanoseconds themselves, which are in each line. What a round \
               takes beyond these is the kernel's: three breakpoints."
            .to_owned(),
        facts,
        ..Section::default()
    })
}

fn stages(program: &mut Calls, programs: Programs, frames: u32, options: &Options) -> Result<Stages> {
    let attached = Attached::to(program.pid(), programs, Sites::Chosen(CallFollowing::EntryAndReturn))?;
    let _measuring = Measuring::begin()?;
    let mut stages = Stages::default();
    for _ in 0..options.choose(TURNS, 1) {
        let before = attached.attachment.runs();
        program.time(Micro::of_frames(frames), options.choose(ROUNDS, 1_000))?;
        let RunsByPart { entries, returns, frees } = attached.attachment.runs().since(before);
        let mean = |runs: Runs| runs.mean_ns().into_iter();
        stages.entry.0.extend(mean(entries));
        stages.leave.0.extend(mean(returns));
        stages.free.0.extend(mean(frees));
    }
    Ok(stages)
}
