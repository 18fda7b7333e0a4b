//! Compares the bundled program's ledger of its leaks with jjleak's report.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context, Result};
use serde_json::Value;

/// Memory that is leaked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    bytes: u64,
    objects: u64,
}

/// Leaked memory by the function that leaks it.
pub(crate) type Ledger = BTreeMap<String, Held>;

/// Parses a line of the program's ledger: `leaked <bytes> bytes in <n> allocations: <function>`.
pub(crate) fn parse_line(line: &str) -> Option<(String, Held)> {
    let (bytes, rest) = line.strip_prefix("leaked ")?.split_once(" bytes in ")?;
    let (objects, function) = rest.split_once(" allocations: ")?;
    Some((function.trim().to_owned(), Held { bytes: bytes.parse().ok()?, objects: objects.parse().ok()? }))
}

/// Live memory under each function of `ledger`, according to a JSON report of jjleak.
///
/// `reports` holds one document per report; the last one counts.
pub(crate) fn reported(reports: &str, ledger: &Ledger) -> Result<Ledger> {
    let report = serde_json::Deserializer::from_str(reports)
        .into_iter::<Value>()
        .last()
        .context("jjleak's JSON is empty")?
        .context("jjleak's JSON cannot be parsed")?;
    let stacks = report["stacks"].as_array().context("jjleak's JSON has no `stacks`")?;
    let held_under = |function: &String| {
        let under = stacks.iter().filter(|stack| contains(&report, stack, function));
        let held = under.fold(Held::default(), |sum, stack| Held {
            bytes: sum.bytes + number(&stack["live"]["bytes"]),
            objects: sum.objects + number(&stack["live"]["objects"]),
        });
        (function.clone(), held)
    };
    Ok(ledger.keys().map(held_under).collect())
}

fn contains(report: &Value, stack: &Value, function: &str) -> bool {
    functions(report, stack).any(|symbol| *symbol == *function)
}

/// Functions of a stack of a report, leaf first: stacks refer to the report's frames by index.
pub(crate) fn functions<'a>(report: &'a Value, stack: &'a Value) -> impl Iterator<Item = &'a Value> {
    let frames = stack["frames"].as_array().map(Vec::as_slice).unwrap_or_default();
    let index = |frame: &Value| frame.as_u64().and_then(|index| usize::try_from(index).ok());
    frames.iter().filter_map(index).map(|index| &report["frames"][index]["symbol"])
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// The two ledgers as a table.
pub(crate) struct Comparison<'a> {
    pub(crate) program: &'a Ledger,
    pub(crate) jjleak: &'a Ledger,
}

impl Comparison<'_> {
    /// Returns true if both agree to the byte and to the object.
    pub(crate) fn agrees(&self) -> bool {
        self.program == self.jjleak
    }
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<16}{:>32}{:>32}", "leaked in", "the program says", "jjleak says")?;
        for (function, held) in self.program {
            let jjleak = self.jjleak.get(function).copied().unwrap_or_default();
            writeln!(f, "{function:<16}{:>32}{:>32}", held.to_string(), jjleak.to_string())?;
        }
        Ok(())
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {}", self.bytes, self.objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(lines: &str) -> Ledger {
        lines.lines().filter_map(parse_line).collect()
    }

    #[test]
    fn only_ledger_lines_are_entries() {
        let ledger = ledger("ready\nleaked 4096 bytes in 2 allocations: cache_insert\ndone\n");
        assert_eq!(ledger.len(), 1);
        assert_eq!(ledger["cache_insert"], Held { bytes: 4096, objects: 2 });
    }

    #[test]
    fn the_last_report_is_summed_over_all_stacks_of_a_function() {
        let program = ledger("leaked 30 bytes in 3 allocations: cache_insert");
        let reports = r#"
            {"stacks": []}
            {"frames": [{"symbol": "malloc"}, {"symbol": "calloc"}, {"symbol": "cache_insert"}, {"symbol": "parse"}],
            "stacks": [
                {"live": {"bytes": 10, "objects": 1}, "frames": [0, 2]},
                {"live": {"bytes": 20, "objects": 2}, "frames": [1, 2]},
                {"live": {"bytes": 99, "objects": 9}, "frames": [0, 3]}
            ]}"#;
        let jjleak = reported(reports, &program).unwrap();
        assert!(Comparison { program: &program, jjleak: &jjleak }.agrees());
    }

    #[test]
    fn one_byte_more_is_no_agreement() {
        let program = ledger("leaked 30 bytes in 3 allocations: cache_insert");
        let jjleak = ledger("leaked 31 bytes in 3 allocations: cache_insert");
        let comparison = Comparison { program: &program, jjleak: &jjleak };
        assert!(!comparison.agrees());
        assert!(comparison.to_string().contains("31 bytes in 3"));
    }

    #[test]
    fn a_report_that_breaks_off_is_an_error() {
        assert!(reported("", &Ledger::new()).is_err());
        assert!(reported("{\"stacks\": [", &Ledger::new()).is_err());
        assert!(reported("{}", &Ledger::new()).is_err());
    }
}
