//! Time of naming new stacks: with symbols read by a child, beside symbols read in jjleak itself.

use std::path::Path;
use std::time::Instant;

use fastrand::Rng;
use jjleak::processes::{Mapping, ModuleFiles, ModuleTable, Pid};
use jjleak::snapshot::{FoundMappings, RawStack};
use jjleak::symbolize::{StackNames, Symbolizer};
use jjleak_common::stack::{StackFrame, StackStatus};

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::timings::Timings;

const TURNS: usize = 7;
/// Number of stacks, and of different places in all of them: as in a large program with debug information.
const STACKS: u32 = 10_000;
const PLACES: usize = 10_000;
/// Number of frames of a stack.
const FRAMES: usize = 64;
const WANTED_RATIO: f64 = 1.1;

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let pid = Pid::new(std::process::id()).ok_or("PID 0")?;
    let mappings = Mapping::all(pid)?;
    let mut modules = ModuleTable::default();
    modules.refresh(&mut ModuleFiles::default(), pid, &mappings);
    let stacks = stacks(&mappings)?;
    let (mut here, mut child, mut ratios) = (Timings::default(), Timings::default(), Timings::default());
    for _ in 0..options.choose(TURNS, 1) {
        let here_ms = time_ms(Symbolizer::in_process(), &modules, &stacks);
        let program = Path::new(env!("CARGO_BIN_EXE_jjleak"));
        let child_ms = time_ms(Symbolizer::in_child(program), &modules, &stacks);
        here.0.push(here_ms);
        child.0.push(child_ms);
        ratios.0.push(child_ms / here_ms);
    }
    let facts = vec![
        Fact::new("symbols read in jjleak itself", "ms", here.figure()),
        Fact::new("symbols read by a child, with its start", "ms", child.figure()),
        Fact::new("the child beside jjleak itself", "x", ratios.figure()).at_most(WANTED_RATIO),
    ];
    Ok(Section {
        title: "Names".to_owned(),
        says: format!(
            "Time to name {STACKS} stacks of {FRAMES} frames with {PLACES} different places in this benchmark's own program \
             and libraries, from the first byte of debug information on."
        ),
        facts,
        ..Section::default()
    })
}

/// Stacks of places in the code of this process.
fn stacks(mappings: &[Mapping]) -> Result<Vec<RawStack>> {
    let mut random = Rng::with_seed(1);
    let code: Vec<_> =
        mappings.iter().filter(|mapping| mapping.executable && mapping.file.is_some()).collect();
    if code.is_empty() {
        return Err("this process maps no code".into());
    }
    let place = |random: &mut Rng| {
        let mapping = &code[random.usize(..code.len())];
        StackFrame::new(random.u64(mapping.addresses.clone()), 0)
    };
    let places: Vec<_> = (0..PLACES).map(|_| place(&mut random)).collect();
    let stack = |_| RawStack {
        status: StackStatus::Complete,
        found: FoundMappings::default(),
        thread: 0,
        frames: (0..FRAMES).map(|_| places[random.usize(..PLACES)]).collect(),
    };
    Ok((0..STACKS).map(stack).collect())
}

fn time_ms(symbolizer: Symbolizer, modules: &ModuleTable, stacks: &[RawStack]) -> f64 {
    let mut names = StackNames::new(symbolizer);
    let begin = Instant::now();
    let mut names = names.of_process(modules);
    names.look_up(0..STACKS, |row| Some(&stacks[row as usize]));
    for row in 0..STACKS {
        names.name(row, || Some(stacks[row as usize].clone()));
    }
    begin.elapsed().as_secs_f64() * 1e3
}
