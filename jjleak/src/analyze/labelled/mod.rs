//! Accuracy of verdicts on labelled histories: synthetic call sites of many kinds, many of each.
//!
//! `cargo xtask verdicts` prints the table; `JJLEAK_VERDICT_SEEDS` sets the number per kind.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures of a simulation are small"
)]
#![expect(clippy::print_stdout, reason = "the table is there to be read")]

mod agreement;
mod attached;
mod kinds;
mod properties;
mod simulation;
mod table;

use crate::profile::{Verdict, VerdictKind};
use attached::ATTACHED;
use kinds::{KINDS, Kind};
use simulation::{Random, Run};
use table::Table;

/// Runs of each kind, unless the environment says how many: enough for the table to be about right.
const SEEDS: u64 = 4;

/// Minimum of precision and of recall.
const REQUIRED: f64 = 0.95;

/// Verdict on one run of a kind.
fn judge(kind: &Kind, seed: u64, combined: bool) -> VerdictKind {
    verdict(kind, seed, combined).map_or(VerdictKind::SteadyChurn, |verdict| verdict.kind)
}

/// The same, with its evidence; `None` for a site that holds nothing.
fn verdict(kind: &Kind, seed: u64, combined: bool) -> Option<Verdict> {
    let mut random = Random::new(seed, kind.name);
    let run = Run { combined, ..Run::random(kind.span.clone(), &mut random) };
    let run = Run { threads: (kind.threads)(&mut random), ..run };
    let blocks = (kind.blocks)(&mut random, run.duration);
    let beside = (kind.beside)(&mut random, run.duration);
    run.verdict_beside(blocks, beside)
}

/// Accuracy over all kinds.
fn judged(combined: bool) -> Table {
    let seeds =
        std::env::var("JJLEAK_VERDICT_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let mut table = Table::default();
    for kind in KINDS.iter().chain(ATTACHED) {
        for seed in 0..seeds {
            table.add(kind, judge(kind, seed, combined));
        }
    }
    println!("{table}");
    table
}

#[test]
fn verdicts_on_labelled_histories_are_precise_and_complete() {
    let table = judged(false);
    for verdict in VerdictKind::ALL {
        let (precision, recall) = (table.precision(verdict), table.recall(verdict));
        assert!(
            precision >= REQUIRED && recall >= REQUIRED,
            "{}: {precision} {recall}\n{table}",
            verdict.name()
        );
    }
}

/// Without ages, many kinds look alike; but a site called leaking must leak.
#[test]
fn leaks_on_labelled_histories_are_leaks_without_ages_too() {
    let table = judged(true);
    let precision = table.precision(VerdictKind::Leaking);
    assert!(precision >= REQUIRED, "{precision}\n{table}");
}
