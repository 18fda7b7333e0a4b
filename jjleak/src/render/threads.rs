//! Threads that allocate at a call site; verdicts are for all threads of a call site.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::label::printable;
use super::units;
use crate::profile::{Profile, StackProfile, Thread, Totals, Verdict};

/// Thread and live memory of each stack; empty if threads are not distinguished.
pub(crate) struct ThreadShares(HashMap<u64, (Thread, Totals)>);

impl ThreadShares {
    pub(crate) fn of(profile: &Profile) -> Self {
        Self::of_stacks(profile.stacks.iter().filter(|_| profile.coverage.threads))
    }

    /// Shares of some of a profile's stacks.
    pub(crate) fn of_stacks<'a>(stacks: impl Iterator<Item = &'a StackProfile>) -> Self {
        Self(stacks.filter_map(|stack| Some((stack.id, (stack.thread()?, stack.live)))).collect())
    }

    /// Threads of a call site with their live memory, largest first.
    pub(crate) fn of_verdict(&self, verdict: &Verdict) -> Vec<(Thread, Totals)> {
        let mut sums = HashMap::<(u32, u32), (Thread, Totals)>::new();
        for (thread, live) in verdict.stacks.iter().filter_map(|id| self.0.get(id)) {
            let (_, sum) = sums
                .entry((thread.number, thread.nth))
                .or_insert_with(|| (thread.clone(), Totals::default()));
            *sum = [*sum, *live].into_iter().sum();
        }
        let mut shares: Vec<_> = sums.into_values().collect();
        shares.sort_by_key(|(thread, live)| (Reverse(live.bytes), thread.number, thread.nth));
        shares
    }

    /// `by worker (tid 42)`, or `by 4 threads, most of it by worker (tid 42): 1024 bytes (1.0 KiB)`; `None` if threads are not
    /// distinguished.
    pub(crate) fn words(&self, verdict: &Verdict) -> Option<String> {
        let shares = self.of_verdict(verdict);
        let (largest, live) = shares.first()?;
        let largest = largest.to_string();
        let largest = printable(&largest);
        Some(match shares.len() {
            1 => format!("by {largest}"),
            // With equal shares, the order means nothing.
            2.. if shares[1].1.bytes == live.bytes => {
                format!(
                    "by {} threads, {} each by {largest} and others",
                    shares.len(),
                    units::bytes(live.bytes)
                )
            }
            threads => {
                format!("by {threads} threads, most of it by {largest}: {}", units::bytes(live.bytes))
            }
        })
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::profile::Frame;
    use crate::render::sample;

    /// Text for the call site of the first verdict, with threads that hold these numbers of bytes.
    fn words(bytes: &[u64]) -> Option<String> {
        let mut profile = sample::judged();
        profile.coverage.threads = true;
        let stack = |(number, bytes): (u32, &u64)| {
            let root = Frame::of_thread(&Thread { number, name: "worker".to_owned(), nth: 1 });
            let live = Totals { bytes: *bytes, objects: 1 };
            StackProfile { id: number.into(), live, frames: sample::shared([root]), ..sample::empty_stack() }
        };
        profile.stacks = (1..).zip(bytes).map(stack).collect();
        let verdict = Verdict {
            stacks: profile.stacks.iter().map(|stack| stack.id).collect(),
            ..profile.verdicts[0].clone()
        };
        ThreadShares::of(&profile).words(&verdict)
    }

    #[test]
    fn a_call_site_is_reported_with_the_thread_that_holds_the_most() {
        assert_eq!(words(&[]), None);
        assert_eq!(words(&[7]).unwrap(), "by worker (tid 1)");
        assert_eq!(
            words(&[7, 2048, 8]).unwrap(),
            "by 3 threads, most of it by worker (tid 2): 2048 bytes (2.0 KiB)"
        );
        assert_eq!(words(&[7, 9, 9]).unwrap(), "by 3 threads, 9 bytes each by worker (tid 2) and others");
    }
}
