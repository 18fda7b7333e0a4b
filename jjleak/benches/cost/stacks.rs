//! Cost of a stack by jjleak's unwinder and by the kernel's.

use jjleak::allocators::CallFollowing;
use jjleak::attach::Programs;

use crate::Result;
use crate::attached::{Attached, Sites};
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Calls, Environment, Micro};
use crate::timings::{Figure, Timings};

/// Numbers of frames, and maximum cost relative to the kernel's unwinder.
const WANTED: [(u32, f64); 3] = [(8, 0.5), (23, 0.42), (63, 0.35)];
const TURNS: usize = 3;
const TIMINGS: usize = 7;
const ROUNDS: usize = 10_000;

/// The program has frame pointers, which the kernel's unwinder needs.
pub(crate) fn measure(options: &Options) -> Result<Section> {
    let mut program = Calls::start(&Environment::new())?;
    let mut facts = Vec::new();
    for (frames, wanted) in WANTED {
        let kinds = [Programs::Bare, Programs::KernelStacks, Programs::Stacks];
        let mut all: [Timings; 3] = Default::default();
        for _ in 0..options.choose(TURNS, 1) {
            for (programs, timings) in kinds.iter().zip(&mut all) {
                // The kernel's unwinder needs frame pointers, which malloc's code does not keep.
                let sites = Sites::Chosen(CallFollowing::EntryAndReturn);
                let _attached = Attached::to(program.pid(), *programs, sites)?;
                for _ in 0..options.choose(TIMINGS, 1) {
                    let rounds = options.choose(ROUNDS, 500);
                    timings.0.push(program.time(Micro::of_frames(frames), rounds)?);
                }
            }
        }
        let [bare, kernel, own] = all;
        let beyond = |timings: &Timings| {
            let figure = timings.figure()?;
            Some(Figure { median: figure.median - bare.median(), ..figure })
        };
        let (kernel, own) = (beyond(&kernel), beyond(&own));
        let ratio = own.zip(kernel).map(|(own, kernel)| Figure::of(own.median / kernel.median));
        facts.push(Fact::new(format!("stack of {frames} frames: `bpf_get_stack`"), "ns", kernel));
        facts.push(Fact::new(format!("stack of {frames} frames: jjleak"), "ns", own));
        let what = format!("stack of {frames} frames: jjleak relative to `bpf_get_stack`");
        facts.push(Fact::new(what, "x", ratio).at_most(wanted));
    }
    facts.push(check(&mut program)?);
    Ok(Section {
        title: "Stacks".to_owned(),
        says: "Cost beyond bare probes, for a program with frame pointers, which the kernel's unwinder needs. It allocates \
               repeatedly from one place, like a loop. jjleak does not unwind again if the words of the stack are the same as in \
               an earlier walk; this case is measured."
            .to_owned(),
        facts,
        ..Section::default()
    })
}

/// Checks that stacks are complete, without which figures mean nothing.
fn check(program: &mut Calls) -> Result<Fact> {
    let (frames, _) = WANTED[2];
    let sites = Sites::Chosen(CallFollowing::EntryAndReturn);
    let mut attached = Attached::to(program.pid(), Programs::Accounting, sites)?;
    program.time(Micro::of_frames(frames), 100)?;
    let deepest = attached.deepest()?;
    if deepest < frames as usize - 1 {
        return Err(format!("incomplete stacks: {deepest} of {frames} frames").into());
    }
    #[expect(clippy::cast_precision_loss, reason = "a few frames")]
    Ok(Fact::new("depth of the deepest complete stack", "frames", Some(Figure::of(deepest as f64))))
}
