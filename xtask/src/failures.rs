//! Messages of failed tests, repeated after everything else: the output of two thousand tests is long, and often cut.

use std::fmt;

/// Lines kept of a test, and characters of a line: the message of a panic comes first.
const LINES: usize = 12;
const LINE_LENGTH: usize = 600;

/// Output of failed tests.
#[derive(Default)]
pub(crate) struct Failures {
    tests: Vec<(String, Vec<String>)>,
    /// True between a test's heading and the list of names at the end of a test binary's output.
    is_within: bool,
}

impl Failures {
    pub(crate) fn add_line(&mut self, line: &str) {
        let line = line.trim_end();
        let heading = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(test) = heading {
            self.tests.push((test.to_owned(), Vec::new()));
            self.is_within = true;
        } else if line == "failures:" {
            self.is_within = false;
        } else if self.is_within
            && !line.is_empty()
            && let Some((_, lines)) = self.tests.last_mut()
            && lines.len() < LINES
        {
            lines.push(line.chars().take(LINE_LENGTH).collect());
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (test, lines) in &self.tests {
            writeln!(f, "failed: {test}")?;
            for line in lines {
                writeln!(f, "  {line}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_failed_tests_are_kept_and_the_rest_is_not() {
        let output = "test a::b ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n\nthread 'a::b' panicked\nleft: 1\n\n\
                      ---- c stdout ----\nno\n\n\nfailures:\n    a::b\n    c\n\ntest result: FAILED\n";
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.add_line(line));
        assert_eq!(
            failures.to_string(),
            "failed: a::b\n  thread 'a::b' panicked\n  left: 1\nfailed: c\n  no\n"
        );
    }

    #[test]
    fn long_messages_are_cut() {
        let mut failures = Failures::default();
        failures.add_line("---- a stdout ----");
        (0..100).for_each(|_| failures.add_line(&"ä".repeat(10_000)));
        assert_eq!(failures.to_string().lines().count(), 1 + LINES);
        assert!(failures.to_string().chars().count() < 20 + LINES * (LINE_LENGTH + 3));
    }
}
