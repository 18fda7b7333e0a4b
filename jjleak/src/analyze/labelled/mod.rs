//! Pasts whose verdict is known: synthetic call sites of many kinds, many of each, and how often they are judged rightly.
//!
//! `cargo xtask verdicts` prints the table; `JJLEAK_VERDICT_SEEDS` says how many of each kind.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures of a simulation are small"
)]
#![expect(clippy::print_stdout, reason = "the table is there to be read")]

mod kinds;
mod properties;
mod simulation;
mod table;

use crate::profile::VerdictKind;
use kinds::{KINDS, Kind};
use simulation::{Draw, Run};
use table::Table;

/// Runs of each kind, unless the environment says how many: enough for the table to be about right.
const SEEDS: u64 = 4;

/// What precision and recall have to be at least.
const REQUIRED: f64 = 0.95;

/// The verdict on one run of a kind.
fn judge(kind: &Kind, seed: u64) -> VerdictKind {
    let mut draw = Draw::new(seed, kind.name);
    let run = Run::drawn(kind.span.clone(), &mut draw);
    let blocks = (kind.blocks)(&mut draw, run.duration);
    run.verdict(blocks).map_or(VerdictKind::SteadyChurn, |verdict| verdict.kind)
}

#[test]
fn verdicts_on_labelled_pasts_are_precise_and_complete() {
    let seeds =
        std::env::var("JJLEAK_VERDICT_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let mut table = Table::default();
    for kind in KINDS {
        for seed in 0..seeds {
            table.add(kind, judge(kind, seed));
        }
    }
    println!("{table}");
    for verdict in VerdictKind::ALL {
        let (precision, recall) = (table.precision(verdict), table.recall(verdict));
        assert!(
            precision >= REQUIRED && recall >= REQUIRED,
            "{}: {precision} {recall}\n{table}",
            verdict.name()
        );
    }
}
