//! Time to compile a file's call frame information into unwind rows.

use std::fs;
use std::path::Path;
use std::time::Instant;

use jjleak::unwind;

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::timings::Timings;

/// Paths on Debian.
const FILES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
    "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
];
const TIMINGS: usize = 7;

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let mut facts = Vec::new();
    for path in FILES.map(Path::new) {
        let Ok(elf) = fs::read(path) else { continue };
        let mut timings = Timings::default();
        let mut count = 0;
        for _ in 0..options.choose(TIMINGS, 1) {
            let begin = Instant::now();
            count = unwind::compile(&*elf)?.rows().len();
            timings.0.push(begin.elapsed().as_secs_f64() * 1000.0);
        }
        let name = path.file_name().unwrap_or_default().display();
        facts.push(Fact::new(format!("{name}, {count} rows"), "ms", timings.figure()));
    }
    Ok(Section {
        title: "Unwind rows".to_owned(),
        says: "Time to compile them: once per file, because they are cached on disk.".to_owned(),
        facts,
        ..Section::default()
    })
}
