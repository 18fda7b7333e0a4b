//! The module's memory once it is loaded at the addresses for which it was linked.

use std::collections::HashMap;
use std::ops::Range;

use object::{
    LittleEndian,
    elf::{self, ProgramHeader64, Rela64},
    pod,
    read::elf::ProgramHeader,
};

use crate::file_content::Content;

const WORD_BYTES: usize = 8;
const WORD: u64 = WORD_BYTES as u64;

/// Maximum number of loaded segments of a Go program: Go's linker creates three, others up to ten. Each word is looked up in each.
const MAX_SEGMENTS: usize = 64;

/// Maximum number of relocations read: position-independent Go programs have one for each pointer in their data, about 100,000.
const MAX_RELOCATIONS: usize = 1 << 20;

/// Maximum number of words with the address of a table; Go's linker writes one.
const MAX_PLACES: usize = 64;

/// The loaded content of a file, with the words that the dynamic loader writes.
pub(in crate::unwind) struct Image<'data> {
    elf: Content<'data>,
    segments: Vec<Segment>,
    /// Words that become addresses in the module.
    relocated: HashMap<u64, u64>,
}

struct Segment {
    addresses: Range<u64>,
    /// File offset of the first byte.
    offset: u64,
    is_code: bool,
    is_writable: bool,
}

impl<'data> Image<'data> {
    /// Reads the segments; `None` if they are too many, or hold more bytes than the file: each would be read by itself.
    pub(in crate::unwind) fn new(
        segments: &[ProgramHeader64<LittleEndian>],
        elf: Content<'data>,
    ) -> Option<Self> {
        let loaded = || segments.iter().filter(|it| it.p_type(LittleEndian) == elf::PT_LOAD);
        let room = elf.length();
        loaded().try_fold(room, |room, segment| room.checked_sub(segment.p_filesz(LittleEndian)))?;
        if loaded().count() > MAX_SEGMENTS {
            return None;
        }
        let loaded = loaded().filter_map(|segment| {
            let (offset, bytes) = segment.file_range(LittleEndian);
            let start = segment.p_vaddr(LittleEndian);
            offset.checked_add(bytes).filter(|end| *end <= elf.length())?;
            Some(Segment {
                addresses: start..start.checked_add(bytes)?,
                offset,
                is_code: segment.p_flags(LittleEndian).contains(elf::PF_X),
                is_writable: segment.p_flags(LittleEndian).contains(elf::PF_W),
            })
        });
        let mut image = Self { elf, segments: loaded.collect(), relocated: HashMap::new() };
        let dynamic = segments.iter().find(|it| it.p_type(LittleEndian) == elf::PT_DYNAMIC);
        if let Some(dynamic) = dynamic.and_then(|it| it.data(LittleEndian, elf).ok()) {
            image.relocated = image.relocations(dynamic).unwrap_or_default();
        }
        Some(image)
    }

    /// Addends of relative relocations, by address.
    fn relocations(&self, dynamic: &'data [u8]) -> Option<HashMap<u64, u64>> {
        let word = |at: &[u8]| at.try_into().ok().map(u64::from_le_bytes);
        let (mut table, mut size) = (0, 0);
        for entry in dynamic.chunks_exact(2 * WORD_BYTES) {
            let (tag, value) = (word(&entry[..WORD_BYTES])?, word(&entry[WORD_BYTES..])?);
            match i64::try_from(tag).unwrap_or(-1) {
                tag if tag == elf::DT_RELA.0 => table = value,
                tag if tag == elf::DT_RELASZ.0 => size = value,
                tag if tag == elf::DT_NULL.0 => break,
                _ => {}
            }
        }
        let bytes = self.bytes(table, size);
        let count = (bytes.len() / size_of::<Rela64<LittleEndian>>()).min(MAX_RELOCATIONS);
        let (relocations, _) = pod::slice_from_bytes::<Rela64<LittleEndian>>(bytes, count).ok()?;
        let relative =
            relocations.iter().filter(|it| it.r_type(LittleEndian, false) == elf::R_X86_64_RELATIVE);
        let pairs = relative.map(|it| (it.r_offset.get(LittleEndian), it.r_addend.get(LittleEndian)));
        Some(pairs.map(|(at, addend)| (at, addend.cast_unsigned())).collect())
    }

    /// Bytes at an address; fewer if the file ends earlier.
    pub(super) fn bytes(&self, address: u64, size: u64) -> &'data [u8] {
        let segment = self.segments.iter().find(|segment| segment.addresses.contains(&address));
        let Some(segment) = segment else { return &[] };
        let size = size.min(segment.addresses.end - address);
        let offset = segment.offset + (address - segment.addresses.start);
        self.elf.get(offset..offset + size).unwrap_or_default()
    }

    /// The word at an address.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        if let Some(word) = self.relocated.get(&address) {
            return Some(*word);
        }
        Some(u64::from_le_bytes(self.bytes(address, WORD).try_into().ok()?))
    }

    /// The first address of these bytes in code.
    pub(super) fn find_code(&self, code: &[u8]) -> Option<u64> {
        let mut found = None;
        for segment in self.segments.iter().filter(|segment| segment.is_code && !code.is_empty()) {
            segment.visit(self.elf, code.len() - 1, |address, bytes| {
                found = found.or_else(|| Some(address + memchr::memmem::find(bytes, code)? as u64));
            });
        }
        found
    }

    /// Addresses of words with this value in writable memory.
    pub(super) fn places_of(&self, value: u64) -> Vec<u64> {
        let relocated = self.relocated.iter().filter(|(_, word)| **word == value).map(|(at, _)| *at);
        let mut places: Vec<_> = relocated.take(MAX_PLACES).collect();
        for segment in self.segments.iter().filter(|segment| segment.is_writable) {
            segment.visit(self.elf, WORD_BYTES - 1, |address, bytes| {
                // Segments begin at any address, words at multiples of their size.
                let skip = usize::try_from(address.wrapping_neg() % WORD).unwrap_or_default();
                let words = bytes.get(skip..).unwrap_or_default().chunks_exact(WORD_BYTES);
                let words = words.enumerate().filter(|(_, word)| **word == value.to_le_bytes());
                let found = words.map(|(index, _)| address + skip as u64 + index as u64 * WORD);
                places.extend(found.take(MAX_PLACES.saturating_sub(places.len())));
            });
        }
        places
    }
}

impl Segment {
    /// Passes its bytes to `visit`, in pieces with their addresses that overlap by `overlap` bytes. A file that cannot be read has
    /// none.
    fn visit(&self, elf: Content<'_>, overlap: usize, mut visit: impl FnMut(u64, &[u8])) {
        let range = self.offset..self.offset + (self.addresses.end - self.addresses.start);
        let _ = elf.visit(range, overlap, |at, bytes| visit(self.addresses.start + at, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(length: usize, segments: usize, size: u64) -> Option<usize> {
        let header = [1 | 4 << 32, 0, 0x1000, 0x1000, size, size, 0x1000].map(u64::to_le_bytes).concat();
        let headers = header.repeat(segments);
        let (headers, _) =
            pod::slice_from_bytes::<ProgramHeader64<LittleEndian>>(&headers, segments).unwrap();
        Image::new(headers, Content::from(&vec![0; length])).map(|image| image.segments.len())
    }

    #[test]
    fn segments_that_overlap_are_not_read() {
        assert_eq!(read(4096, 4, 1024), Some(4));
        assert_eq!(read(4096, 5, 1024), None);
        assert_eq!(read(4096, 2, u64::MAX), None);
    }

    #[test]
    fn more_segments_than_any_linker_creates_are_not_read() {
        assert_eq!(read(4096, MAX_SEGMENTS, 1), Some(MAX_SEGMENTS));
        assert_eq!(read(4096, MAX_SEGMENTS + 1, 1), None);
    }
}
