//! Slow-down of a program in windows, compared with the time between them, where its calls cost nothing.
//!
//! A program that always computes does less in a window: probes take CPU time that its own work would take. A program that waits
//! for something else does the same amount of work in the same time. The CPU time that is its own, without that of probes, tells: by
//! what it falls in windows, allocations fall, too (a combined ratio estimate; Cochran, "Sampling Techniques", 6.11).

/// Use of CPUs in a window and around it, in cores.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pace {
    /// The program's own use in the window.
    pub in_window: f64,
    /// The program's own use since the end of the window before, this window included.
    pub around: f64,
    /// Use of the probes in the window.
    pub probes: f64,
    /// Length of the time around the window, in seconds.
    pub around_s: f64,
}

impl Pace {
    /// Both windows together, the second one being next to the first.
    pub(super) fn with(self, next: Self) -> Self {
        let around_s = self.around_s + next.around_s;
        let mean = |part: fn(Self) -> f64| {
            let sum = part(self) * self.around_s + part(next) * next.around_s;
            if around_s > 0. { sum / around_s } else { 0. }
        };
        Self {
            in_window: mean(|pace| pace.in_window),
            around: mean(|pace| pace.around),
            probes: mean(|pace| pace.probes),
            around_s,
        }
    }
}

/// Factor by which a program is slower in windows, at least 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Slowdown {
    pub(super) factor: f64,
    /// Standard error of the factor, relative to it.
    pub(super) error: f64,
}

/// Share of their price by which the cost of probes may be wrong in programs that are slowed down by it: hits cost up to 1.4 times their
/// price where a program uses much memory.
const PRICE_ERROR: f64 = 0.25;
/// Least own use in a window, as a share of that of the probes: less is within the error of their price.
const LEAST_OWN: f64 = 0.1;

impl Slowdown {
    /// Nothing is slower.
    pub(super) const NONE: Self = Self { factor: 1., error: 0. };

    /// The slow-down in these windows: on average of the time, or of the calls if that is more. A program that computes in bursts differs
    /// from window to window by chance; one that allocates for a while and then does not is slower while it allocates.
    pub(super) fn of(paces: &[Pace]) -> Self {
        let of_time = Self::weighted(paces, |pace| pace.around_s);
        let of_calls = Self::weighted(paces, |pace| pace.around_s * pace.probes);
        if of_calls.factor > of_time.factor { of_calls } else { of_time }
    }

    fn weighted(paces: &[Pace], weight: impl Fn(&Pace) -> f64) -> Self {
        let sum =
            |part: &dyn Fn(&Pace) -> f64| -> f64 { paces.iter().map(|pace| weight(pace) * part(pace)).sum() };
        let around = sum(&|pace| pace.around.max(0.));
        let probes = sum(&|pace| pace.probes);
        if probes <= 0. || around <= 0. {
            return Self::NONE;
        }
        let in_windows = sum(&|pace| pace.in_window.max(0.)).max(LEAST_OWN * probes);
        // Probes cannot take more from the program than they use.
        let most = probes / around.max(in_windows);
        let factor = (around / in_windows).clamp(1., 1. + probes / in_windows);
        let square = |pace: &Pace| (weight(pace) * (pace.around - factor * pace.in_window)).powi(2);
        let by_chance = paces.iter().map(square).sum::<f64>().sqrt() / around;
        Self { factor, error: by_chance.min(most).hypot(PRICE_ERROR * (factor - 1.)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paces(in_window: f64, around: f64, probes: f64) -> Vec<Pace> {
        vec![Pace { in_window, around, probes, around_s: 1. }; 100]
    }

    #[test]
    fn a_program_that_always_computes_is_slower_by_what_probes_take() {
        let slow = Slowdown::of(&paces(0.8, 0.99, 0.2));
        assert!((slow.factor - 0.99 / 0.8).abs() < 1e-9 && slow.error < 0.07, "{slow:?}");
    }

    #[test]
    fn a_program_that_does_nothing_else_than_allocate_is_slower_by_an_unknown_factor() {
        let slow = Slowdown::of(&paces(-0.1, 1., 1.1));
        assert!(slow.factor > 5. && slow.error > 1., "{slow:?}");
    }

    #[test]
    fn a_program_that_waits_is_not_slower() {
        assert_eq!(Slowdown::of(&paces(0.3, 0.3, 0.2)), Slowdown::NONE);
        // Hits that cost more than their price seem to be the program's own.
        assert!((Slowdown::of(&paces(0.36, 0.3, 0.2)).factor - 1.).abs() < 1e-9);
    }

    #[test]
    fn what_a_program_does_by_chance_is_no_slow_down_beyond_the_cost_of_probes() {
        let mut paces = paces(0., 0.5, 0.001);
        paces[7].in_window = 1.;
        let slow = Slowdown::of(&paces);
        assert!(slow.factor < 1.2 && slow.error < 0.04, "{slow:?}");
        assert_eq!(Slowdown::of(&[]), Slowdown::NONE);
    }

    #[test]
    fn a_program_that_allocates_for_a_while_is_slower_by_what_probes_take_then() {
        let mut paces = paces(0.2, 1., 0.8);
        paces.extend(self::paces(1., 1., 0.));
        assert!((Slowdown::of(&paces).factor - 5.).abs() < 1e-9);
    }

    #[test]
    fn a_program_that_computes_in_bursts_is_slower_in_those() {
        let (burst, pause) = (paces(0.8, 0.5, 0.2), paces(0., 0.5, 0.));
        assert!((Slowdown::of(&[burst, pause].concat()).factor - 1.25).abs() < 1e-9);
    }

    #[test]
    fn windows_together_have_the_mean_pace() {
        let one = Pace { in_window: 1., around: 0.5, probes: 0.2, around_s: 1. };
        let two = Pace { in_window: 0., around: 0.2, probes: 0., around_s: 3. };
        let both = one.with(two);
        assert_eq!((both.in_window, both.probes, both.around_s), (0.25, 0.05, 4.));
        assert!((both.around - 0.275).abs() < 1e-9);
    }
}
