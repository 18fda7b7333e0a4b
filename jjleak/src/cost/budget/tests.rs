use super::*;

#[test]
fn savings_of_a_quiet_day_are_capped() {
    let mut budget = Budget::new(0.05);
    budget.charge(Stretch { over_s: 86_400., own_s: 8_640., spent_s: 0. });
    assert!(budget.saved_s() <= 0.05 * SAVED_S, "{budget:?}");
    budget.charge(Stretch { over_s: 1., own_s: 1., spent_s: 0.2 });
    assert!(budget.is_exceeded());
}

#[test]
fn a_patient_budget_tolerates_a_burst_and_forgives_its_debt() {
    let moment = Stretch { over_s: 1., own_s: 0.02, spent_s: 0.7 };
    let (mut strict, mut patient) = (Budget::new(0.1), Budget::patient(0.1));
    strict.charge(moment);
    patient.charge(moment);
    assert!(strict.is_exceeded() && !patient.is_exceeded());
    patient.charge(moment);
    assert!(patient.is_exceeded());
    strict.enter_windows();
    patient.enter_windows();
    assert!(strict.saved_s() < -0.2 && patient.saved_s() >= 0.);
}

const LOAD: Load = Load { allocations: 0.07, frees: 0.04, own: 0.03, switch_s: 0.000_3 };

#[test]
fn a_debt_lengthens_the_stratum_until_it_is_repaid() {
    let interval = Duration::from_secs(1);
    let (even, owing) = (LOAD.plan(0.2, 0., interval), LOAD.plan(0.2, -0.6, interval));
    let longer_s = owing.stratum.as_secs_f64() - even.stratum.as_secs_f64();
    assert!((longer_s - 0.6 / (0.2 * 0.03)).abs() < 1e-6, "{even:?}, {owing:?}");
}

#[test]
fn savings_do_not_shorten_a_stratum_below_the_time_to_earn_its_window() {
    let stratum_s = |saved_s| LOAD.plan(0.2, saved_s, INTERVAL).stratum.as_secs_f64();
    let rich_s = stratum_s(1.);
    assert!((rich_s - INTERVAL.as_secs_f64()).abs() < 0.1, "{rich_s}");
    assert!(stratum_s(0.) > rich_s);
}

#[test]
fn counting_of_frees_pauses_when_it_costs_more_than_allowed() {
    let load = Load { allocations: 0.1, frees: 0.5, own: 0.3, ..LOAD };
    let plan = load.plan(0.05, 0., INTERVAL);
    assert!(plan.count_frees_for < plan.stratum / 10, "{plan:?}");
    let light = Load { frees: 0.005, ..load };
    assert_eq!(light.plan(0.05, 0., INTERVAL).count_frees_for, Duration::MAX);
}
