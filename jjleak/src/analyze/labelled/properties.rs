//! Properties of all verdicts.

use proptest::prelude::*;

use super::kinds::KINDS;
use super::simulation::{Block, Random, Run};
use crate::analyze::{History, Pace};
use crate::profile::{BlockDetails, Cohort, Profile, StackProfile, Totals, VerdictKind};
use crate::render::sample;

fn run() -> Run {
    Run { duration: 600., interval: 10., settle: 15., combined: false, weight: None, threads: 0. }
}

/// The blocks of one of the kinds.
fn blocks() -> impl Strategy<Value = Vec<Block>> {
    (prop::sample::select(KINDS.iter().collect::<Vec<_>>()), any::<u64>())
        .prop_map(|(kind, seed)| (kind.blocks)(&mut Random::new(seed, kind.name), run().duration))
}

fn stretched(blocks: &[Block], factor: f64) -> Vec<Block> {
    let stretch = |block: &Block| Block { born: block.born * factor, dies: block.dies * factor, ..*block };
    blocks.iter().map(stretch).collect()
}

/// Profiles of anything at all.
fn nonsense() -> impl Strategy<Value = Vec<Profile>> {
    let totals = (any::<u64>(), any::<u64>()).prop_map(|(bytes, objects)| Totals { bytes, objects });
    let cohort = (any::<u16>(), totals.clone()).prop_map(|(interval, live)| Cohort { interval, live });
    let stack = (0..4_u64, totals.clone(), totals, prop::collection::vec(cohort, 0..4));
    let stack = stack.prop_map(|(id, live, allocated, cohorts)| StackProfile {
        id,
        live,
        allocated,
        details: BlockDetails { cohorts: cohorts.into(), ..BlockDetails::default() }.into(),
        ..sample::empty_stack()
    });
    let instants = prop::collection::btree_set(any::<u64>(), 0..6);
    let profile = (prop::collection::vec(stack, 0..4), instants, any::<bool>(), 0..40_u64);
    let profile = profile.prop_map(|(stacks, instants, combined, settle)| {
        let mut profile = sample::empty_profile();
        profile.stacks = stacks;
        profile.instants_ns = instants.into_iter().collect();
        profile.coverage.combined = combined;
        profile.coverage.settle = std::time::Duration::from_secs(settle);
        profile
    });
    prop::collection::vec(profile, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn verdicts_do_not_depend_on_the_time_scale(
        blocks in blocks(),
        // Powers of two, so that rounding moves no time across an instant.
        factor in prop::sample::select(vec![0.25, 0.5, 2., 8., 64., 1024.]),
    ) {
        let Run { duration, interval, settle, .. } = run();
        let slow = Run { duration: duration * factor, interval: interval * factor, settle: settle * factor, combined: false, weight: None, threads: 0. };
        let (as_is, stretched) = (run().verdict(blocks.clone()), slow.verdict(stretched(&blocks, factor)));
        prop_assert_eq!(as_is.is_some(), stretched.is_some());
        if let (Some(as_is), Some(stretched)) = (as_is, stretched) {
            prop_assert_eq!(as_is.kind, stretched.kind);
            if let (Some(rate), Some(slower)) = (as_is.rate, stretched.rate) {
                prop_assert!((slower.per_second * factor / rate.per_second - 1.).abs() < 0.02);
            }
        }
    }

    #[test]
    fn call_sites_are_judged_each_by_itself_whatever_the_order(one in blocks(), other in blocks()) {
        let kinds = |sites: Vec<Vec<Block>>| {
            let mut kinds: Vec<_> = run().verdicts(sites).iter().map(|verdict| verdict.kind).collect();
            kinds.sort();
            kinds
        };
        let both = kinds(vec![one.clone(), other.clone()]);
        prop_assert_eq!(&both, &kinds(vec![other.clone(), one.clone()]));
        let mut alone = [kinds(vec![one]), kinds(vec![other])].concat();
        alone.sort();
        prop_assert_eq!(both, alone);
    }

    #[test]
    fn what_leaks_more_leaks_and_faster(count in 100..1000_u64, times in 2..10_u64) {
        let leak = |times: u64| (0..count).map(move |number| Block {
            born: 600. * number as f64 / count as f64,
            dies: f64::INFINITY,
            size: 64,
            count: times,
        });
        let [less, more] = [1, times].map(|times| run().verdict(leak(times).collect()).unwrap());
        prop_assert_eq!((less.kind, more.kind), (VerdictKind::Leaking, VerdictKind::Leaking));
        let ratio = more.rate.unwrap().per_second / less.rate.unwrap().per_second;
        prop_assert!((ratio / times as f64 - 1.).abs() < 0.01, "{ratio}");
    }

    #[test]
    fn churn_beside_a_leak_at_the_same_place_changes_nothing(count in 50..500_u64, seed in any::<u64>()) {
        let leak = (0..count).map(move |number| Block {
            born: 600. * number as f64 / count as f64,
            dies: f64::INFINITY,
            size: 16,
            count: 1,
        });
        let mut random = Random::new(seed, "churn");
        let churn = random.times(0. ..600., 3000.).into_iter().map(|born| Block {
            born,
            dies: born + 3.,
            size: 1 << 20,
            count: 1000,
        });
        let alone = run().verdict(leak.clone().collect()).unwrap();
        let beside = run().verdict(leak.chain(churn).collect()).unwrap();
        prop_assert_eq!((alone.kind, beside.kind), (VerdictKind::Leaking, VerdictKind::Leaking));
        prop_assert_eq!(alone.rate, beside.rate);
    }

    #[test]
    fn invalid_profiles_are_judged_without_invalid_figures(profiles in nonsense()) {
        let mut history = History::default();
        for profile in profiles {
            for verdict in history.observe(&profile, Pace::Thorough) {
                prop_assert!((0. ..=1.).contains(&verdict.confidence), "{verdict:?}");
                prop_assert!(verdict.rate.is_none_or(|rate| {
                    rate.per_second.is_finite() && rate.low <= rate.per_second && rate.per_second <= rate.high
                }), "{verdict:?}");
            }
        }
    }
}

/// Not a test of anything but for whoever wants to know: what a profile of ten thousand call sites costs.
#[test]
#[ignore = "prints a duration"]
fn ten_thousand_call_sites() {
    let sites: Vec<Vec<Block>> = (0..10_000)
        .map(|site| {
            let block = |number: u32| Block {
                born: f64::from(number) * 12. + f64::from(site % 7),
                dies: if site % 3 == 0 { f64::INFINITY } else { f64::from(number) * 12. + 20. },
                size: 64,
                count: 1,
            };
            (0..50).map(block).collect()
        })
        .collect();
    let run = Run { duration: 600., interval: 10., settle: 15., combined: false, weight: None, threads: 0. };
    let (verdicts, spent) = run.timed(sites);
    println!("{} verdicts, {:?} a profile", verdicts.len(), spent / 60);
}
