//! Collapsed stacks: a line with the frames of a stack, root first, and a number, as in `main;keep;malloc 4096`.
//!
//! They come from async-profiler (`-o collapsed`), from the `stackcollapse` scripts of `FlameGraph`, and from jjleak.

use std::collections::HashMap;
use std::io::BufRead;

use super::Error;
use super::lines::Lines;
use super::named::{Amount, NamedFile, NamedFormat, NamedFrame, NamedStack};

/// Number of lines by which a file is recognised.
const LOOKED_AT: usize = 10;

/// Returns true if the first whole lines of a file are collapsed stacks.
pub(super) fn is_collapsed(begin: &[u8]) -> bool {
    // The last line may be cut off.
    let whole = begin.iter().rposition(|byte| *byte == b'\n').map_or(begin, |end| &begin[..end]);
    let Ok(text) = str::from_utf8(whole) else { return false };
    let mut lines = text.lines().filter(|line| !is_comment(line)).take(LOOKED_AT);
    // Other text has lines that end with a number, too.
    let is_stack =
        text.lines().filter(|line| !is_comment(line)).take(LOOKED_AT).any(|line| line.contains(';'));
    is_stack && lines.all(|line| stack(line).is_some())
}

pub(super) fn read(lines: &mut Lines<impl BufRead>) -> Result<NamedFile, Error> {
    let mut file = NamedFile::of(NamedFormat::Collapsed);
    let mut known = HashMap::<String, u32>::new();
    while let Some(line) = lines.next()? {
        let (names, bytes) = match line.map(|line| (line, stack(line))) {
            Ok((line, _)) if is_comment(line) => continue,
            Ok((_, Some(stack))) => stack,
            Ok((_, None)) => {
                file.damaged(lines.number(), "it does not end with a number");
                continue;
            }
            Err(reason) => {
                file.damaged(lines.number(), reason);
                continue;
            }
        };
        let mut frames = Vec::new();
        for name in names.rsplit(';') {
            if !known.contains_key(name) {
                let frame = NamedFrame { function: name.to_owned(), ..NamedFrame::default() };
                known.insert(name.to_owned(), file.add_frame(frame)?);
            }
            frames.push(known[name]);
        }
        file.add_stack(NamedStack { frames, live: Amount { bytes, objects: 0 }, allocated: None })?;
    }
    Ok(file)
}

fn is_comment(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with("# ")
}

/// The frames of a stack and its number.
fn stack(line: &str) -> Option<(&str, u64)> {
    let (names, number) = line.trim().rsplit_once(' ')?;
    Some((names.trim(), number.parse().ok()?)).filter(|(names, _)| !names.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> NamedFile {
        super::super::read_named(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_line_is_a_stack_root_first() {
        let file = read_text("# a comment\nmain;keep all;malloc 4096\n\nmain;malloc 12\nno number\n");
        let names = |stack: &NamedStack| {
            let name = |index: &u32| file.frames[*index as usize].function.clone();
            stack.frames.iter().map(name).collect::<Vec<_>>().join(" < ")
        };
        let stacks: Vec<_> = file.stacks.iter().map(|stack| (names(stack), stack.live.bytes)).collect();
        assert_eq!(stacks, [("malloc < keep all < main".to_owned(), 4096), ("malloc < main".to_owned(), 12)]);
        assert_eq!(file.frames.len(), 3);
        assert_eq!(file.damage.map(|damage| (damage.lines, damage.first)), Some((1, 5)));
    }

    #[test]
    fn what_is_no_collapsed_stack_is_not_taken_for_some() {
        for text in ["main;malloc 12\n", "main;malloc 12", "# x\na 1\nb;c 2\nmain;mal"] {
            assert!(is_collapsed(text.as_bytes()), "{text:?}");
        }
        for other in [
            "",
            "\n",
            "hello\n",
            "took 12\ntook 13\n",
            "main;malloc 12\nhello\n",
            "{\"a\": 1}\n",
            "a -1\n",
            " 12\n",
        ] {
            assert!(!is_collapsed(other.as_bytes()), "{other:?}");
        }
        assert!(!is_collapsed(b"\x0a\x04\x08\x01 12\xff\n"));
    }
}
