//! Detects if a safepoint took effect while data were read.
//!
//! HotSpot counts and announces a safepoint and stops all threads except those in native code; then the safepoint
//! takes effect. At the end, HotSpot announces that it is over and counts again
//! (`src/hotspot/share/runtime/safepoint.cpp` in the JDK). No safepoint took effect if none was counted, or if the
//! first one is still coming after everything has been read.

/// Progress of a safepoint (`SafepointSynchronize::SynchronizeState` in the JDK): threads are being stopped
/// for it, and it has not taken effect yet.
pub const COMING: u32 = 1;

/// Returns true if no safepoint has taken effect since `before` beginnings and ends had been counted. The `state`
/// must be read first, then the count `now`: a safepoint that is coming at that count is not over.
#[inline(always)]
#[must_use]
pub const fn are_still(before: u64, state: u32, now: u64) -> bool {
    now | 1 == before | 1 && (now & 1 == 0 || state == COMING)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other states.
    const NONE: u32 = 0;
    const IN_FORCE: u32 = 2;

    #[test]
    fn nothing_is_done_where_no_safepoint_begins() {
        assert!(are_still(0, NONE, 0));
        assert!(are_still(4, NONE, 4));
        // Another one was announced as coming or over, but not counted when the counter was read.
        assert!(are_still(4, COMING, 4));
    }

    #[test]
    fn nothing_is_done_while_the_first_safepoint_is_coming() {
        assert!(are_still(4, COMING, 5));
        assert!(are_still(5, COMING, 5));
    }

    #[test]
    fn a_safepoint_that_is_counted_but_not_coming_may_have_done_something() {
        for before in [4, 5] {
            assert!(!are_still(before, IN_FORCE, 5));
            assert!(!are_still(before, NONE, 5));
        }
    }

    #[test]
    fn a_safepoint_that_has_passed_may_have_done_something() {
        for state in [NONE, COMING, IN_FORCE] {
            assert!(!are_still(5, state, 6), "one that had begun before");
            assert!(!are_still(4, state, 6), "one from its beginning to its end");
            assert!(!are_still(4, state, 7), "and the next one is coming");
            assert!(!are_still(5, state, 7), "and the next one is coming");
            assert!(!are_still(4, state, 8), "two of them");
        }
    }

    #[test]
    fn no_order_of_steps_hides_what_is_done_in_a_safepoint() {
        let steps: Vec<(u64, u32)> = (0..3)
            .flat_map(|passed| {
                let begun = 2 * passed + 1;
                [(2 * passed, NONE), (begun, NONE), (begun, COMING), (begun, IN_FORCE), (begun, NONE)]
            })
            .collect();
        for begin in 0..steps.len() {
            for end in begin..steps.len() {
                let is_done = steps[begin..=end].iter().any(|(_, state)| *state == IN_FORCE);
                for counted in end..steps.len() {
                    let says_still = are_still(steps[begin].0, steps[end].1, steps[counted].0);
                    assert!(!(is_done && says_still), "{begin} to {end}, counted at {counted}");
                }
            }
        }
    }
}
