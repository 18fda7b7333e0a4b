//! Time to read the accounting while the program runs.

use std::time::Instant;

use jjleak::allocators::CallFollowing;
use jjleak::attach::Programs;
use jjleak::collect::Collector;

use crate::Result;
use crate::attached::{Attached, Sites};
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::{Calls, Environment};
use crate::timings::Timings;

const STACKS: u32 = 10_000;
const TIMINGS: usize = 9;
const WANTED_MS: f64 = 50.;

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let blocks: u32 = if options.quick { 50_000 } else { 1_000_000 };
    let mut program = Calls::start(&Environment::new())?;
    let sites = Sites::Chosen(CallFollowing::EntryAndReturn);
    let mut attached = Attached::to(program.pid(), Programs::Accounting, sites)?;
    program.hold(blocks, STACKS)?;
    let mut collector = Collector::new(&mut attached.attachment)?;
    // The first one also receives the frames of the stacks.
    attached.snapshot(&mut collector)?;
    let mut timings = Timings::default();
    for _ in 0..options.choose(TIMINGS, 2) {
        let begun = Instant::now();
        let snapshot = attached.snapshot(&mut collector)?;
        timings.0.push(begun.elapsed().as_secs_f64() * 1000.);
        let objects: u64 = snapshot.stacks.iter().map(|(_, used)| used.live.objects).sum();
        if objects < blocks.into() {
            return Err(format!("read only {objects} of {blocks} blocks").into());
        }
    }
    let fact =
        Fact::new(format!("snapshot of {blocks} live blocks from {STACKS} stacks"), "ms", timings.figure());
    Ok(Section {
        title: "Snapshots".to_owned(),
        says: "The program keeps running during a snapshot.".to_owned(),
        facts: vec![fact.at_most(WANTED_MS)],
        ..Section::default()
    })
}
