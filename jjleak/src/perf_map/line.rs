//! One line of a perf map: first address and length in hexadecimal, and a name that goes on to the end of the line.

use std::ops::Range;

use jjleak_common::stack::StackFrame;

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    /// Where the code is.
    pub addresses: Range<u64>,
    /// Its name, which can be any bytes.
    pub name: &'a [u8],
}

/// Reads a line without its newline. `None` when it is none that can be: there are no such numbers, no name, or no such
/// addresses.
///
/// Numbers may begin with `0x`, as HotSpot's do, and words be apart by several blanks or tabs.
#[must_use]
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let (start, rest) = number(line)?;
    let (length, name) = number(rest)?;
    let name = name.trim_ascii();
    let end = start.checked_add(length).filter(|end| end >> StackFrame::ADDRESS_BITS == 0)?;
    (length > 0 && !name.is_empty()).then_some(Line { addresses: start..end, name })
}

/// The number that the text begins with, and what is behind it.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(u8::is_ascii_whitespace)?;
    let (word, rest) = text.split_at(end);
    let digits = word.strip_prefix(b"0x").or_else(|| word.strip_prefix(b"0X")).unwrap_or(word);
    // The standard library takes a sign, too.
    let is_number = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
    Some((u64::from_str_radix(digits, 16).ok()?, rest))
}
