//! What the program headers of a mapped file tell. Little is read of the file, however large it says it is: its content
//! may be the target's choice.

use std::fmt::Write;
use std::fs::File;

use object::elf::{
    ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID, PF_X, PN_XNUM, PT_LOAD, PT_NOTE, ProgramHeader64,
};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};

/// Of memory.
const PAGE_BYTES: u64 = 4096;
/// Segments of notes that are looked at; linkers make up to three.
const MAX_NOTE_SEGMENTS: usize = 16;
/// Largest segment of notes that is read; those of linkers have up to some hundred bytes.
const MAX_NOTE_BYTES: u64 = 64 << 10;
/// Longest build ID; linkers make them of 8 to 32 bytes.
const MAX_BUILD_ID_BYTES: usize = 64;

/// What is known of a 64-bit ELF file; nothing of another.
#[derive(Debug, Default)]
pub(super) struct Headers {
    /// Build ID in hex; empty when it has none.
    pub(super) build_id: String,
    /// Loaded parts of the file.
    segments: Vec<Segment>,
}

/// A loaded part of a file.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    file_offset: u64,
    file_size: u64,
    executable: bool,
}

impl Headers {
    pub(super) fn read(file: &File) -> Self {
        let content = ReadCache::new(file);
        parse(&content).unwrap_or_default()
    }

    /// Offsets in the file at which mappings of its code begin.
    pub(super) fn code_offsets(&self) -> impl Iterator<Item = u64> {
        let code = self.segments.iter().filter(|segment| segment.executable);
        code.map(|segment| segment.file_offset & !(PAGE_BYTES - 1))
    }

    /// The address that the program headers give to an offset in the file.
    pub(super) fn address_of(&self, file_offset: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|segment| {
            // A mapping begins at the page that holds the segment's first byte.
            let start = segment.file_offset & !(PAGE_BYTES - 1);
            file_offset >= start && file_offset < segment.file_offset.saturating_add(segment.file_size)
        })?;
        Some(segment.address.wrapping_add(file_offset).wrapping_sub(segment.file_offset))
    }
}

fn parse<'data>(content: impl ReadRef<'data>) -> Option<Headers> {
    let header = FileHeader64::<Endianness>::parse(content).ok()?;
    let endian = header.endian().ok()?;
    // From this number on, the file itself says how many there are.
    if header.e_phnum(endian) == PN_XNUM {
        return None;
    }
    let programs = header.program_headers(endian, content).ok()?;
    let loaded = programs.iter().filter(|program| program.p_type(endian) == PT_LOAD);
    let segment = |program: &ProgramHeader64<Endianness>| Segment {
        address: program.p_vaddr(endian),
        file_offset: program.p_offset(endian),
        file_size: program.p_filesz(endian),
        executable: program.p_flags(endian).contains(PF_X),
    };
    let mut notes =
        programs.iter().filter(|program| program.p_type(endian) == PT_NOTE).take(MAX_NOTE_SEGMENTS);
    Some(Headers {
        build_id: notes.find_map(|notes| build_id(notes, endian, content)).unwrap_or_default(),
        segments: loaded.map(segment).collect(),
    })
}

fn build_id<'data>(
    program: &ProgramHeader64<Endianness>,
    endian: Endianness,
    content: impl ReadRef<'data>,
) -> Option<String> {
    if program.p_filesz(endian) > MAX_NOTE_BYTES {
        return None;
    }
    let mut notes = program.notes(endian, content).ok()??;
    while let Some(note) = notes.next().ok()? {
        let id = note.desc();
        if note.name() == ELF_NOTE_GNU
            && note.n_type(endian) == NT_GNU_BUILD_ID
            && id.len() <= MAX_BUILD_ID_BYTES
        {
            return Some(hex(id));
        }
    }
    None
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use object::{Object, ObjectSegment};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_are_those_that_the_whole_file_shows() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = object::File::parse(bytes.as_slice()).unwrap();
        let headers = Headers::read(&File::open(std::env::current_exe().unwrap()).unwrap());
        assert_eq!(headers.build_id, hex(elf.build_id().unwrap().unwrap_or_default()));
        let text = elf.segments().find(|segment| segment.file_range().0 > PAGE_BYTES).unwrap();
        assert_eq!(headers.address_of(text.file_range().0 + 7), Some(text.address() + 7));
        assert_eq!(headers.address_of(u64::MAX), None);
    }

    #[test]
    fn a_file_that_is_no_program_has_none() {
        let headers = Headers::read(&File::open("/proc/self/status").unwrap());
        assert!(headers.build_id.is_empty() && headers.segments.is_empty());
    }

    proptest! {
        #[test]
        fn damaged_headers_are_no_danger(at in 0usize..1024, value: u64) {
            let mut bytes = vec![0; 1 << 16];
            File::open(std::env::current_exe().unwrap()).unwrap().read_exact(&mut bytes).unwrap();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            if let Some(headers) = parse(bytes.as_slice()) {
                headers.address_of(value);
            }
        }
    }
}
