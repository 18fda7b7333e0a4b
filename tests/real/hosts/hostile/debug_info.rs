//! Debug information that does not end, is nested too deeply, or is compressed.

use super::elf::{CODE, Elf, PROGBITS, Section, words};
use super::entry::{Entry, elf};

/// Number of entries that take some 64 MiB.
const MANY: usize = 20_000_000;
const DEEP: usize = 2_000_000;

/// Tags, attributes and forms (DWARF 4, section 7).
const COMPILE_UNIT: u8 = 0x11;
const SUBPROGRAM: u8 = 0x2e;
const INLINED: u8 = 0x1d;
const NAME: u8 = 0x03;
const LOW: u8 = 0x11;
const HIGH: u8 = 0x12;
const ORIGIN: u8 = 0x31;
const ADDRESS: u8 = 0x01;
const DATA8: u8 = 0x07;
const STRING: u8 = 0x08;
const REFERENCE: u8 = 0x13;
const STRING_AT: u8 = 0x0e;

pub(super) fn all() -> Vec<Entry> {
    vec![
        elf("chain-of-entries", || unit(vec![2; MANY], &[])),
        elf("entries-without-an-end", || unit(vec![3; DEEP], &[])),
        elf("deep-inlining", || {
            let inlined = [&[4][..], &words(&[CODE, 64]), &0_u32.to_le_bytes()].concat();
            unit(inlined.repeat(DEEP / 4), &[])
        }),
        elf("origins-in-a-circle", || {
            // The unit's header has 11 bytes, its own entry 17, and the function is the entry after it.
            let function = [&[5][..], &words(&[CODE, 64]), &28_u32.to_le_bytes()].concat();
            unit(function, &[])
        }),
        elf("origin-outside", || {
            unit([&[5][..], &words(&[CODE, 64]), &u32::MAX.to_le_bytes()].concat(), &[])
        }),
        elf("name-of-debug-information-without-an-end", || {
            let function = [&[6][..], &words(&[CODE, 64]), &0_u32.to_le_bytes()].concat();
            unit(function, &[Section::new(".debug_str", PROGBITS, vec![b'a'; 64 << 20])])
        }),
        elf("function-with-a-huge-name", || {
            unit([&[7][..], &words(&[CODE, 64]), &vec![b'a'; 32 << 20], &[0]].concat(), &[])
        }),
        elf("unit-that-lies-about-its-length", || {
            raw(vec![0xf0, 0xff, 0xff, 0x7f, 4, 0, 0, 0, 0, 0, 8], abbreviations())
        }),
        elf("units-without-content", || {
            raw([7, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8].repeat(4_000_000), abbreviations())
        }),
        elf("abbreviations-without-an-end", || {
            raw([&[7, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8][..], &[1]].concat(), vec![0x7f; 64 << 20])
        }),
        elf("many-abbreviations", || {
            let codes = (1..2_000_000_u32).flat_map(|code| [&number(code)[..], &[0x2e, 0, 0, 0]].concat());
            raw([&[8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8][..], &[1]].concat(), codes.collect())
        }),
        elf("line-program-without-an-end", || lines(vec![0x01; 64 << 20])),
        elf("line-program-of-huge-steps", || {
            // DW_LNS_advance_pc by 2^63, again and again.
            lines([2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 1].repeat(1_000_000))
        }),
        elf("ranges-without-an-end", || {
            unit(vec![0], &[Section::new(".debug_aranges", PROGBITS, vec![1; 64 << 20])])
        }),
        elf("compressed-that-lies", || compressed(1 << 62, &[0x78, 0x9c, 3, 0])),
        elf("compressed-gibibytes", || {
            // Stored blocks of zeros, each of which says that it is not the last one.
            let block = [&[0, 0xff, 0xff, 0, 0][..], &vec![0; 0xffff]].concat();
            compressed(8 << 30, &[&[0x78, 0x01][..], &block.repeat(1000)].concat())
        }),
        elf("compressed-by-an-unknown-method", || compressed_by(77, 1 << 20, &[0; 64])),
        elf("compressed-by-zstd-that-lies", || compressed_by(2, 1 << 40, &[0x28, 0xb5, 0x2f, 0xfd, 0xe0])),
    ]
}

/// An unsigned LEB128 number.
fn number(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.extend(u8::try_from(value & 0x7f | 0x80));
        value >>= 7;
    }
    bytes.extend(u8::try_from(value));
    bytes
}

/// Abbreviations: 1 a unit, 2 an entry without content, 3 one with children, 4 an inlined function with children, 5 to 7 functions.
fn abbreviations() -> Vec<u8> {
    let place = [LOW, ADDRESS, HIGH, DATA8];
    let one = |code: u8, tag: u8, children: u8, attributes: &[u8]| {
        [&[code, tag, children][..], attributes, &[0, 0]].concat()
    };
    [
        one(1, COMPILE_UNIT, 1, &place),
        one(2, 0x24, 0, &[]),
        one(3, 0x0b, 1, &[]),
        one(4, INLINED, 1, &[&place[..], &[ORIGIN, REFERENCE]].concat()),
        one(5, SUBPROGRAM, 0, &[&place[..], &[ORIGIN, REFERENCE]].concat()),
        one(6, SUBPROGRAM, 0, &[&place[..], &[NAME, STRING_AT]].concat()),
        one(7, SUBPROGRAM, 0, &[&place[..], &[NAME, STRING]].concat()),
        vec![0],
    ]
    .concat()
}

/// A file with these sections of debug information.
fn raw(info: Vec<u8>, abbreviations: Vec<u8>) -> Elf {
    Elf::new(vec![
        Section::new(".debug_info", PROGBITS, info),
        Section::new(".debug_abbrev", PROGBITS, abbreviations),
    ])
}

/// A unit that has the code, with these entries.
#[expect(clippy::needless_pass_by_value, reason = "all callers have made it for this")]
fn unit(entries: Vec<u8>, more: &[Section]) -> Elf {
    let content = [&[4, 0, 0, 0, 0, 0, 8, 1][..], &words(&[CODE, 64]), &entries].concat();
    let length = u32::try_from(content.len()).unwrap().to_le_bytes();
    let mut elf = raw([&length[..], &content].concat(), abbreviations());
    elf.sections.extend(more.iter().cloned());
    elf
}

/// A unit with line information: version 3, one file.
#[expect(clippy::needless_pass_by_value, reason = "all callers have made it for this")]
fn lines(program: Vec<u8>) -> Elf {
    let head = [&[1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1][..], b"\0a.c\0\0\0\0\0"].concat();
    let head_bytes = u32::try_from(head.len()).unwrap().to_le_bytes();
    // DW_LNE_set_address.
    let start = [&[0, 9, 2][..], &CODE.to_le_bytes()].concat();
    let content = [&[3, 0][..], &head_bytes, &head, &start, &program].concat();
    let length = u32::try_from(content.len()).unwrap().to_le_bytes();
    let mut elf = raw(
        [&[28, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1][..], &words(&[CODE, 64]), &[0; 4]].concat(),
        [&[1, COMPILE_UNIT, 0, LOW, ADDRESS, HIGH, DATA8, 0x10, 0x17, 0, 0, 0][..]].concat(),
    );
    elf.sections.push(Section::new(".debug_line", PROGBITS, [&length[..], &content].concat()));
    elf
}

fn compressed(size: u64, content: &[u8]) -> Elf {
    compressed_by(1, size, content)
}

/// `Elf64_Chdr`, and what would be decompressed.
fn compressed_by(method: u64, size: u64, content: &[u8]) -> Elf {
    let info = [&words(&[method, size, 1])[..], content].concat();
    let mut elf = raw(info, abbreviations());
    elf.sections[0].is_compressed = true;
    elf
}
