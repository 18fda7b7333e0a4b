//! Names of address ranges. Where ranges overlap because addresses were reused, the latest name counts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::parse;

/// Maximum number of ranges: ten times what a large application compiles, and at most some 200 MB with long
/// names.
const MAX_RANGES: usize = 1 << 20;
/// Maximum length of a name in bytes; longer ones are cut off. Java names with all their parameters rarely
/// reach it.
pub const MAX_NAME: usize = 512;

/// Names of disjoint address ranges.
#[derive(Debug, Clone, Default)]
pub struct NamedRanges {
    /// By start address: end and name.
    ranges: BTreeMap<u64, (u64, Rc<str>)>,
    /// Number of invalid lines.
    bad_lines: u64,
    /// Number of ranges dropped because the table was full.
    left_out: u64,
}

impl NamedRanges {
    /// Adds lines; bytes after the last newline count as one.
    pub fn add_text(&mut self, text: &[u8]) {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            match parse(line) {
                Some(line) => self.insert(line.addresses, &name(line.name)),
                None => self.bad_lines += 1,
            }
        }
    }

    /// The latest name of the code at an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<&Rc<str>> {
        let (_, (end, name)) = self.ranges.range(..=address).next_back()?;
        (address < *end).then_some(name)
    }

    /// Number of named ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns whether there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of invalid lines.
    #[must_use]
    pub const fn bad_lines(&self) -> u64 {
        self.bad_lines
    }

    /// Number of ranges dropped because the table was full.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Names a range, replacing earlier names within it.
    fn insert(&mut self, Range { start, end }: Range<u64>, name: &str) {
        // An earlier range that overlaps the start keeps its parts before and after the new one.
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

    /// Adds a range that overlaps no other, if there is room. When full, the range has no name, which is
    /// better than an old one.
    fn put(&mut self, start: u64, named: (u64, Rc<str>)) {
        if self.ranges.len() < MAX_RANGES {
            self.ranges.insert(start, named);
        } else {
            self.left_out += 1;
        }
    }
}

/// Decodes a name; invalid UTF-8 is replaced.
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
        // Inside a range, in place of one, and where there was none.
        names.add_text(b"110 10 within\n200 80 instead\n2f0 8 beside\n");
        let at = |address| names.find(address).map(AsRef::as_ref);
        assert_eq!([0x100, 0x110, 0x120].map(at), [Some("old"), None, None]);
        assert_eq!([0x200, 0x2f0, 0x300].map(at), [Some("instead"), None, Some("old")]);
        assert_eq!((names.len(), names.left_out()), (MAX_RANGES, 3));
    }
}
