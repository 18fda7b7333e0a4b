//! Source lines with the memory that was allocated in them, as in `jeprof --list`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use regex::Regex;

use super::label::{label, printable};
use super::{Value, units};
use crate::profile::Profile;

/// Lines that are shown before and after one with memory.
const AROUND: u32 = 4;

/// A function in a source file, with the memory of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFunction {
    /// Name of the function.
    pub name: String,
    /// Path of the source file, as the debug information has it; empty if there is none.
    pub file: String,
    sum: Sums,
    lines: BTreeMap<u32, Sums>,
}

/// Memory that was allocated in some code, and by what it has called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    own: u64,
    through: u64,
}

impl Sums {
    fn add(&mut self, weight: u64, is_own: bool) {
        self.through = self.through.saturating_add(weight);
        if is_own {
            self.own = self.own.saturating_add(weight);
        }
    }
}

/// The functions whose names match, those with the most memory first.
#[must_use]
pub fn listed_functions(profile: &Profile, names: &Regex, value: Value) -> Vec<ListedFunction> {
    let mut functions: BTreeMap<(String, String), ListedFunction> = BTreeMap::new();
    for stack in profile.stacks.iter().filter(|stack| !stack.live.is_nothing()) {
        let weight = value.of(stack.live);
        // Recursion counts once.
        let (mut in_function, mut in_line) = (BTreeSet::new(), BTreeSet::new());
        for (depth, frame) in stack.callers(profile.coverage.source).enumerate() {
            let name = label(frame);
            if !names.is_match(&name) {
                continue;
            }
            let (key, is_own) = ((frame.file.clone(), name.into_owned()), depth == 0);
            let function = functions.entry(key.clone()).or_insert_with_key(|(file, name)| ListedFunction {
                name: name.clone(),
                file: file.clone(),
                sum: Sums::default(),
                lines: BTreeMap::new(),
            });
            if in_line.insert((key.clone(), frame.line)) {
                function.lines.entry(frame.line).or_default().add(weight, is_own);
            }
            if in_function.insert(key) {
                function.sum.add(weight, is_own);
            }
        }
    }
    let mut functions: Vec<_> = functions.into_values().collect();
    functions.sort_by_key(|function| Reverse(function.sum.through));
    functions
}

/// The function with its lines. `source` has the lines of its file, if that was found.
#[must_use]
pub fn listing(function: &ListedFunction, all: u64, value: Value, source: Option<&[String]>) -> String {
    let amount = |number: u64| match value {
        Value::Bytes => units::humane_bytes(number).unwrap_or_else(|| format!("{number} bytes")),
        Value::Objects => units::grouped(number),
    };
    let cell = |number: u64| if number == 0 { ".".to_owned() } else { amount(number) };
    let ListedFunction { name, file, sum, lines } = function;
    let share = units::percent(sum.through, all);
    let mut text = format!(
        "{}{}: {} in itself, {} with what it calls ({share:.1} % of what is live)\n",
        printable(name),
        if file.is_empty() { String::new() } else { format!(" in {}", printable(file)) },
        amount(sum.own),
        amount(sum.through),
    );
    let _ = writeln!(text, "{:>12} {:>12}   line", "itself", "with callees");
    let mut last = None;
    for number in shown(lines, source) {
        if last.is_some_and(|last| last + 1 < number) {
            text.push_str("         ...\n");
        }
        last = Some(number);
        let Sums { own, through } = lines.get(&number).copied().unwrap_or_default();
        let line = number.checked_sub(1).and_then(|index| source?.get(index as usize));
        let line = line.map(|line| line.trim_end().replace('\t', "    ")).unwrap_or_default();
        let shown = if number == 0 { "?".to_owned() } else { number.to_string() };
        let row = format!("{:>12} {:>12} {shown:>6}  {}", cell(own), cell(through), printable(&line));
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

/// Numbers of the lines to show.
fn shown(lines: &BTreeMap<u32, Sums>, source: Option<&[String]>) -> BTreeSet<u32> {
    let Some(source) = source else { return lines.keys().copied().collect() };
    let end = u32::try_from(source.len()).unwrap_or(u32::MAX);
    let around = |line: &u32| match *line {
        0 => 0..=0,
        line => line.saturating_sub(AROUND).max(1)..=line.saturating_add(AROUND).min(end.max(line)),
    };
    lines.keys().flat_map(around).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Frame, StackProfile, Totals};
    use crate::render::sample;

    fn stack(bytes: u64, frames: &[(&str, u32)]) -> StackProfile {
        let frame = |(symbol, line): &(&str, u32)| Frame {
            symbol: (*symbol).to_owned(),
            file: "/src/app.c".to_owned(),
            line: *line,
            ..Frame::default()
        };
        StackProfile {
            live: Totals { bytes, objects: 1 },
            frames: sample::shared(frames.iter().map(frame)),
            ..sample::empty_stack()
        }
    }

    fn functions(names: &str) -> (Vec<ListedFunction>, u64) {
        let mut profile = sample::empty_profile();
        profile.stacks = vec![
            stack(4096, &[("malloc", 1), ("make", 3), ("run", 12), ("main", 20)]),
            stack(1024, &[("malloc", 1), ("run", 14), ("run", 12), ("main", 20)]),
        ];
        (listed_functions(&profile, &Regex::new(names).unwrap(), Value::Bytes), profile.live().bytes)
    }

    #[test]
    fn lines_have_their_own_memory_and_that_of_what_they_call_and_recursion_counts_once() {
        let (functions, all) = functions("^run$");
        assert_eq!(functions.len(), 1);
        let source: Vec<_> = (1..=30).map(|line| format!("\tline {line};")).collect();
        assert_eq!(
            listing(&functions[0], all, Value::Bytes, Some(&source)),
            "run in /src/app.c: 1.0 KiB in itself, 5.0 KiB with what it calls (100.0 % of what is live)\n\
             \u{20}     itself with callees   line\n\
             \u{20}          .            .      8      line 8;\n\
             \u{20}          .            .      9      line 9;\n\
             \u{20}          .            .     10      line 10;\n\
             \u{20}          .            .     11      line 11;\n\
             \u{20}          .      5.0 KiB     12      line 12;\n\
             \u{20}          .            .     13      line 13;\n\
             \u{20}    1.0 KiB      1.0 KiB     14      line 14;\n\
             \u{20}          .            .     15      line 15;\n\
             \u{20}          .            .     16      line 16;\n\
             \u{20}          .            .     17      line 17;\n\
             \u{20}          .            .     18      line 18;\n"
        );
    }

    #[test]
    fn without_its_source_a_function_has_the_lines_with_memory() {
        let (functions, all) = functions("make|main");
        let names: Vec<_> = functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["main", "make"]);
        let text = listing(&functions[1], all, Value::Bytes, None);
        assert!(text.ends_with("     4.0 KiB      4.0 KiB      3\n"), "{text}");
    }
}
