//! Counts test results.

use std::fmt;

/// Counts over all test binaries and documentation tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Tally {
    /// Adds the counts in `line` if it is the summary line of a test binary.
    pub(crate) fn add_line(&mut self, line: &str) {
        let Some(counts) = line.trim().strip_prefix("test result: ") else { return };
        for count in counts.split(['.', ';']) {
            let mut words = count.split_whitespace();
            let (Some(Ok(number)), Some(kind)) = (words.next().map(str::parse::<usize>), words.next()) else {
                continue;
            };
            match kind {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }

    /// Moves `count` tests from passed to skipped: they succeeded, but could not run here.
    pub(crate) fn skip(&mut self, count: usize) {
        let count = count.min(self.passed);
        self.passed -= count;
        self.skipped += count;
    }

    /// Counts at least one failure for a failed run, even if a test binary died without a summary line.
    pub(crate) fn note_exit(&mut self, success: bool) {
        if !success {
            self.failed = self.failed.max(1);
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.add_line(line));
        tally
    }

    #[test]
    fn closing_lines_are_summed_and_the_rest_is_not() {
        let tally = tally(
            "running 4 tests\n\
             test a_test_named_passed ... ok\n\
             test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.25s\n\
             \n\
             test result: FAILED. 39 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s\n",
        );
        assert_eq!(tally.to_string(), "42 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn a_test_that_skipped_itself_did_not_pass() {
        let mut tally = tally("test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured");
        tally.skip(2);
        assert_eq!(tally.to_string(), "3 passed, 0 failed, 3 skipped");
    }

    #[test]
    fn a_crash_without_a_closing_line_is_a_failure() {
        let mut tally = tally("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured");
        tally.note_exit(false);
        assert_eq!(tally.failed, 1);
        tally.failed = 3;
        tally.note_exit(false);
        assert_eq!(tally.failed, 3);
    }
}
