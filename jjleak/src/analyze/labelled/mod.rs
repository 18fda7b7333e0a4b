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
use kinds::{KINDS, Kind, LONG, churn, leak};
use simulation::{Random, Run};
use table::Table;

/// Runs of each kind, unless the environment says how many: enough for the table to be about right.
const SEEDS: u64 = 4;

/// Minimum of precision and of recall.
const REQUIRED: f64 = 0.95;

/// Verdict on one run of a kind.
fn judge(kind: &Kind, seed: u64, figures: Figures) -> VerdictKind {
    verdict_from(kind, seed, figures).map_or(VerdictKind::SteadyChurn, |verdict| verdict.kind)
}

/// The same, with its evidence; `None` for a site that holds nothing.
fn verdict(kind: &Kind, seed: u64, combined: bool) -> Option<Verdict> {
    verdict_from(kind, seed, Figures { combined, weight: None })
}

/// Which figures verdicts are from.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// Ages are unknown.
    combined: bool,
    /// Allocations are counted in windows, and each counted one stands for so many.
    weight: Option<u32>,
}

fn verdict_from(kind: &Kind, seed: u64, Figures { combined, weight }: Figures) -> Option<Verdict> {
    let mut random = Random::new(seed, kind.name);
    let run = Run { combined, weight, ..Run::random(kind.span.clone(), &mut random) };
    let run = Run { threads: (kind.threads)(&mut random), ..run };
    let blocks = (kind.blocks)(&mut random, run.duration);
    let beside = (kind.beside)(&mut random, run.duration);
    run.verdict_beside(blocks, beside)
}

/// Accuracy over all kinds.
fn judged(figures: Figures) -> Table {
    // In windows, fewer runs are judged.
    let seeds = if figures.weight.is_some() { 3 * SEEDS } else { SEEDS };
    let seeds =
        std::env::var("JJLEAK_VERDICT_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(seeds);
    let mut table = Table::default();
    for kind in KINDS.iter().chain(ATTACHED) {
        for seed in 0..seeds {
            table.add(kind, judge(kind, seed, figures));
        }
    }
    println!("{table}");
    table
}

#[test]
fn verdicts_on_labelled_histories_are_precise_and_complete() {
    let table = judged(Figures { combined: false, weight: None });
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
    let table = judged(Figures { combined: true, weight: None });
    let precision = table.precision(VerdictKind::Leaking);
    assert!(precision >= REQUIRED, "{precision}\n{table}");
}

/// Weights of counted blocks at which call sites are judged.
const WEIGHTS: [u32; 3] = [2, 10, 20];

/// A site of which hardly anything is counted is not judged; but a site called leaking must leak.
#[test]
fn leaks_on_labelled_histories_are_leaks_in_windows_too() {
    for weight in WEIGHTS {
        let table = judged(Figures { combined: false, weight: Some(weight) });
        let precision = table.precision(VerdictKind::Leaking);
        assert!(precision >= REQUIRED, "{weight}: {precision}\n{table}");
    }
}

#[test]
fn leaks_of_which_enough_is_counted_in_windows_are_found() {
    /// Minimum share of them.
    const FOUND: f64 = 0.8;
    const RUNS: u64 = 20;
    for weight in [2, 10, 20, 50] {
        let leaking = (0..RUNS).filter(|seed| {
            let mut random = Random::new(*seed, "counted in windows");
            let run = Run { weight: Some(weight), ..Run::random(LONG, &mut random) };
            // Twice what a verdict takes.
            let blocks = 80. * f64::from(weight) * (f64::from(weight) / 10.).max(1.);
            let blocks = leak(&mut random, 0. ..run.duration, blocks..20. * blocks);
            let beside = churn(&mut random, 0. ..run.duration, 0.2, 10);
            let verdict = run.verdict_beside(blocks, beside);
            verdict.is_some_and(|verdict| verdict.kind == VerdictKind::Leaking)
        });
        let found = leaking.count() as f64 / RUNS as f64;
        assert!(found >= FOUND, "{weight}: {found}");
    }
}
