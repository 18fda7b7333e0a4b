//! The module's memory once it is loaded at the addresses for which it was linked.

use std::collections::HashMap;
use std::ops::Range;

use object::{
    LittleEndian, ReadRef,
    elf::{self, ProgramHeader64, Rela64},
    pod,
    read::elf::ProgramHeader,
};

const WORD_BYTES: usize = 8;
const WORD: u64 = WORD_BYTES as u64;

/// Maximum number of loaded segments of a Go program: Go's linker creates three, others up to ten. Each word is looked up in each.
const MAX_SEGMENTS: usize = 64;

/// Maximum number of relocations read: position-independent Go programs have one for each pointer in their data, about 100,000.
const MAX_RELOCATIONS: usize = 1 << 22;

/// The loaded content of a file, with the words that the dynamic loader writes.
pub(in crate::unwind) struct Image<'data> {
    segments: Vec<Segment<'data>>,
    /// Words that become addresses in the module.
    relocated: HashMap<u64, u64>,
}

struct Segment<'data> {
    addresses: Range<u64>,
    bytes: &'data [u8],
    is_code: bool,
    is_writable: bool,
}

impl<'data> Image<'data> {
    /// Reads the segments; `None` if they are too many, or hold more bytes than the file: each would be read by itself.
    pub(in crate::unwind) fn new(
        segments: &[ProgramHeader64<LittleEndian>],
        elf: impl ReadRef<'data>,
    ) -> Option<Self> {
        let loaded = || segments.iter().filter(|it| it.p_type(LittleEndian) == elf::PT_LOAD);
        let room = elf.len().ok()?;
        loaded().try_fold(room, |room, segment| room.checked_sub(segment.p_filesz(LittleEndian)))?;
        if loaded().count() > MAX_SEGMENTS {
            return None;
        }
        let loaded = loaded().filter_map(|segment| {
            let bytes = segment.data(LittleEndian, elf).ok()?;
            let start = segment.p_vaddr(LittleEndian);
            Some(Segment {
                addresses: start..start.checked_add(bytes.len() as u64)?,
                bytes,
                is_code: segment.p_flags(LittleEndian).contains(elf::PF_X),
                is_writable: segment.p_flags(LittleEndian).contains(elf::PF_W),
            })
        });
        let mut image = Self { segments: loaded.collect(), relocated: HashMap::new() };
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
        let from = usize::try_from(address - segment.addresses.start).unwrap_or(usize::MAX);
        let bytes = segment.bytes.get(from..).unwrap_or_default();
        &bytes[..bytes.len().min(usize::try_from(size).unwrap_or(usize::MAX))]
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
        let segments = self.segments.iter().filter(|segment| segment.is_code);
        let mut found = segments.filter_map(|segment| {
            Some(segment.addresses.start + memchr::memmem::find(segment.bytes, code)? as u64)
        });
        found.next()
    }

    /// Addresses of words with this value in writable memory.
    pub(super) fn places_of(&self, value: u64) -> impl Iterator<Item = u64> {
        let relocated = self.relocated.iter().filter(move |(_, word)| **word == value).map(|(at, _)| *at);
        let written = self.segments.iter().filter(|segment| segment.is_writable).flat_map(move |segment| {
            // Segments begin at any address, words at multiples of their size.
            let start = segment.addresses.start.next_multiple_of(WORD);
            let skip = usize::try_from(start - segment.addresses.start).unwrap_or(usize::MAX);
            let words = segment.bytes.get(skip..).unwrap_or_default().chunks_exact(WORD_BYTES);
            let words = words.enumerate().filter(move |(_, word)| **word == value.to_le_bytes());
            words.map(move |(index, _)| start + index as u64 * WORD)
        });
        relocated.chain(written)
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
        Image::new(headers, &*vec![0; length]).map(|image| image.segments.len())
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
