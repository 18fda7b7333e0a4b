//! Files of heaptrack: each allocation and each free, with its stack.
//!
//! Lines begin with a letter; numbers are hexadecimal, and count from 1 but for `a`. Described by what reads them,
//! `src/analyze/accumulatedtracedata.cpp` in heaptrack's sources, at versions 1 to 3 of the format:
//!
//! | line | meaning |
//! |---|---|
//! | `v` | version of heaptrack and of the format |
//! | `X` | command line |
//! | `s` | string, preceded by its length from version 3 on |
//! | `i` | address, module, then function, source file and line, innermost function first; or the function alone, or nothing |
//! | `t` | innermost `i` of a stack, and the `t` of its callers |
//! | `a` | size of an allocation, and its `t` |
//! | `+`, `-` | an `a` was allocated, or freed |
//! | `c` | milliseconds since the start |

use std::io::BufRead;
use std::time::Duration;

use super::Error;
use super::lines::Lines;
use super::named::{Amount, NamedFile, NamedFormat, NamedFrame, NamedStack};
use crate::fast_map::FastMap;

/// Versions of the format.
const VERSIONS: std::ops::RangeInclusive<u64> = 1..=3;
/// Version from which on strings have their length.
const WITH_LENGTHS: u64 = 3;
/// Maximum number of frames of a stack, as in heaptrack's own.
const MAX_DEPTH: usize = 1024;

const NO_NUMBER: &str = "a number is missing, or not hexadecimal";
const NO_SUCH: &str = "it refers to a line that is not there";

/// Returns true if a file begins with the version of heaptrack.
pub(super) fn is_heaptrack(begin: &[u8]) -> bool {
    let first = begin.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let numbers = first.strip_prefix(b"v ").and_then(|numbers| str::from_utf8(numbers).ok());
    numbers.is_some_and(|numbers| numbers.split(' ').all(|number| u64::from_str_radix(number, 16).is_ok()))
}

pub(super) fn read(lines: &mut Lines<impl BufRead>) -> Result<NamedFile, Error> {
    let mut reader = Reader { file: NamedFile::of(NamedFormat::Heaptrack), ..Reader::default() };
    let version = lines.next()?.and_then(Result::ok).and_then(|line| number(line.split(' ').nth(2)).ok());
    let version = version.unwrap_or_default();
    if !VERSIONS.contains(&version) {
        return Err(Error::Version(version));
    }
    reader.has_lengths = version >= WITH_LENGTHS;
    while let Some(line) = lines.next()? {
        let outcome = match line {
            Ok(line) => reader.line(line)?,
            Err(reason) => Err(reason),
        };
        if let Err(reason) = outcome {
            reader.file.damaged(lines.number(), reason);
        }
    }
    reader.finish()
}

#[derive(Default)]
struct Reader {
    file: NamedFile,
    has_lengths: bool,
    strings: Vec<String>,
    /// Indices of the frames of each address, innermost function first.
    addresses: Vec<Vec<u32>>,
    /// Address and callers of each trace.
    traces: Vec<(usize, usize)>,
    allocations: Vec<Allocation>,
}

struct Allocation {
    size: u64,
    trace: usize,
    allocated: u64,
    freed: u64,
}

impl Reader {
    /// Reads a line, or says why it cannot be read.
    fn line(&mut self, line: &str) -> Result<Result<(), &'static str>, Error> {
        let Some((kind, rest)) = line.split_once(' ') else { return Ok(Ok(())) };
        Ok(match kind {
            "s" => self.string(rest),
            "i" => match self.frames(rest) {
                Ok(frames) => {
                    let frames: Result<Vec<_>, _> =
                        frames.into_iter().map(|frame| self.file.add_frame(frame)).collect();
                    self.addresses.push(frames?);
                    Ok(())
                }
                Err(reason) => {
                    // The numbers of those that follow must stay right.
                    self.addresses.push(Vec::new());
                    Err(reason)
                }
            },
            "t" => self.trace(rest),
            "a" => self.allocation(rest),
            "+" => self.of(rest).map(|allocation| allocation.allocated += 1),
            "-" => self.of(rest).map(|allocation| allocation.freed += 1),
            "c" => number(Some(rest)).map(|time| self.file.duration = Duration::from_millis(time)),
            "X" => {
                rest.clone_into(&mut self.file.command);
                Ok(())
            }
            // Others say nothing of stacks.
            _ => Ok(()),
        })
    }

    fn string(&mut self, rest: &str) -> Result<(), &'static str> {
        let text = if self.has_lengths { rest.split_once(' ').map(|(_, text)| text) } else { Some(rest) };
        self.strings.push(text.unwrap_or_default().to_owned());
        text.map(drop).ok_or("a string has no length")
    }

    fn frames(&self, rest: &str) -> Result<Vec<NamedFrame>, &'static str> {
        const NUMBERS: usize = 3;
        let numbers: Result<Vec<_>, _> = rest.split(' ').map(|word| number(Some(word))).collect();
        let numbers = numbers?;
        let [address, module, functions @ ..] = &numbers[..] else { return Err(NO_NUMBER) };
        let module = self.text(*module)?;
        let frame = |function: &[u64]| {
            // Without debug information, there is the function alone.
            let (function, file, line) = match function {
                [function, file, line] => (function, file, line),
                [function] => (function, &0, &0),
                _ => return Err(NO_NUMBER),
            };
            Ok(NamedFrame {
                function: self.text(*function)?,
                file: self.text(*file)?,
                line: u32::try_from(*line).unwrap_or_default(),
                module: module.clone(),
                address: *address,
                inlined: true,
                ..NamedFrame::default()
            })
        };
        let mut frames = functions.chunks(NUMBERS).map(frame).collect::<Result<Vec<_>, _>>()?;
        match frames.last_mut() {
            Some(outermost) => outermost.inlined = false,
            None => frames.push(NamedFrame { address: *address, module, ..NamedFrame::default() }),
        }
        Ok(frames)
    }

    fn trace(&mut self, rest: &str) -> Result<(), &'static str> {
        let (address, callers) = two(rest).unwrap_or_default();
        let is_there = (1..=self.addresses.len()).contains(&address) && callers <= self.traces.len();
        // A stack of nothing keeps the numbers right.
        self.traces.push(if is_there { (address, callers) } else { (0, 0) });
        if is_there { Ok(()) } else { Err(NO_SUCH) }
    }

    fn allocation(&mut self, rest: &str) -> Result<(), &'static str> {
        let (size, trace) = two(rest).unwrap_or_default();
        let is_there = (1..=self.traces.len()).contains(&trace);
        let trace = if is_there { trace } else { 0 };
        self.allocations.push(Allocation { size: size as u64, trace, allocated: 0, freed: 0 });
        if is_there { Ok(()) } else { Err(NO_SUCH) }
    }

    fn of(&mut self, rest: &str) -> Result<&mut Allocation, &'static str> {
        let index = number(Some(rest))?;
        let index = usize::try_from(index).map_err(|_| NO_SUCH)?;
        self.allocations.get_mut(index).ok_or(NO_SUCH)
    }

    /// A string by its number; 0 is none.
    fn text(&self, number: u64) -> Result<String, &'static str> {
        let Some(index) = number.checked_sub(1) else { return Ok(String::new()) };
        let text = usize::try_from(index).ok().and_then(|index| self.strings.get(index));
        text.cloned().ok_or(NO_SUCH)
    }

    /// Adds up the allocations of each trace.
    fn finish(mut self) -> Result<NamedFile, Error> {
        let mut by_trace = FastMap::<usize, [Amount; 2]>::default();
        for Allocation { size, trace, allocated, freed } in &self.allocations {
            let totals = by_trace.entry(*trace).or_default();
            for (total, objects) in totals.iter_mut().zip([allocated.saturating_sub(*freed), *allocated]) {
                total.objects = total.objects.saturating_add(objects);
                total.bytes = total.bytes.saturating_add(size.saturating_mul(objects));
            }
        }
        let mut by_trace: Vec<_> = by_trace.into_iter().collect();
        by_trace.sort_unstable_by_key(|(trace, _)| *trace);
        for (trace, [live, allocated]) in by_trace {
            let frames = self.stack(trace);
            self.file.add_stack(NamedStack { frames, live, allocated: Some(allocated) })?;
        }
        Ok(self.file)
    }

    /// Frames of a trace. Callers stand before their callees in the file, so that this ends.
    fn stack(&self, mut trace: usize) -> Vec<u32> {
        let mut frames = Vec::new();
        while let Some((address, callers)) = trace.checked_sub(1).and_then(|index| self.traces.get(index)) {
            if let Some(of_address) = address.checked_sub(1).and_then(|index| self.addresses.get(index)) {
                frames.extend_from_slice(of_address);
            }
            if frames.len() >= MAX_DEPTH {
                break;
            }
            trace = *callers;
        }
        frames
    }
}

fn number(word: Option<&str>) -> Result<u64, &'static str> {
    word.and_then(|word| u64::from_str_radix(word, 16).ok()).ok_or(NO_NUMBER)
}

fn two(rest: &str) -> Option<(usize, usize)> {
    let (first, second) = rest.split_once(' ')?;
    let number = |word: &str| usize::from_str_radix(word, 16).ok();
    Some((number(first)?, number(second)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "v 10400 3\nX ./app -x\nI 1000 5\ns 4 main\ns 5 /app\ns 6 keep b\ns 3 a.c\ni 10 2 3\nt 1 0\n\
        i 20 2 3 4 1f 1 4 20\nt 2 1\na 64 2\n+ 0\n+ 0\n- 0\na 8 1\n+ 1\nc 7d0\nR 10\n";

    #[test]
    fn what_was_allocated_and_not_freed_is_live() {
        let file = super::super::read_named(TEXT.as_bytes()).unwrap();
        assert_eq!(
            (file.command.as_str(), file.duration, &file.damage),
            ("./app -x", Duration::from_secs(2), &None)
        );
        let [outer, inner] = &file.stacks[..] else { panic!("{file:?}") };
        assert_eq!(outer.live, Amount { bytes: 8, objects: 1 });
        assert_eq!(inner.live, Amount { bytes: 100, objects: 1 });
        assert_eq!(inner.allocated, Some(Amount { bytes: 200, objects: 2 }));
        let frames = inner.frames.iter().map(|index| &file.frames[*index as usize]);
        let frames: Vec<_> =
            frames.map(|frame| (frame.function.as_str(), frame.line, frame.address, frame.inlined)).collect();
        assert_eq!(
            frames,
            [("keep b", 31, 0x20, true), ("main", 32, 0x20, false), ("keep b", 0, 0x10, false)]
        );
    }

    #[test]
    fn strings_have_no_length_before_version_3() {
        let lengths = [
            ("s 4 main", "s main"),
            ("s 5 /app", "s /app"),
            ("s 6 keep b", "s keep b"),
            ("s 3 a.c", "s a.c"),
        ];
        let old = lengths.iter().fold(TEXT.replace("v 10400 3", "v 10200 2"), |text, (with, without)| {
            text.replace(with, without)
        });
        let read = |text: &str| super::super::read_named(text.as_bytes()).unwrap();
        assert_eq!(read(&old), read(TEXT));
    }

    #[test]
    fn damaged_lines_are_counted_and_those_that_follow_keep_their_meaning() {
        let text = TEXT.replace("i 10 2 3\n", "i 10 77 3\n").replace("c 7d0", "+ 5\nc x");
        let file = super::super::read_named(text.as_bytes()).unwrap();
        assert_eq!(file.damage.map(|damage| (damage.lines, damage.first)), Some((3, 8)));
        assert_eq!(file.stacks.iter().map(|stack| stack.frames.len()).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn a_trace_that_is_its_own_caller_is_damage() {
        let text = TEXT.replace("t 1 0\n", "t 1 1\n");
        let file = super::super::read_named(text.as_bytes()).unwrap();
        assert_eq!(file.damage.map(|damage| damage.reason), Some(NO_SUCH));
    }

    #[test]
    fn a_long_name_in_each_line_is_bounded() {
        let mut text = format!("v 10400 3\ns ffff {}\n", "x".repeat(60_000));
        text.push_str(&"i 10 1 1 1 1\n".repeat(2000));
        let refused = super::super::read_named(text.as_bytes()).unwrap_err();
        assert!(matches!(refused, Error::FrameBytes(_)), "{refused}");
    }

    #[test]
    fn other_versions_are_refused() {
        for (version, text) in [(0, "v 10000\n"), (4, "v 20000 4\n")] {
            let refused = super::super::read_named(text.as_bytes()).unwrap_err();
            assert!(matches!(refused, Error::Version(found) if found == version), "{refused}");
        }
        assert!(!is_heaptrack(b"version 1\n") && !is_heaptrack(b"v x\n"));
    }
}
