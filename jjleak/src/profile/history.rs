//! History of live totals.

use jiff::Timestamp;

use super::Totals;

/// Maximum number of moments per process: as many as a curve can show.
const MAX_MOMENTS: usize = 400;

/// Live totals at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The instant.
    pub at: Timestamp,
    /// Live bytes and objects of all stacks.
    pub live: Totals,
}

/// Appends a moment. If there are too many, every second one is dropped, except the last.
pub fn remember(history: &mut Vec<Moment>, moment: Moment) {
    if history.len() >= MAX_MOMENTS {
        let mut keep = false;
        history.retain(|_| {
            keep = !keep;
            keep
        });
    }
    history.push(moment);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_long_history_stays_bounded_and_keeps_its_ends() {
        let at = |second| Timestamp::UNIX_EPOCH + Duration::from_secs(second);
        let mut history = Vec::new();
        for second in 0..10_000 {
            remember(&mut history, Moment { at: at(second), live: Totals::default() });
            assert!(history.len() <= MAX_MOMENTS);
        }
        assert_eq!((history[0].at, history[history.len() - 1].at), (at(0), at(9_999)));
        assert!(history.is_sorted_by_key(|moment| moment.at));
    }
}
