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

const LOAD: Load =
    Load { allocations: 0.07, frees: 0.04, own: 0.03, own_beside_frees: 0.03, switch_s: 0.000_3 };

#[test]
fn a_debt_lengthens_the_stratum_until_it_is_repaid() {
    let interval = Duration::from_secs(1);
    let (even, owing) = (LOAD.plan(0.2, 0., interval, true), LOAD.plan(0.2, -0.6, interval, true));
    let longer_s = owing.stratum.as_secs_f64() - even.stratum.as_secs_f64();
    assert!((longer_s - 0.6 / (0.2 * 0.03 * FOR_WINDOWS)).abs() < 1e-6, "{even:?}, {owing:?}");
}

#[test]
fn savings_do_not_shorten_a_stratum_below_the_time_to_earn_its_window() {
    let stratum_s = |saved_s| LOAD.plan(0.2, saved_s, INTERVAL, true).stratum.as_secs_f64();
    let rich_s = stratum_s(1.);
    let window_s = (INTERVAL / WINDOWS_IN_INTERVAL).as_secs_f64();
    let cost_s = (LOAD.allocations + LOAD.frees) * window_s + LOAD.switch_s;
    assert!((rich_s - cost_s / (0.2 * LOAD.own * FOR_WINDOWS)).abs() < 1e-6, "{rich_s}");
    assert!(stratum_s(0.) > rich_s);
}

#[test]
fn frees_are_followed_only_where_the_bound_has_room_for_all_of_them() {
    let load = Load { allocations: 0.1, own: 1., own_beside_frees: 1., ..LOAD };
    let follows = |frees, follows| Load { frees, ..load }.plan(0.1, 0., INTERVAL, follows).follows_frees;
    assert!(!follows(0.5, true));
    // It takes more room to begin than to go on.
    assert_eq!((follows(0.07, true), follows(0.07, false)), (true, false));
    assert!(follows(0.05, false));
}
