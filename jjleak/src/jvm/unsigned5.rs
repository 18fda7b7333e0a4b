//! HotSpot's compressed numbers (`src/hotspot/share/utilities/unsigned5.hpp`): one to five bytes, the low six
//! bits of all but the last first. Since JDK 19 no byte of a number is 0.

/// Longest encoding of a number.
const MAX_BYTES: u32 = 5;
/// The last byte of a number is below this, counted from the lowest byte used; 64 other values mean that more
/// follow.
const BYTE_VALUES: u32 = 256;
const MORE: u32 = 64;
const SHIFT: u32 = 6;

/// The byte values in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// All.
    WithZero,
    /// All except 0.
    WithoutZero,
}

impl Encoding {
    /// The encoding of a JDK.
    pub(crate) const fn of_version(version: u64) -> Self {
        if version >= 19 { Self::WithoutZero } else { Self::WithZero }
    }

    const fn excluded(self) -> u32 {
        match self {
            Self::WithZero => 0,
            Self::WithoutZero => 1,
        }
    }
}

/// Decoder for consecutive numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers<'a> {
    bytes: &'a [u8],
    encoding: Encoding,
}

impl<'a> Numbers<'a> {
    pub(crate) const fn new(bytes: &'a [u8], encoding: Encoding) -> Self {
        Self { bytes, encoding }
    }

    /// The next byte, undecoded.
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> Option<u32> {
        let excluded = self.encoding.excluded();
        let last_below = BYTE_VALUES - excluded - MORE;
        let mut sum = 0u32;
        for place in 0..MAX_BYTES {
            let byte = u32::from(self.byte()?).checked_sub(excluded)?;
            sum = sum.wrapping_add(byte << (place * SHIFT));
            if byte < last_below {
                break;
            }
        }
        Some(sum)
    }

    /// The next number, with its sign in the lowest bit.
    pub(super) fn next_signed(&mut self) -> Option<i32> {
        let value = self.next()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As `UNSIGNED5::write_uint` does.
    fn encode(mut value: u32, encoding: Encoding) -> Vec<u8> {
        let excluded = encoding.excluded();
        let last_below = BYTE_VALUES - excluded - MORE;
        let mut bytes = Vec::new();
        while value >= last_below && bytes.len() + 1 < MAX_BYTES as usize {
            value -= last_below;
            bytes.push(u8::try_from(excluded + last_below + value % MORE).unwrap());
            value >>= SHIFT;
        }
        bytes.push(u8::try_from(excluded + value).unwrap());
        bytes
    }

    proptest! {
        #[test]
        fn numbers_come_back(values in prop::collection::vec(any::<u32>(), 0..20), without_zero: bool) {
            let encoding = if without_zero { Encoding::WithoutZero } else { Encoding::WithZero };
            let bytes: Vec<u8> = values.iter().flat_map(|value| encode(*value, encoding)).collect();
            prop_assert!(!without_zero || !bytes.contains(&0));
            let mut numbers = Numbers::new(&bytes, encoding);
            let read: Vec<_> = std::iter::from_fn(|| numbers.next()).collect();
            prop_assert_eq!(read, values);
        }
    }

    #[test]
    fn the_lowest_bit_is_the_sign() {
        let mut numbers = Numbers::new(&[0, 1, 2, 3], Encoding::WithZero);
        assert_eq!([0; 4].map(|_| numbers.next_signed().unwrap()), [0, -1, 1, -2]);
    }
}
