//! Cost of profiling, as text.

use super::units;
use crate::profile::Cost;

/// `about 2.1 % of its CPU time (0.4 % of a core): 2,300 allocations and frees/s, about 1,700 ns each; an estimate`.
pub(crate) fn cost_in_words(cost: &Cost) -> String {
    let calls = format!("{} allocations and frees/s", units::grouped(whole(cost.calls_per_second())));
    let Some(each) = cost.ns_per_call() else {
        return if cost.calls == 0 {
            "nothing: no allocations and no frees lately".to_owned()
        } else {
            format!("{calls}; what each takes is not known here")
        };
    };
    let each = format!("about {} ns each", units::grouped(whole(each)));
    let of_core = share_in_words(cost.of_core().unwrap_or_default());
    match cost.of_cpu() {
        Some(of_cpu) => {
            let of_cpu = share_in_words(of_cpu);
            format!("about {of_cpu} of its CPU time, {of_core} of a core: {calls}, {each}; an estimate")
        }
        None => format!("about {of_core} of a core: {calls}, {each}; an estimate"),
    }
}

/// `2.1 %`; values below 0.1 % are not distinguished.
pub(crate) fn share_in_words(share: f64) -> String {
    let percent = share * 100.;
    if percent > 0. && percent < 0.1 { "less than 0.1 %".to_owned() } else { format!("{percent:.1} %") }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_known_is_reported() {
        let mut cost = Cost {
            over: Duration::from_secs(10),
            calls: 23_000,
            spent: Some(Duration::from_millis(40)),
            cpu: Some(Duration::from_millis(1_900)),
        };
        assert_eq!(
            cost_in_words(&cost),
            "about 2.1 % of its CPU time, 0.4 % of a core: 2,300 allocations and frees/s, about 1,739 ns each; an \
             estimate"
        );
        cost.cpu = None;
        assert!(cost_in_words(&cost).starts_with("about 0.4 % of a core: "));
        cost.spent = None;
        assert_eq!(cost_in_words(&cost), "2,300 allocations and frees/s; what each takes is not known here");
        cost.calls = 0;
        assert_eq!(cost_in_words(&cost), "nothing: no allocations and no frees lately");
    }
}
