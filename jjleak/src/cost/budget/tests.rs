use super::*;

#[test]
fn a_quiet_day_is_no_licence_for_an_hour() {
    let mut budget = Budget::new(0.05);
    budget.book(Stretch { over_s: 86_400., own_s: 8_640., spent_s: 0. });
    assert!(budget.saved_s() <= 0.05 * SAVED_S, "{budget:?}");
    budget.book(Stretch { over_s: 1., own_s: 1., spent_s: 0.2 });
    assert!(budget.is_exceeded());
}

#[test]
fn who_is_patient_has_everything_counted_through_a_busy_moment_and_owes_nothing_after_it() {
    let moment = Stretch { over_s: 1., own_s: 0.02, spent_s: 0.7 };
    let (mut strict, mut patient) = (Budget::new(0.1), Budget::patient(0.1));
    strict.book(moment);
    patient.book(moment);
    assert!(strict.is_exceeded() && !patient.is_exceeded());
    patient.book(moment);
    assert!(patient.is_exceeded());
    strict.settle();
    patient.settle();
    assert!(strict.saved_s() < -0.2 && patient.saved_s() >= 0.);
}

const LOAD: Load = Load { allocations: 0.07, frees: 0.04, own: 0.03, turn_s: 0.000_3 };

#[test]
fn debts_are_not_forgotten() {
    let target = Duration::from_secs(1);
    let (even, owing) = (LOAD.plan(0.2, 0., target), LOAD.plan(0.2, -0.6, target));
    let longer_s = owing.stratum.as_secs_f64() - even.stratum.as_secs_f64();
    assert!((longer_s - 0.6 / (0.2 * 0.03)).abs() < 1e-6, "{even:?}, {owing:?}");
}

#[test]
fn what_is_saved_shortens_no_stratum_below_what_its_window_takes_to_earn() {
    let stratum_s = |saved_s| LOAD.plan(0.2, saved_s, TARGET).stratum.as_secs_f64();
    let rich_s = stratum_s(1.);
    assert!((rich_s - TARGET.as_secs_f64()).abs() < 0.1, "{rich_s}");
    assert!(stratum_s(0.) > rich_s);
}

#[test]
fn frees_that_cost_more_than_is_allowed_rest_too() {
    let load = Load { allocations: 0.1, frees: 0.5, own: 0.3, ..LOAD };
    let plan = load.plan(0.05, 0., TARGET);
    assert!(plan.follow < plan.stratum / 10, "{plan:?}");
    let light = Load { frees: 0.005, ..load };
    assert_eq!(light.plan(0.05, 0., TARGET).follow, Duration::MAX);
}
