//! Share of complete stacks.

use std::collections::BTreeMap;

use jjleak::render::json::{Document, StackDocument};

/// Allowed share of incomplete stacks among the allocations whose code jjleak knows.
const INCOMPLETE_PER_MILLION: u64 = 1000;
/// The same in a program's first seconds. A stack that is taken while the kernel has locked the program's memory map ends where code is
/// unknown; on a machine with more runnable threads than CPUs, the lock can be held for milliseconds.
const INCOMPLETE_AT_FIRST_PER_MILLION: u64 = 10_000;

/// Objects by the way in which their stacks end.
#[derive(Debug, Default)]
pub(crate) struct Shares(BTreeMap<String, u64>);

impl Shares {
    pub(crate) fn of<'a>(reports: impl IntoIterator<Item = &'a Document>) -> Self {
        Self::of_those(reports, |_| true)
    }

    /// Counts the stacks that `choose` selects.
    pub(crate) fn of_those<'a>(
        reports: impl IntoIterator<Item = &'a Document>,
        choose: impl Fn(&StackDocument) -> bool,
    ) -> Self {
        let mut shares = BTreeMap::new();
        let stacks = reports.into_iter().flat_map(|report| &report.stacks);
        for stack in stacks.filter(|stack| choose(stack)) {
            *shares.entry(stack.status.clone()).or_default() += stack.allocated.objects;
        }
        Self(shares)
    }

    fn all(&self) -> u64 {
        self.0.values().sum()
    }

    fn get(&self, status: &str) -> u64 {
        self.0.get(status).copied().unwrap_or_default()
    }

    /// Fails unless there are at least this number, and nearly all are complete, except those that end in one of the `excused`
    /// ways. Prints all counts.
    pub(crate) fn assert_complete(&self, program: &str, at_least: u64, excused: &[&str]) {
        self.assert_complete_but(INCOMPLETE_PER_MILLION, program, at_least, excused);
    }

    /// The same for a program that has just begun.
    pub(crate) fn assert_complete_from_the_start(&self, program: &str, at_least: u64, excused: &[&str]) {
        self.assert_complete_but(INCOMPLETE_AT_FIRST_PER_MILLION, program, at_least, excused);
    }

    fn assert_complete_but(&self, per_million: u64, program: &str, at_least: u64, excused: &[&str]) {
        for (status, objects) in &self.0 {
            let millionths = objects * 1_000_000 / self.all();
            println!(
                "{program}: {status}: {objects} of {}, {}.{:04} %",
                self.all(),
                millionths / 10_000,
                millionths % 10_000
            );
        }
        assert!(self.all() >= at_least, "{program}: only {} allocations", self.all());
        let known = self.all() - excused.iter().map(|status| self.get(status)).sum::<u64>();
        let incomplete = known - self.get("complete");
        assert!(
            incomplete * 1_000_000 <= known * per_million,
            "{program}: {incomplete} of {known} are incomplete: {self:?}"
        );
    }
}
