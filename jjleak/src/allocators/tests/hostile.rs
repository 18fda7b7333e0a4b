//! Files that are made to be expensive. Without a bound, each of these tests takes hours, or all memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;
use crate::file_content::{LazyFile, TooCostly};

/// Length of the names or the code of a large file.
const LARGE: u64 = 64 << 20;

/// `push rbx; mov rbx, rdi; call +7; test rax, rax; je +0; pop rbx; ret`, and a function that it calls: calls of it can be followed
/// inside.
const KEEPS_SIZE: [u8; 17] =
    [0x53, 0x48, 0x89, 0xfb, 0xe8, 0x07, 0, 0, 0, 0x48, 0x85, 0xc0, 0x74, 0, 0x5b, 0xc3, 0xc3];

/// Writes a file, and finds its allocators.
fn find(parts: &[(u64, &[u8])], length: u64) -> Result<ModuleAllocators, Error> {
    let file = written(parts, length);
    let lazy = LazyFile::new(&file).unwrap();
    find_sites(&lazy, Hints::default())
}

fn written(parts: &[(u64, &[u8])], length: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(length).unwrap();
    for (offset, bytes) in parts {
        file.write_all_at(bytes, *offset).unwrap();
    }
    file
}

/// A file without symbols of its own, whose names and symbols are elsewhere.
fn with_tables(names: Range<u64>, symbols: Range<u64>) -> Vec<u8> {
    let mut elf = test_elf::elf(&TWO_FUNCTIONS, &[]);
    let sections = elf.len() - 3 * 64;
    for (section, range) in [(1, names), (2, symbols)] {
        let at = sections + section * 64 + 24;
        elf[at..at + 8].copy_from_slice(&range.start.to_le_bytes());
        elf[at + 8..at + 16].copy_from_slice(&(range.end - range.start).to_le_bytes());
    }
    elf
}

#[test]
fn names_without_an_end_are_not_searched_to_the_end_of_the_file() {
    const SYMBOLS: u32 = 200_000;
    let symbol = |index: u32| {
        let (name, kind) = ((index * 300).to_le_bytes(), [0x12, 0, 1, 0]);
        [&name[..], &kind, &test_elf::CODE_ADDRESS.to_le_bytes(), &3_u64.to_le_bytes()].concat()
    };
    let symbols: Vec<_> = (0..SYMBOLS).flat_map(symbol).collect();
    let (begin, end) = (1 << 20, (1 << 20) + LARGE);
    let last = end + symbols.len() as u64;
    let elf = with_tables(begin..end, end..last);
    let names = vec![b'a'; usize::try_from(LARGE).unwrap()];
    assert_eq!(find(&[(0, &elf), (begin, &names), (end, &symbols)], last).unwrap().profiled, []);
}

#[test]
fn a_table_of_symbols_that_does_not_fit_in_memory_is_an_error() {
    let length = 2 << 30;
    let elf = with_tables(1 << 20..2 << 20, 2 << 20..length);
    let error = find(&[(0, &elf)], length).unwrap_err();
    assert!(matches!(error, Error::TooCostly(TooCostly::Memory)), "{error}");
}

/// A C library whose `malloc` can be followed inside, if the rest of its code permits it.
fn libc(rest: &[u8]) -> Vec<u8> {
    let names = ["malloc", "gnu_get_libc_version", "free"];
    let symbols = [(0, 16), (16, 1), (16, 1)];
    let symbols: Vec<_> =
        names.iter().zip(symbols).map(|(name, (at, size))| function(name, at, size)).collect();
    test_elf::elf(&[&KEEPS_SIZE[..], rest].concat(), &symbols)
}

fn is_followed_inside(found: Result<ModuleAllocators, Error>) -> bool {
    let [glibc] = &found.unwrap().profiled[..] else { panic!("one allocator") };
    glibc.sites.iter().any(|site| site.point == ProbePoint::Block)
}

#[test]
fn segments_that_overlap_are_not_read_again_and_again() {
    let elf = libc(&[]);
    assert!(is_followed_inside(find(&[(0, &elf)], elf.len() as u64)));
    // PT_LOAD, readable: the whole file.
    let length = LARGE + 4096 * 1024;
    let header = [1 | 4 << 32, 0, 1 << 40, 1 << 40, LARGE, LARGE, 1].map(u64::to_le_bytes).concat();
    let count = u16::MAX - 1;
    let headers = [&elf[64..120], &header.repeat(usize::from(count) - 1)].concat();
    let mut elf = elf.clone();
    elf[32..40].copy_from_slice(&LARGE.to_le_bytes()); // e_phoff
    elf[56..58].copy_from_slice(&count.to_le_bytes());
    assert!(!is_followed_inside(find(&[(0, &elf), (LARGE, &headers)], length)));
}

#[test]
fn tables_have_no_more_entries_together_than_those_of_any_program() {
    // lea eax, [rip + 0x40000]: the address is in the zeros that follow, of which each is an entry that leads to the table.
    let computed = [0x8d, 0x05, 0, 0, 4, 0].repeat(20_000);
    let code = [computed, vec![0; 2 << 20]].concat();
    let elf = libc(&code);
    assert!(!is_followed_inside(find(&[(0, &elf)], elf.len() as u64)));
    let few = [[0x8d, 0x05, 0, 0, 4, 0].repeat(20), vec![0; 2 << 20]].concat();
    let elf = libc(&few);
    assert!(is_followed_inside(find(&[(0, &elf)], elf.len() as u64)), "a few tables are no obstacle");
}
