//! A line of a perf map: start address and length in hexadecimal, and a name up to the end of the line.

use std::ops::Range;

use jjleak_common::stack::StackFrame;

/// A parsed line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    /// Address range of the code.
    pub addresses: Range<u64>,
    /// Its name; any bytes.
    pub name: &'a [u8],
}

/// Parses a line without its newline. `None` if a number is invalid, the name is missing, or the addresses
/// are impossible.
///
/// Numbers may have the prefix `0x`, as HotSpot's do; fields may be separated by several blanks or tabs.
#[must_use]
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let (start, rest) = number(line)?;
    let (length, name) = number(rest)?;
    let name = name.trim_ascii();
    let end = start.checked_add(length).filter(|end| end >> StackFrame::ADDRESS_BITS == 0)?;
    (length > 0 && !name.is_empty()).then_some(Line { addresses: start..end, name })
}

/// Parses the leading number. Returns it with the rest.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(u8::is_ascii_whitespace)?;
    let (word, rest) = text.split_at(end);
    let digits = word.strip_prefix(b"0x").or_else(|| word.strip_prefix(b"0X")).unwrap_or(word);
    // The standard library also accepts a sign.
    let is_number = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
    Some((u64::from_str_radix(digits, 16).ok()?, rest))
}
