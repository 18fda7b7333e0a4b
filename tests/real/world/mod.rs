//! The world: third-party programs, compared with oracles that share no code with jjleak.
//!
//! Each program of [`table`] runs alone; under jjleak for a first time, with empty caches; a second time; and once more with a
//! preloaded counter ([`oracle`]), so that jjleak and the counter see the same processes. [`judgement`] finds deviations, and
//! [`page`] writes the table in the repository. `cargo xtask world` runs all of them, `cargo xtask test` a few.

mod judgement;
mod oracle;
mod page;
mod profile;
mod runs;
mod surroundings;
mod table;

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use judgement::Judgement;
use runs::Measured;
use surroundings::Surroundings;
use table::{Program, programs};

use crate::support::jjleak::PROGRAM;
use crate::support::privilege::{record, require_bpf, skip};
use crate::support::probes;

/// Environment variable set by `cargo xtask world`: runs all programs, and writes the page. With names, one per line, runs only
/// these, and writes no page.
const WORLD: &str = "JJLEAK_WORLD";
/// Environment variable with the jjleak to measure, if it is not the one that cargo has built for tests.
const BINARY: &str = "JJLEAK_WORLD_BINARY";
/// Value of [`WORLD`] for all programs.
const ALL: &str = "all";

/// Runs a program in all ways. Returns a panic's message if it cannot be run.
fn measured(program: &Program, jjleak: &std::path::Path) -> Result<Measured, String> {
    // Its probes are in files that all processes map.
    let _everywhere = probes::everywhere();
    catch_unwind(AssertUnwindSafe(|| runs::measure(program, &Surroundings::of(program), jjleak))).map_err(
        |panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
        },
    )
}

#[test]
fn every_program_of_the_world_is_counted_as_its_oracle_counts() {
    let Ok(wanted) = env::var(WORLD) else {
        fn here() {}
        record(std::any::type_name_of_val(&here), "`cargo xtask world` installs what it needs, and runs it");
        return;
    };
    require_bpf!();
    let jjleak = env::var_os(BINARY).map_or_else(|| PathBuf::from(PROGRAM), PathBuf::from);
    let is_wanted = |program: &&Program| wanted == ALL || wanted.lines().any(|name| name == program.name);
    let judgements: Vec<_> = programs()
        .filter(is_wanted)
        .map(|program| {
            let judgement = Judgement::of(program, measured(program, &jjleak));
            println!("{}", judgement.line());
            judgement
        })
        .collect();
    assert!(!judgements.is_empty(), "no program is called {wanted:?}");
    if wanted == ALL {
        page::write(&judgements);
    }
    let failed: Vec<_> = judgements.iter().filter(|it| it.has_failed()).map(Judgement::line).collect();
    assert!(failed.is_empty(), "{} programs are not as they should be:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn a_dozen_programs_of_the_world_are_counted_as_their_oracles_count() {
    require_bpf!();
    let mut failed = Vec::new();
    for program in programs().filter(|program| program.is_in_tests) {
        if let Some(lack) = surroundings::lack(program) {
            fn here() {}
            skip(std::any::type_name_of_val(&here), &format!("{}: {lack}", program.name));
            continue;
        }
        let judgement = Judgement::of(program, measured(program, &PathBuf::from(PROGRAM)));
        println!("{}", judgement.line());
        failed.extend(judgement.has_failed().then(|| judgement.line()));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
