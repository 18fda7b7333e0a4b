//! A method's line number table (`CompressedLineNumberReadStream`,
//! `src/hotspot/share/code/compressedStream.hpp` in the JDK).

use super::unsigned5::{Encoding, Numbers};

/// A byte followed by two full numbers. Other bytes are a small step of each; 0 is the end.
const ESCAPE: u8 = 0xff;
/// Number of bits that hold the line in a small step.
const LINE_BITS: u32 = 3;

/// Line of a bytecode: that of the last entry at or before it.
pub(super) fn line_of(table: &[u8], encoding: Encoding, bytecode_index: u32) -> Option<u32> {
    let mut numbers = Numbers::new(table, encoding);
    let (mut at, mut line) = (0i32, 0i32);
    let mut found: Option<(i32, i32)> = None;
    let wanted = i32::try_from(bytecode_index).ok()?;
    while let Some(byte) = numbers.byte().filter(|byte| *byte != 0) {
        let (steps, lines) = if byte == ESCAPE {
            let (Some(steps), Some(lines)) = (numbers.next_signed(), numbers.next_signed()) else { break };
            (steps, lines)
        } else {
            (i32::from(byte >> LINE_BITS), i32::from(byte & ((1 << LINE_BITS) - 1)))
        };
        at = at.wrapping_add(steps);
        line = line.wrapping_add(lines);
        if at <= wanted && found.is_none_or(|(best, _)| at >= best) {
            found = Some((at, line));
        }
    }
    found.and_then(|(_, line)| u32::try_from(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bytecode_has_the_line_of_the_last_entry_before_it() {
        // Bytecode 0 is line 40 (escaped: 0 and 80 / 2), bytecode 5 line 42, bytecode 9 line 41 (escaped: 4
        // and -1).
        let table = [ESCAPE, 0, 80, 5 << 3 | 2, ESCAPE, 8, 1, 0];
        let line = |bytecode| line_of(&table, Encoding::WithZero, bytecode);
        assert_eq!([0, 4, 5, 8, 9, 100].map(line), [40, 40, 42, 42, 41, 41].map(Some));
        assert_eq!(line_of(&[0], Encoding::WithZero, 3), None);
        assert_eq!(line_of(&[ESCAPE, 0], Encoding::WithZero, 3), None);
    }
}
