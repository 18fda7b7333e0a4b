//! Program headers of a mapped file. Reads are bounded whatever sizes the file states: the target may control its content.

use std::fmt::Write;
use std::fs::File;

use object::elf::{
    ELF_NOTE_GNU, ET_EXEC, FileHeader64, NT_GNU_BUILD_ID, PF_X, PN_XNUM, PT_LOAD, PT_NOTE, ProgramHeader64,
};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader, SectionHeader};
use object::{Endianness, ReadCache, ReadRef};

use super::layout::{Layout, Segment};

/// Maximum number of note segments to read; linkers create up to three.
const MAX_NOTE_SEGMENTS: usize = 16;
/// Maximum size of a note segment; those of linkers have up to a few hundred bytes.
const MAX_NOTE_BYTES: u64 = 64 << 10;
/// Maximum length of a build ID; linkers create 8 to 32 bytes.
const MAX_BUILD_ID_BYTES: usize = 64;

/// Headers of a 64-bit ELF file; empty for other files.
#[derive(Debug, Default)]
pub(super) struct Headers {
    /// Build ID in hex; empty if there is none.
    pub(super) build_id: String,
    /// Loaded segments.
    pub(super) layout: Layout,
}

impl Headers {
    pub(super) fn read(file: &File) -> Self {
        let content = ReadCache::new(file);
        parse(&content).unwrap_or_default()
    }
}

fn parse<'data>(content: impl ReadRef<'data>) -> Option<Headers> {
    let header = FileHeader64::<Endianness>::parse(content).ok()?;
    let endian = header.endian().ok()?;
    // From this number on, the count is stored elsewhere in the file (elf(5)).
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
        layout: Layout::new(loaded.map(segment), header.e_type(endian) == ET_EXEC),
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
    id_in(program.notes(endian, content).ok()??, endian)
}

/// Build ID of a separate debug file in hex; empty if there is none. The program headers of such a file are those of the file that it
/// belongs to, and may not lead to its notes. Its section headers do.
pub(super) fn debug_file_build_id(file: &File) -> String {
    let content = ReadCache::new(file);
    section_build_id(&content).unwrap_or_else(|| Headers::read(file).build_id)
}

fn section_build_id<'data>(content: impl ReadRef<'data>) -> Option<String> {
    let header = FileHeader64::<Endianness>::parse(content).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, content).ok()?;
    let (_, section) = sections.section_by_name(endian, b".note.gnu.build-id")?;
    if section.sh_size(endian) > MAX_NOTE_BYTES {
        return None;
    }
    id_in(section.notes(endian, content).ok()??, endian)
}

fn id_in(mut notes: NoteIterator<'_, FileHeader64<Endianness>>, endian: Endianness) -> Option<String> {
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

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use object::{Object, ObjectSegment, SegmentFlags};
    use proptest::prelude::*;

    use super::*;
    use crate::processes::layout::Part;

    #[test]
    fn headers_are_those_that_the_whole_file_shows() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = object::File::parse(bytes.as_slice()).unwrap();
        let headers = Headers::read(&File::open(std::env::current_exe().unwrap()).unwrap());
        assert_eq!(headers.build_id, hex(elf.build_id().unwrap().unwrap_or_default()));
        let is_code = |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.contains(PF_X));
        let text = elf.segments().find(|segment| is_code(segment.flags())).unwrap();
        let addend = text.address().wrapping_sub(text.file_range().0);
        assert_eq!(headers.layout.common_addend(), Some(addend));
    }

    #[test]
    fn a_file_that_is_no_program_has_none() {
        let headers = Headers::read(&File::open("/proc/self/status").unwrap());
        assert!(headers.build_id.is_empty() && headers.layout.segments().is_empty());
    }

    proptest! {
        #[test]
        fn damaged_headers_are_no_danger(at in 0usize..1024, value: u64) {
            let mut bytes = vec![0; 1 << 16];
            File::open(std::env::current_exe().unwrap()).unwrap().read_exact(&mut bytes).unwrap();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            if let Some(headers) = parse(bytes.as_slice()) {
                let code = Part::of_code(&(value..value.saturating_add(1)), value);
                headers.layout.addend(&code, &std::iter::once(code.clone()).collect());
            }
        }
    }
}
