//! Which name each address has, when ranges overlap and addresses are used again: the one that came last.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::parse;

/// Most ranges that are kept: ten times what a large application compiles, and at most some 200 MB with long names.
const MAX_RANGES: usize = 1 << 20;
/// Longest name that is kept, in bytes; the rest of a longer one is cut off. Java's with all their parameters rarely have
/// as many.
pub const MAX_NAME: usize = 512;

/// Names of ranges of addresses, none of which overlap.
#[derive(Debug, Clone, Default)]
pub struct NamedRanges {
    /// By first address: the end, and the name.
    ranges: BTreeMap<u64, (u64, Rc<str>)>,
    /// Lines that make no sense.
    bad_lines: u64,
    /// Ranges for which there was no room.
    left_out: u64,
}

impl NamedRanges {
    /// Takes in lines; bytes behind the last newline are one, too.
    pub fn add_text(&mut self, text: &[u8]) {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            match parse(line) {
                Some(line) => self.insert(line.addresses, &name(line.name)),
                None => self.bad_lines += 1,
            }
        }
    }

    /// The name that was given last to the code at an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<&Rc<str>> {
        let (_, (end, name)) = self.ranges.range(..=address).next_back()?;
        (address < *end).then_some(name)
    }

    /// How many ranges have a name.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether nothing has a name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Lines that make no sense.
    #[must_use]
    pub const fn bad_lines(&self) -> u64 {
        self.bad_lines
    }

    /// Ranges for which there was no room.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Gives a range a name, and takes it away from what was named there before.
    fn insert(&mut self, Range { start, end }: Range<u64>, name: &str) {
        // What begins before and reaches into it keeps what is before and behind.
        if let Some((_, before)) = self.ranges.range_mut(..start).next_back()
            && before.0 > start
        {
            let behind = (before.0 > end).then(|| before.clone());
            before.0 = start;
            if let Some(behind) = behind {
                self.put(end, behind);
            }
        }
        while let Some((&at, (until, _))) = self.ranges.range(start..end).next() {
            let until = *until;
            if let Some((_, covered)) = self.ranges.remove_entry(&at).filter(|_| until > end) {
                self.put(end, covered);
            }
        }
        self.put(start, (end, Rc::from(name)));
    }

    /// Keeps a range that overlaps no other, if there is room: one without a name is better than one with an old name.
    fn put(&mut self, start: u64, named: (u64, Rc<str>)) {
        if self.ranges.len() < MAX_RANGES {
            self.ranges.insert(start, named);
        } else {
            self.left_out += 1;
        }
    }
}

/// A name as text. What is no UTF-8 in it is replaced.
fn name(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.get(..MAX_NAME).unwrap_or(bytes));
    text.into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_used_again_lose_their_old_name_when_there_is_no_room() {
        let old: Rc<str> = Rc::from("old");
        let ranges =
            (0..MAX_RANGES as u64).map(|index| (index * 0x100, (index * 0x100 + 0x80, Rc::clone(&old))));
        let mut names = NamedRanges { ranges: ranges.collect(), ..NamedRanges::default() };
        // Within one, in the place of one, and where nothing was.
        names.add_text(b"110 10 within\n200 80 instead\n2f0 8 beside\n");
        let at = |address| names.find(address).map(AsRef::as_ref);
        assert_eq!([0x100, 0x110, 0x120].map(at), [Some("old"), None, None]);
        assert_eq!([0x200, 0x2f0, 0x300].map(at), [Some("instead"), None, Some("old")]);
        assert_eq!((names.len(), names.left_out()), (MAX_RANGES, 3));
    }
}
