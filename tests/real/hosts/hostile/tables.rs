//! Symbols, call frame information, notes, and what the dynamic linker and Go read.

use super::bombs::{c_library, frames};
use super::elf::{CODE, DYNSYM, Elf, PROGBITS, STRTAB, SYMTAB, Section, symbol, words};
use super::entry::{Entry, elf};

const HASH: u32 = 5;
const DYNAMIC: u32 = 6;
const NOTE: u32 = 7;
const GNU_HASH: u32 = 0x6fff_fff6;
/// Types of program headers.
const PT_DYNAMIC: u64 = 2;
const PT_NOTE: u64 = 4;
const PT_EH_FRAME: u64 = 0x6474_e550;

pub(super) fn all() -> Vec<Entry> {
    vec![
        elf("names-with-controls", || {
            symbols("\0malloc\x1b[2J\n7f00 /etc/shadow\u{202e}\0".as_bytes(), vec![symbol(1)])
        }),
        elf("names-that-are-not-utf-8", || symbols(b"\0_ZN\xff\xfe\x80\0", vec![symbol(1)])),
        elf("mangled-name-that-grows", || {
            // Each substitution refers to all that is before it.
            let name = format!("\0_Z1f{}\0", "1aIS_S_E".repeat(20_000));
            symbols(name.as_bytes(), vec![symbol(1)])
        }),
        elf("rust-name-that-grows", || {
            let name = format!("\0_RNv{}C1a1b\0", "INvC1a1bB4_B4_E".repeat(5000));
            symbols(name.as_bytes(), vec![symbol(1)])
        }),
        elf("symbols-that-link-to-themselves", || {
            let table = Section::symbols(SYMTAB, 1, symbol(1).repeat(1000));
            Elf::new(vec![table])
        }),
        elf("symbols-with-entries-of-one-byte", || {
            let table = Section { entry_bytes: 1, ..Section::symbols(SYMTAB, 1, symbol(1).repeat(1000)) };
            Elf::new(vec![Section::new(".strtab", STRTAB, b"\0a\0".to_vec()), table])
        }),
        elf("a-million-symbols-at-one-address", || symbols(b"\0malloc\0", vec![symbol(1).repeat(1_000_000)])),
        elf("malloc-at-any-address", || {
            let at = |address: u64, size: u64| {
                [&[1, 0, 0, 0, 0x12, 0, 1, 0][..], &words(&[address, size])].concat()
            };
            let places = [(0, 1), (u64::MAX, u64::MAX), (CODE + 3, 1 << 62), (CODE - 1, 0), (1 << 63, 16)];
            symbols(b"\0malloc\0", places.map(|(address, size)| at(address, size)).to_vec())
        }),
        elf("a-c-library-that-is-garbage", || {
            let mut elf = c_library(Vec::new());
            elf.code = (0..1_u32 << 20).map(|index| (index.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
            elf
        }),
        elf("a-c-library-of-jumps", || {
            let mut elf = c_library(Vec::new());
            // Each instruction jumps to the next, and the last to itself.
            elf.code = [&[0xeb, 0].repeat(4 << 20)[..], &[0xeb, 0xfe]].concat();
            elf
        }),
        elf("hash-chain-in-a-circle", || hashed(HASH, &[1, 2, 1, 1, 1])),
        elf("hash-of-huge-counts", || hashed(HASH, &[u32::MAX, u32::MAX, 1])),
        elf("gnu-hash-without-an-end", || {
            // One bucket, symbols from 1 on, a filter of one word; no chain has its last bit set.
            let head = [1, 1, 1, 0, u32::MAX, u32::MAX, 1].map(u32::to_le_bytes).concat();
            linked(Section::new(".gnu.hash", GNU_HASH, [head, vec![0; 64 << 20]].concat()))
        }),
        elf("dynamic-without-an-end", || {
            let section = Section::new(".dynamic", DYNAMIC, words(&[5, CODE]).repeat(2_000_000));
            with_header(PT_DYNAMIC, section)
        }),
        elf("notes-of-no-length", || with_header(PT_NOTE, Section::new(".note", NOTE, vec![0; 32 << 20]))),
        elf("call-frames-of-long-programs", || Elf::new(vec![program(&[0x0e, 16].repeat(8 << 20))])),
        elf("call-frames-that-remember", || {
            // DW_CFA_remember_state, again and again.
            Elf::new(vec![program(&vec![0x0a; 8 << 20])])
        }),
        elf("call-frames-by-endless-expressions", || {
            // DW_CFA_def_cfa_expression: DW_OP_skip to itself.
            Elf::new(vec![program(&[0x0f, 3, 0x2f, 0xfd, 0xff])])
        }),
        elf("call-frames-of-many-rows", || {
            // DW_CFA_advance_loc by 1 and another offset, again and again.
            Elf::new(vec![program(&[0x41, 0x0e, 16, 0x41, 0x0e, 24].repeat(4 << 20))])
        }),
        elf("call-frames-that-lie-about-their-length", || {
            let mut section = frames(1);
            section.content[..4].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
            Elf::new(vec![section])
        }),
        elf("call-frames-whose-common-entry-is-their-own", || {
            let mut section = frames(2);
            let length = u32::from_le_bytes(*section.content.first_chunk().unwrap()) as usize + 4;
            section.content[length + 4..length + 8].copy_from_slice(&4_u32.to_le_bytes());
            Elf::new(vec![section])
        }),
        elf("index-of-call-frames-that-lies", || {
            let index = [&[1, 0x1b, 3, 0x3b][..], &[0; 4], &u32::MAX.to_le_bytes(), &[0; 64]].concat();
            let mut elf = with_header(PT_EH_FRAME, Section::new(".eh_frame_hdr", PROGBITS, index));
            elf.sections.push(frames(10));
            elf
        }),
        elf("go-table-that-lies", || go(0xffff_fff1, [u64::MAX; 8])),
        elf("go-table-that-overlaps", || go(0xffff_fff1, [1 << 20, 1, CODE, 0, 0, 0, 0, 0])),
        elf("go-table-of-old", || go(0xffff_fffb, [1 << 40, 0, 0, 0, 0, 0, 0, 0])),
    ]
}

/// Symbols in both tables.
#[expect(clippy::needless_pass_by_value, reason = "all callers have made it for this")]
fn symbols(names: &[u8], symbols: Vec<Vec<u8>>) -> Elf {
    let symbols = symbols.concat();
    Elf::new(vec![
        Section::new(".strtab", STRTAB, names.to_vec()),
        Section::symbols(SYMTAB, 1, symbols.clone()),
        Section::symbols(DYNSYM, 1, symbols),
    ])
}

fn linked(hash: Section) -> Elf {
    let mut elf = symbols(b"\0malloc\0", vec![symbol(1), symbol(1)]);
    elf.sections.push(Section { link: 3, ..hash });
    elf
}

fn hashed(kind: u32, content: &[u32]) -> Elf {
    let content = content.iter().flat_map(|word| word.to_le_bytes()).collect();
    linked(Section::new(".hash", kind, content))
}

/// A file with one section, the first, and a program header of this type for it.
fn with_header(kind: u64, section: Section) -> Elf {
    const FIRST: u64 = 0x2000;
    let length = section.length;
    let header = words(&[kind | 4 << 32, FIRST, FIRST, FIRST, length, length, 8]);
    Elf { headers: vec![header], ..Elf::new(vec![Section { address: FIRST, ..section }]) }
}

/// Call frame information of one function, with this program.
fn program(program: &[u8]) -> Section {
    let mut section = frames(0);
    let distance = CODE.cast_signed() - (section.address + section.content.len() as u64 + 8).cast_signed();
    let distance = i32::try_from(distance).unwrap().to_le_bytes();
    let mut entry = [
        &(u32::try_from(section.content.len()).unwrap() + 4).to_le_bytes()[..],
        &distance,
        &64_u32.to_le_bytes(),
        &[0],
    ]
    .concat();
    entry.extend(program);
    entry.resize(entry.len().next_multiple_of(4), 0);
    section.content.extend(u32::try_from(entry.len()).unwrap().to_le_bytes());
    section.content.extend(entry);
    section.length = section.content.len() as u64;
    section
}

/// A table of Go's functions: a magic number, and the words of its header.
fn go(magic: u32, header: [u64; 8]) -> Elf {
    let content = [&magic.to_le_bytes()[..], &[0, 0, 1, 8], &words(&header), &vec![1; 1 << 20]].concat();
    Elf::new(vec![
        Section::new(".gopclntab", PROGBITS, content),
        Section::new(".go.buildinfo", PROGBITS, b"\xff Go buildinf:\x08\x02\0\0\0\0\0\0".to_vec()),
    ])
}
