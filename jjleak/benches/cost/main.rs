//! Benchmark of jjleak's cost beside bare probes and other tools: allocator calls, real programs, stacks, snapshots, the
//! live view, attaching, and the daemon.
//!
//! All tools run the same programs in turns, so that other load affects them equally. Figures are medians; noisy tables get
//! more turns. `cargo xtask bench` runs it and stores the output.

#![expect(clippy::print_stdout, reason = "prints its tables")]

mod attached;
mod bounds;
mod daemon;
mod dumps;
mod estimates;
mod growth;
mod java;
mod machine;
mod matrix;
mod names;
mod objects;
mod options;
mod own;
mod page;
mod report;
mod rows;
mod sites;
mod snapshots;
mod stacks;
mod stages;
mod subjects;
mod timings;
mod tools;
mod views;

use std::error::Error;
use std::fs;
use std::path::Path;

use options::Options;
use report::{Report, Section};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A part of the benchmark.
struct Part {
    /// Name for `--only`.
    name: &'static str,
    measure: fn(&Options) -> Result<Section>,
}

const PARTS: [Part; 18] = [
    Part { name: "calls", measure: matrix::calls },
    Part { name: "programs", measure: matrix::programs },
    Part { name: "stages", measure: stages::measure },
    Part { name: "stacks", measure: stacks::measure },
    Part { name: "rows", measure: rows::measure },
    Part { name: "sites", measure: sites::measure },
    Part { name: "bounds", measure: bounds::measure },
    Part { name: "estimates", measure: estimates::measure },
    Part { name: "snapshots", measure: snapshots::measure },
    Part { name: "samples", measure: matrix::samples },
    Part { name: "names", measure: names::measure },
    Part { name: "views", measure: views::measure },
    Part { name: "jvm", measure: java::measure },
    Part { name: "objects", measure: objects::measure },
    Part { name: "growth", measure: growth::measure },
    Part { name: "daemon", measure: daemon::measure },
    Part { name: "own", measure: own::measure },
    Part { name: "dumps", measure: dumps::measure },
];

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let parts = PARTS.map(|part| part.name);
    if let Some(only) = options.unknown(parts) {
        return Err(format!("unknown part {only:?}; available: {}", parts.join(", ")).into());
    }
    jjleak::attach::preflight()?;
    let mut report = Report::begin(&options);
    for part in PARTS.iter().filter(|part| options.wants(part.name)) {
        say(&format!("measuring {}", part.name));
        let section = match (part.measure)(&options) {
            Ok(section) => section,
            // The other parts do not depend on it.
            Err(error) => Section::failed(part.name, &error.to_string()),
        };
        println!("{}", page::section(&section));
        report.sections.push(section);
    }
    report.end();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("benchmarks");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("cost.json"), serde_json::to_string_pretty(&report)? + "\n")?;
    fs::write(folder.join("cost.md"), page::page(&report))?;
    println!("wrote cost.md and cost.json to {}", folder.display());
    for why in report.sections.iter().filter_map(|section| section.failure.as_deref()) {
        say(&format!("not measured: {why}"));
    }
    if report.is_noisy() {
        say("the machine is noisy: repeat the benchmark when it is idle");
    }
    Ok(())
}

/// Prints progress.
#[expect(clippy::print_stderr, reason = "prints progress")]
fn say(what: &str) {
    eprintln!("bench: {what}");
}
