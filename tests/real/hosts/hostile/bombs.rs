//! Files that are made to be expensive.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

use super::elf::{CODE, DYNSYM, Elf, PROGBITS, STRTAB, SYMTAB, Section, load, symbol};
use super::entry::{Entry, elf};

const LARGE: usize = 100 << 20;

pub(super) fn all() -> Vec<Entry> {
    let too_large = "analysing it takes more than 96 MiB";
    vec![
        elf("names-without-an-end", || names(vec![b'a'; LARGE], 200_000, 500)),
        elf("one-long-name", || names([vec![b'a'; LARGE], vec![0]].concat(), 200_000, 0)),
        elf("many-long-names", || names([vec![b'a'; 60_000], vec![0]].concat().repeat(1600), 500_000, 200)),
        elf("sparse-symbols", sparse_symbols)
            .says("cannot search for allocators: analysing it takes more than 96 MiB"),
        elf("segments-that-overlap", || segments(5)).says("overlap"),
        elf("data-that-overlaps", || segments(4)),
        elf("tables-of-jumps", tables),
        elf("sparse-call-frames", sparse_frames).says(too_large),
        elf("many-call-frames", || Elf::new(vec![frames(4_000_000)])),
        elf("packed-call-frames", packed_frames),
        elf("an-honest-large-file", honest),
    ]
}

/// Files for which only jjleak's own memory is compared: with the process that reads symbols, or with other entries beside them, they
/// take more than the corpus allows.
pub(super) fn alone() -> [(&'static str, Elf); 2] {
    let packed_zeros = Elf::new(vec![Section::new(".gnu_debugdata", PROGBITS, packed(1 << 30))]);
    [("packed-zeros", packed_zeros), ("sparse-names", sparse_names())]
}

/// A C library as it calls itself, with symbols whose names are `step` bytes apart.
fn names(names: Vec<u8>, symbols: u32, step: u32) -> Elf {
    let most = u32::try_from(names.len()).unwrap();
    let symbols = (0..symbols).flat_map(|index| symbol(index.wrapping_mul(step) % most)).collect();
    Elf::new(vec![Section::new(".strtab", STRTAB, names), Section::symbols(SYMTAB, 1, symbols)])
}

fn sparse_symbols() -> Elf {
    let symbols = Section::symbols(DYNSYM, 1, symbol(1)).sparse(20 << 30);
    Elf::new(vec![Section::new(".strtab", STRTAB, b"\0a\0".to_vec()), symbols])
}

fn sparse_names() -> Elf {
    let symbols = (0..500_000_u32).flat_map(|index| symbol(index.wrapping_mul(0x9e37_79b1))).collect();
    let names = Section::new(".strtab", STRTAB, vec![0]).sparse(4 << 30);
    Elf::new(vec![names, Section::symbols(SYMTAB, 1, symbols)])
}

/// Segments with the whole file each.
fn segments(flags: u64) -> Elf {
    let headers = (0..65_000).map(|_| load(flags, 0, 1 << 30, LARGE as u64)).collect();
    Elf { headers, ..c_library(vec![Section::new(".data", PROGBITS, vec![0; LARGE])]) }
}

/// A C library whose `malloc` could be followed inside.
pub(super) fn c_library(more: Vec<Section>) -> Elf {
    let names = b"\0malloc\0free\0gnu_get_libc_version\0".to_vec();
    let symbols = [1, 8, 13].into_iter().flat_map(symbol).collect();
    let first = vec![Section::new(".dynstr", STRTAB, names), Section::symbols(DYNSYM, 1, symbols)];
    // push rbx; mov rbx, rdi; call +7; test rax, rax; je +0; pop rbx; ret
    let code =
        [0x53, 0x48, 0x89, 0xfb, 0xe8, 0x07, 0, 0, 0, 0x48, 0x85, 0xc0, 0x74, 0, 0x5b, 0xc3, 0xc3].to_vec();
    Elf { code, ..Elf::new(first.into_iter().chain(more).collect()) }
}

/// Code that computes very many addresses in zeros, each of which could be a table of jumps.
fn tables() -> Elf {
    let mut elf = c_library(Vec::new());
    elf.code.extend([0x8d, 0x05, 0, 0, 0x40, 0].repeat(1_000_000));
    elf.code.extend(vec![0; 32 << 20]);
    elf
}

fn packed(bytes: usize) -> Vec<u8> {
    let mut xz = Command::new("xz").arg("-1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = xz.stdin.take().unwrap();
    let zeros = vec![0; 1 << 20];
    thread::scope(|scope| {
        scope.spawn(move || (0..bytes >> 20).for_each(|_| input.write_all(&zeros).unwrap()));
        xz.wait_with_output().unwrap().stdout
    })
}

/// Call frame information of functions that overlap: a common entry, and one for each.
pub(super) fn frames(functions: u32) -> Section {
    const ADDRESS: u64 = 1 << 30;
    let padded = |mut entry: Vec<u8>| {
        entry.resize(entry.len().next_multiple_of(4), 0);
        [&u32::try_from(entry.len()).unwrap().to_le_bytes()[..], &entry].concat()
    };
    let common = [&[0; 4][..], &[1], b"zR\0", &[1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1]].concat();
    let mut content = padded(common);
    for _ in 0..functions {
        let at = content.len() as u64;
        let distance = CODE.cast_signed() - (ADDRESS + at + 8).cast_signed();
        let distance = i32::try_from(distance).unwrap().cast_unsigned();
        let fields = [u32::try_from(at + 4).unwrap(), distance, 64];
        let entry = [&fields.map(u32::to_le_bytes).concat()[..], &[0, 0x41, 0x0e, 16]].concat();
        content.extend(padded(entry));
    }
    Section { address: ADDRESS, ..Section::new(".eh_frame", PROGBITS, content) }
}

fn sparse_frames() -> Elf {
    let frames = frames(1);
    let length = frames.content.len() as u64;
    Elf::new(vec![frames.sparse(length + (30 << 30))])
}

/// `.zdebug_frame` that says that it unpacks to a terabyte.
fn packed_frames() -> Elf {
    let content = [&b"ZLIB"[..], &(1_u64 << 40).to_be_bytes(), &[0x78, 0x9c, 0x03, 0]].concat();
    Elf::new(vec![Section::new(".zdebug_frame", PROGBITS, content)])
}

/// Two gibibytes of debug information, and everything else as it should be.
fn honest() -> Elf {
    let debug_info = Section::new(".debug_info", PROGBITS, vec![0]).sparse(2 << 30);
    c_library(vec![debug_info, frames(1)])
}
