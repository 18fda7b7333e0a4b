//! Time to find the probe sites of the C library.

use std::fs;
use std::time::Instant;

use jjleak::allocators::{CallFollowing, Hints, find_sites};

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::LIBC;
use crate::timings::Timings;

const TIMINGS: usize = 9;

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let elf = fs::read(LIBC)?;
    let time = |following| -> Result<Timings> {
        let mut timings = Timings::default();
        for _ in 0..options.choose(TIMINGS, 1) {
            let begin = Instant::now();
            find_sites(&elf, Hints { following, ..Hints::default() })?;
            timings.0.push(begin.elapsed().as_secs_f64() * 1000.0);
        }
        Ok(timings)
    };
    let fact =
        |what: &str, following| -> Result<Fact> { Ok(Fact::new(what, "ms", time(following)?.figure())) };
    let facts = vec![
        fact("at entry and return", CallFollowing::EntryAndReturn)?,
        fact("inside `malloc`, with the proof that the probe sees every call", CallFollowing::Inside)?,
    ];
    Ok(Section {
        title: "Probe sites".to_owned(),
        says: "Time to find and disassemble the C library's functions: once per mapped file.".to_owned(),
        facts,
        ..Section::default()
    })
}
