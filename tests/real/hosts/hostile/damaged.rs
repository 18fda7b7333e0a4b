//! Files with one field of a header that is wrong.

use std::fs;
use std::path::{Path, PathBuf};

/// Copies of a library, each with one field of a header that is wrong.
pub(super) fn damaged(library: &[u8], folder: &Path) -> Vec<PathBuf> {
    let word = |at: usize| u64::from_le_bytes(library[at..at + 8].try_into().unwrap());
    let half = |at: usize| u16::from_le_bytes(library[at..at + 2].try_into().unwrap());
    let place = |word: u64| usize::try_from(word).unwrap();
    let header = [(24, 8), (32, 8), (40, 8), (52, 2), (54, 2), (56, 2), (58, 2), (60, 2), (62, 2)];
    let of_programs = [(4, 4), (8, 8), (16, 8), (32, 8), (40, 8)];
    let of_sections = [(4, 4), (16, 8), (24, 8), (32, 8), (40, 4), (56, 8)];
    let programs = (0..usize::from(half(56))).map(|index| place(word(32)) + index * 56);
    let sections = (0..usize::from(half(60))).map(|index| place(word(40)) + index * 64);
    let fields = header.into_iter();
    let fields = fields.chain(programs.flat_map(|at| of_programs.map(|(field, bytes)| (at + field, bytes))));
    let fields = fields.chain(sections.flat_map(|at| of_sections.map(|(field, bytes)| (at + field, bytes))));
    let values = [0, 1, 1 << 40, u64::MAX];
    let changes = fields.flat_map(|(at, bytes)| values.map(|value| (at, bytes, value)));
    let written = changes.enumerate().map(|(index, (at, bytes, value))| {
        let mut damaged = library.to_vec();
        damaged[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        let path = folder.join(format!("damaged-{index}.so"));
        fs::write(&path, damaged).unwrap();
        path
    });
    written.collect()
}
