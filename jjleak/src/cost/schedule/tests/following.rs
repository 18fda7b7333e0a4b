//! Frees are followed where the bound has room for all of them.

use super::*;

/// A program that frees all that it allocates, and then does much less.
fn calms_down(at_s: f64) -> (Rates, f64) {
    if at_s < 60. {
        (CALLS, 60.)
    } else {
        (Rates { own: 0.5, allocations: 0.06, frees: 0.02 }, f64::INFINITY)
    }
}

#[test]
fn frees_are_followed_again_once_the_bound_has_room_for_all_of_them() {
    let base = Instant::now();
    let mut schedule = Schedule::begin(Budget::new(0.1), base, Rng::with_seed(7));
    let (mut account, mut counted, mut follows) = (Account::default(), (true, true), vec![(0., true)]);
    while account.at_s < 120. {
        let now_s = schedule.next().saturating_duration_since(base).as_secs_f64().max(account.at_s);
        let (now, measured) = run(&calms_down, WORLD, account, now_s, counted);
        account = now;
        let at = base + Duration::from_secs_f64(now_s);
        let actions = schedule.advance(at, measured);
        for action in &actions {
            counted = carry_out(*action, counted);
            match action {
                Action::FollowFrees => follows.push((now_s, true)),
                Action::LoseFrees => follows.push((now_s, false)),
                _ => {}
            }
        }
        if !actions.is_empty() {
            schedule.carried_out(at, Measured::default(), 0.);
        }
        assert!(counted.1 || !follows.last().unwrap().1, "frees are missed at {now_s}: {follows:?}");
    }
    let [(_, true), (lost_s, false), (found_s, true)] = follows[..] else { panic!("{follows:?}") };
    assert!(lost_s < 1. && (60. ..90.).contains(&found_s), "{follows:?}");
}
