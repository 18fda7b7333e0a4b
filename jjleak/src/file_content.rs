//! The content of a file, read block by block when it is needed.
//!
//! Files of a target are not mapped: jjleak would be killed if the target truncated one. They are not read whole either, because
//! some have hundreds of megabytes, most of which nobody asks for.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memchr::memchr;
use memmap2::{MmapOptions, MmapRaw};
use object::ReadRef;

/// Size of a block.
const BLOCK_BYTES: u64 = 64 << 10;

/// Size of a piece in [`Content::visit`].
const PIECE_BYTES: usize = 1 << 20;

/// A file with the blocks that have been read. It takes memory for these only.
#[derive(Debug)]
pub struct LazyFile<'file> {
    file: &'file File,
    length: u64,
    /// Address space for the whole file.
    memory: MmapRaw,
    /// True for each block that has been read.
    read: RefCell<Vec<bool>>,
}

impl<'file> LazyFile<'file> {
    /// The content of a file in its current length.
    pub fn new(file: &'file File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let size = usize::try_from(length).map_err(io::Error::other)?.max(1);
        let memory = MmapOptions::new().len(size).no_reserve_swap().map_anon()?.into();
        let blocks = usize::try_from(length.div_ceil(BLOCK_BYTES)).map_err(io::Error::other)?;
        Ok(Self { file, length, memory, read: RefCell::new(vec![false; blocks]) })
    }

    /// The bytes of a range; `None` if the file does not have them, or cannot be read.
    fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.length {
            return None;
        }
        for block in range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES) {
            self.read_block(block)?;
        }
        let (start, length) =
            (usize::try_from(range.start).ok()?, usize::try_from(range.end - range.start).ok()?);
        // SAFETY: the range is in bounds of the memory, which lives as long as `self`. Its blocks have been read, and blocks that
        // have been read are not written again.
        Some(unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), length) })
    }

    fn read_block(&self, block: u64) -> Option<()> {
        let index = usize::try_from(block).ok()?;
        if *self.read.borrow().get(index)? {
            return Some(());
        }
        let start = block * BLOCK_BYTES;
        let length = BLOCK_BYTES.min(self.length - start);
        let (offset, length) = (usize::try_from(start).ok()?, usize::try_from(length).ok()?);
        // SAFETY: the block is in bounds of the memory. Nothing refers to it, because it has not been read.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(offset), length) };
        self.file.read_exact_at(bytes, start).ok()?;
        self.read.borrow_mut()[index] = true;
        Some(())
    }
}

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
            Self::File(file) => file.length,
        }
    }

    /// The bytes of a range; `None` if the file does not have them, or cannot be read.
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
            if file.file.read_exact_at(bytes, at).is_err() {
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
    use std::io::Write;

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
        assert_eq!(*lazy.read.borrow(), [true, true, false, false]);
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
            let whole = 10..content.length();
            assert_eq!(content.read_bytes_at_until(whole, 0), Ok(&bytes[10..end]));
            assert_eq!(content.read_bytes_at_until(10..100, 0), Err(()));
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
        assert!(lazy.read.borrow().iter().all(|read| !read), "nothing is kept");
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
}
