//! Numbers and strings of a recording.

/// Reason why a part of a recording cannot be read.
pub(super) type Damaged = &'static str;

const CUT_OFF: Damaged = "a value ends behind its chunk";

/// Text of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Text {
    Here(String),
    /// In the pool of strings.
    InPool(u64),
}

/// Bytes that are read one after the other.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Number of bytes left.
    pub(super) const fn left(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(CUT_OFF)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Damaged> {
        Ok(self.bytes(1)?[0])
    }

    /// A number of one to nine bytes, the lowest seven bits first; the ninth has eight.
    pub(super) fn number(&mut self) -> Result<u64, Damaged> {
        let mut number = 0;
        for shift in (0..56).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Ok(number | u64::from(self.byte()?) << 56)
    }

    /// A number of things that take a byte each, at least.
    pub(super) fn count(&mut self) -> Result<usize, Damaged> {
        let count = usize::try_from(self.number()?).ok().filter(|count| *count <= self.left());
        count.ok_or("there are more values than bytes")
    }

    pub(super) fn text(&mut self) -> Result<Text, Damaged> {
        Ok(Text::Here(match self.byte()? {
            // None, and an empty string.
            0 | 1 => String::new(),
            2 => return Ok(Text::InPool(self.number()?)),
            // UTF-8, and Latin-1.
            3 => {
                let count = self.count()?;
                String::from_utf8_lossy(self.bytes(count)?).into_owned()
            }
            5 => {
                let count = self.count()?;
                self.bytes(count)?.iter().map(|byte| char::from(*byte)).collect()
            }
            4 => {
                let units = (0..self.count()?).map(|_| self.number());
                let units: Vec<_> = units.collect::<Result<_, _>>()?;
                let units = units.into_iter().map(|unit| u16::try_from(unit).unwrap_or(u16::MAX));
                char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
            }
            _ => return Err("the encoding of a string is not known"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_up_to_nine_bytes() {
        let number = |bytes: &[u8]| {
            let mut cursor = Cursor::new(bytes);
            cursor.number().map(|number| (number, cursor.left()))
        };
        assert_eq!(number(&[5, 1]), Ok((5, 1)));
        assert_eq!(number(&[0x80, 0x01]), Ok((128, 0)));
        assert_eq!(number(&[0xff; 9]), Ok((u64::MAX, 0)));
        assert_eq!(number(&[0x80]), Err(CUT_OFF));
    }

    #[test]
    fn strings_have_several_encodings() {
        let text = |bytes: &[u8]| Cursor::new(bytes).text();
        let here = |text: &str| Ok(Text::Here(text.to_owned()));
        assert_eq!(text(&[0]), here(""));
        assert_eq!(text(&[1]), here(""));
        assert_eq!(text(&[2, 9]), Ok(Text::InPool(9)));
        assert_eq!(text(&[3, 2, 0xc3, 0xa4]), here("ä"));
        assert_eq!(text(&[4, 2, b'a', 0xe4, 0x01]), here("aä"));
        assert_eq!(text(&[5, 1, 0xe4]), here("ä"));
        assert!(text(&[3, 9, b'a']).is_err() && text(&[7]).is_err());
    }
}
