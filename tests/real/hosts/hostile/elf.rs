//! Writes ELF files of which each part can be as large, as small, or as wrong as a test wants it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Address of the code, which is one page at the beginning of the file.
pub(crate) const CODE: u64 = 0x1000;
const PAGE: u64 = 0x1000;
/// Calls its first argument: push rbp; mov rbp, rsp; call rdi; pop rbp; ret. `tests/fixtures/hostile` allocates through it.
const CALL: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3];

/// `SHF_COMPRESSED`.
const COMPRESSED: u64 = 0x800;

pub(crate) const PROGBITS: u32 = 1;
pub(crate) const SYMTAB: u32 = 2;
pub(crate) const STRTAB: u32 = 3;
pub(crate) const DYNSYM: u32 = 11;

/// A section: the names and links are those of [`Elf`].
#[derive(Clone)]
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) kind: u32,
    /// Index of another section.
    pub(crate) link: u32,
    pub(crate) address: u64,
    pub(crate) entry_bytes: u64,
    /// Length, which can be more than that of the content: the rest is a hole.
    pub(crate) length: u64,
    pub(crate) content: Vec<u8>,
    pub(crate) is_compressed: bool,
}

impl Section {
    pub(crate) fn new(name: &'static str, kind: u32, content: Vec<u8>) -> Self {
        let length = content.len() as u64;
        Self { name, kind, link: 0, address: 0, entry_bytes: 1, length, content, is_compressed: false }
    }

    /// Symbols whose names are in section `link`.
    pub(crate) fn symbols(kind: u32, link: u32, symbols: Vec<u8>) -> Self {
        Self { link, entry_bytes: 24, ..Self::new(".symtab", kind, symbols) }
    }

    pub(crate) fn sparse(self, length: u64) -> Self {
        Self { length, ..self }
    }
}

/// A symbol of a function of 16 bytes at the beginning of the code.
pub(crate) fn symbol(name: u32) -> Vec<u8> {
    [&name.to_le_bytes()[..], &[0x12, 0, 1, 0], &CODE.to_le_bytes(), &16_u64.to_le_bytes()].concat()
}

pub(crate) fn halves(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A program header, of a segment with these permissions.
pub(crate) fn load(flags: u64, offset: u64, address: u64, length: u64) -> Vec<u8> {
    words(&[1 | flags << 32, offset, address, address, length, length, PAGE])
}

/// A file with one segment of code and these sections, from number 1 on.
pub(crate) struct Elf {
    pub(crate) code: Vec<u8>,
    pub(crate) headers: Vec<Vec<u8>>,
    pub(crate) sections: Vec<Section>,
}

impl Elf {
    pub(crate) fn new(sections: Vec<Section>) -> Self {
        Self { code: CALL.to_vec(), headers: Vec::new(), sections }
    }

    /// Writes the file. The code is on its second page.
    pub(crate) fn write(&self, path: &Path) {
        let file = File::create(path).unwrap();
        let put = |at: u64, bytes: &[u8]| file.write_all_at(bytes, at).unwrap();
        let code_bytes = self.code.len() as u64;
        put(PAGE, &self.code);
        let mut end = (PAGE + code_bytes).next_multiple_of(PAGE);
        let (mut names, mut table) = (vec![0], vec![0; 64]);
        let shown = Section::new(".shstrtab", STRTAB, Vec::new());
        for section in self.sections.iter().chain([&shown]) {
            let name = u32::try_from(names.len()).unwrap();
            names.extend(section.name.bytes().chain([0]));
            let (content, length) = match section.name {
                ".shstrtab" => (&names, names.len() as u64),
                _ => (&section.content, section.length),
            };
            put(end, content);
            table.extend([name.to_le_bytes(), section.kind.to_le_bytes()].concat());
            // Debug information is not loaded.
            let flags = if section.name.starts_with(".debug") { 0 } else { 2 };
            let flags = if section.is_compressed { COMPRESSED } else { flags };
            table.extend(words(&[flags, section.address, end, length]));
            table.extend([section.link.to_le_bytes(), [0; 4]].concat());
            table.extend(words(&[8, section.entry_bytes]));
            end = (end + length).next_multiple_of(PAGE);
        }
        let headers = [&[load(5, PAGE, CODE, code_bytes)][..], &self.headers].concat();
        let (of_headers, of_sections) = (end, end + (headers.len() as u64 * 56).next_multiple_of(PAGE));
        put(of_headers, &headers.concat());
        put(of_sections, &table);
        let counts = [headers.len(), 64, table.len() / 64, table.len() / 64 - 1];
        let counts = counts.map(|count| u16::try_from(count).unwrap());
        let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        header.extend(halves(&[3, 62, 1, 0]));
        header.extend(words(&[CODE, of_headers, of_sections]));
        header.extend(halves(&[0, 0, 64, 56]).iter().chain(&halves(&counts)));
        put(0, &header);
    }
}
