//! The content of a file, read block by block when it is needed.
//!
//! Files of a target are not mapped: jjleak would be killed if the target truncated one. They are not read whole either, because
//! some have hundreds of megabytes, most of which nobody asks for. A target can make files that are expensive to read: each may
//! cost a bounded amount of memory and CPU time ([`TooCostly`]); beyond it, all reads fail.

mod cost;
mod lazy;
mod window;

pub use cost::{MAX_CPU, MAX_HELD_BYTES, StopReading, TooCostly};
pub use lazy::LazyFile;
pub use window::Window;

use std::ops::Range;

use lazy::BLOCK_BYTES;
use memchr::memchr;
use object::ReadRef;

/// Size of a piece in [`Content::visit`].
const PIECE_BYTES: usize = 1 << 20;

/// Maximum length of a name or path read through [`ReadRef`]. A string table without a NUL would be searched to its end for each
/// symbol otherwise. The longest C++ names have some 10,000 bytes.
const MAX_STRING_BYTES: u64 = 64 << 10;

/// The content of a file.
#[derive(Debug, Clone, Copy)]
pub enum Content<'data> {
    /// In memory.
    Memory(&'data [u8]),
    /// Read when it is needed.
    File(&'data LazyFile<'data>),
}

impl<'data> Content<'data> {
    /// Number of bytes.
    #[must_use]
    pub const fn length(self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(file) => file.length(),
        }
    }

    /// Fails if the file has cost too much: what was found in it is incomplete.
    pub fn check(self) -> Result<(), TooCostly> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::File(file) => file.exceeded().map_or(Ok(()), Err),
        }
    }

    /// The bytes of a range; `None` if the file does not have them, cannot be read, or costs too much.
    #[must_use]
    pub fn get(self, range: Range<u64>) -> Option<&'data [u8]> {
        match self {
            Self::Memory(bytes) => {
                bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
            }
            Self::File(file) => file.bytes(range),
        }
    }

    /// Passes the bytes of a range to `visit` in pieces, without keeping them. `visit` gets the offset of each piece in the range.
    /// Pieces overlap by `overlap` bytes. Returns false if the file does not have the bytes, or cannot be read.
    #[must_use]
    pub fn visit(self, range: Range<u64>, overlap: usize, mut visit: impl FnMut(u64, &[u8])) -> bool {
        let file = match self {
            Self::Memory(_) => return self.get(range).map(|bytes| visit(0, bytes)).is_some(),
            Self::File(file) => file,
        };
        let mut piece = vec![0; PIECE_BYTES + overlap];
        let mut at = range.start;
        while at < range.end {
            let length = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(piece.len());
            let bytes = &mut piece[..length];
            if file.fill(at, bytes).is_none() {
                return false;
            }
            visit(at - range.start, bytes);
            at += PIECE_BYTES as u64;
        }
        true
    }
}

impl<'data> From<&'data [u8]> for Content<'data> {
    fn from(bytes: &'data [u8]) -> Self {
        Self::Memory(bytes)
    }
}

impl<'data> From<&'data Vec<u8>> for Content<'data> {
    fn from(bytes: &'data Vec<u8>) -> Self {
        Self::Memory(bytes)
    }
}

impl<'data, const LENGTH: usize> From<&'data [u8; LENGTH]> for Content<'data> {
    fn from(bytes: &'data [u8; LENGTH]) -> Self {
        Self::Memory(bytes)
    }
}

impl<'data> From<&'data LazyFile<'data>> for Content<'data> {
    fn from(file: &'data LazyFile<'data>) -> Self {
        Self::File(file)
    }
}

impl<'data> ReadRef<'data> for Content<'data> {
    fn len(self) -> Result<u64, ()> {
        Ok(self.length())
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'data [u8], ()> {
        if size == 0 {
            return Ok(&[]);
        }
        self.get(offset..offset.checked_add(size).ok_or(())?).ok_or(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'data [u8], ()> {
        // A file can name any offset.
        let end = range.end.min(self.length());
        let range = range.start..end.min(range.start.saturating_add(MAX_STRING_BYTES));
        let mut known = range.start;
        while known < range.end {
            let end = range.end.min((known / BLOCK_BYTES + 1) * BLOCK_BYTES);
            if let Some(length) = memchr(delimiter, self.get(known..end).ok_or(())?) {
                return self.get(range.start..known + length as u64).ok_or(());
            }
            known = end;
        }
        Err(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// Bytes that differ from block to block.
    fn many() -> Vec<u8> {
        (0..3 * BLOCK_BYTES + 5).map(|at| u8::try_from(at % 251).unwrap()).collect()
    }

    #[test]
    fn ranges_are_those_of_the_file_and_only_their_blocks_are_read() {
        let bytes = many();
        let file = file(&bytes);
        let lazy = LazyFile::new(&file).unwrap();
        let content = Content::from(&lazy);
        let range = BLOCK_BYTES - 3..BLOCK_BYTES + 7;
        assert_eq!(content.get(range.clone()), Content::from(&bytes).get(range));
        assert_eq!(lazy.held(), [true, true, false, false]);
        let end = bytes.len() as u64;
        assert_eq!(content.get(end - 5..end), Some(&bytes[bytes.len() - 5..]));
        assert_eq!((content.get(end - 5..end + 1), content.get(end..end)), (None, Some(&[][..])));
    }

    #[test]
    fn a_string_ends_at_its_delimiter_in_any_block() {
        let mut bytes = vec![b'a'; usize::try_from(2 * BLOCK_BYTES).unwrap() + 9];
        let end = bytes.len() - 2;
        bytes[end] = 0;
        let file = file(&bytes);
        let lazy = LazyFile::new(&file).unwrap();
        for content in [Content::from(&lazy), Content::from(&bytes)] {
            let begin = BLOCK_BYTES + 10;
            let string = content.read_bytes_at_until(begin..content.length(), 0);
            assert!(string == Ok(&bytes[usize::try_from(begin).unwrap()..end]));
            assert_eq!(content.read_bytes_at_until(10..100, 0), Err(()));
        }
    }

    #[test]
    fn a_string_beyond_the_end_of_the_file_is_none() {
        let bytes = many();
        let file = file(&bytes);
        let lazy = LazyFile::new(&file).unwrap();
        for content in [Content::from(&lazy), Content::from(&bytes)] {
            for begin in [content.length(), u64::MAX - 1] {
                assert_eq!(content.read_bytes_at_until(begin..u64::MAX, 0), Err(()));
            }
            let last = content.length() - content.length() % 251;
            assert_eq!(content.read_bytes_at_until(last..u64::MAX, 0), Ok(&[][..]));
        }
    }

    #[test]
    fn pieces_overlap_and_cover_the_range() {
        let bytes: Vec<_> = (0..2 * PIECE_BYTES + 100).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let file = file(&bytes);
        let lazy = LazyFile::new(&file).unwrap();
        let mut pieces = Vec::new();
        let range = 50..bytes.len() as u64;
        assert!(Content::from(&lazy).visit(range.clone(), 8, |at, piece| pieces.push((at, piece.to_vec()))));
        let places = pieces.iter().map(|(at, piece)| (usize::try_from(*at).unwrap(), piece.len()));
        assert_eq!(
            places.collect::<Vec<_>>(),
            [(0, PIECE_BYTES + 8), (PIECE_BYTES, PIECE_BYTES + 8), (2 * PIECE_BYTES, 50)]
        );
        assert!(
            pieces
                .iter()
                .all(|(at, piece)| { bytes[50 + usize::try_from(*at).unwrap()..].starts_with(piece) })
        );
        assert!(lazy.held().iter().all(|held| !held), "nothing is kept");
    }

    #[test]
    fn a_truncated_file_ends_where_it_does_now() {
        let bytes = many();
        let file = file(&bytes);
        let lazy = LazyFile::new(&file).unwrap();
        let content = Content::from(&lazy);
        let kept = content.get(0..10).unwrap();
        file.set_len(BLOCK_BYTES).unwrap();
        assert_eq!(content.get(BLOCK_BYTES..BLOCK_BYTES + 1), None);
        assert!(!content.visit(0..content.length(), 0, |_, _| {}));
        assert_eq!(kept, &bytes[..10]);
    }

    #[test]
    fn a_string_without_an_end_is_none() {
        let bytes = vec![b'a'; usize::try_from(MAX_STRING_BYTES).unwrap() + 9];
        let mut ended = bytes.clone();
        ended.push(0);
        for content in [Content::from(&bytes), Content::from(&ended)] {
            assert_eq!(content.read_bytes_at_until(0..content.length(), 0), Err(()));
        }
        let content = Content::from(&ended);
        assert!(content.read_bytes_at_until(10..content.length(), 0).is_ok());
    }

    #[test]
    fn a_file_holds_a_bounded_amount_of_memory_and_says_when_that_is_too_little() {
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(2 << 30).unwrap();
        let lazy = LazyFile::new(&sparse).unwrap();
        let content = Content::from(&lazy);
        assert!(content.visit(0..200 << 20, 0, |_, _| {}), "a visit keeps nothing");
        assert!(content.get(0..MAX_HELD_BYTES).is_some());
        assert_eq!(content.check(), Ok(()));
        assert_eq!(content.get(1 << 30..(1 << 30) + 1), None);
        assert_eq!(content.check(), Err(TooCostly::Memory));
        assert!(content.get(0..10).is_none() && !content.visit(0..10, 0, |_, _| {}), "all reads fail now");
    }

    #[test]
    fn reading_ends_when_another_thread_says_so() {
        let file = file(&many());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let stop = StopReading::default();
                stop.apply_to_thread();
                let lazy = LazyFile::new(&file).unwrap();
                let content = Content::from(&lazy);
                assert!(content.get(0..1).is_some());
                stop.stop();
                assert_eq!(content.get(BLOCK_BYTES..BLOCK_BYTES + 1), None);
                assert_eq!(content.check(), Err(TooCostly::Stopped));
            });
        });
        assert!(LazyFile::new(&file).is_ok_and(|lazy| Content::from(&lazy).get(0..1).is_some()));
    }

    #[test]
    fn a_window_shows_what_the_file_has_and_keeps_little() {
        let bytes = many();
        let kept = file(&bytes);
        let lazy = LazyFile::new(&kept).unwrap();
        for content in [Content::from(&lazy), Content::from(&bytes)] {
            let mut window = Window::new(content);
            let length = bytes.len() as u64;
            for range in [0..9, BLOCK_BYTES - 3..BLOCK_BYTES + 4, 5..length, length - 2..length + 7] {
                let expected = content.get(range.start..range.end.min(length)).map(<[u8]>::to_vec);
                assert_eq!(window.bytes(range).map(<[u8]>::to_vec), expected);
            }
            // A NUL is at each multiple of 251.
            assert_eq!(window.string(240..length, 12).map(<[u8]>::len), Some(11));
            assert_eq!(window.string(240..length, 11), None);
            assert_eq!(window.string(length..length + 1, 11), None);
        }
    }

    #[test]
    fn a_window_does_not_hold_a_large_file() {
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(1 << 30).unwrap();
        sparse.write_all_at(b"name", 900 << 20).unwrap();
        let lazy = LazyFile::new(&sparse).unwrap();
        let mut window = Window::new(Content::from(&lazy));
        for at in (0..1 << 30).step_by(1 << 20) {
            assert_eq!(
                window.string(at..1 << 30, 9).unwrap(),
                if at == 900 << 20 { &b"name"[..] } else { b"" }
            );
        }
        assert!(lazy.held().iter().all(|held| !held));
    }

    #[test]
    fn names_in_any_order_are_read_without_the_bytes_between_them() {
        const NAMES: u64 = 10_000;
        const NAMES_BYTES: u64 = 100 << 20;
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(NAMES_BYTES).unwrap();
        let lazy = LazyFile::new(&sparse).unwrap();
        let mut window = Window::new(Content::from(&lazy));
        for number in 0..NAMES {
            let at = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % NAMES_BYTES;
            assert!(window.string(at..NAMES_BYTES, 64).is_some());
        }
        assert!(lazy.filled.get() <= (16 << 20) + NAMES * 8192, "{}", lazy.filled.get());
    }
}
