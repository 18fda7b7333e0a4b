use std::fs;
use std::path::{Path, PathBuf};

use jjleak_common::unwind::PAGE_BYTES as INDEX_BYTES;

use super::*;
use crate::unwind::tests::is_long;
use crate::unwind::{compile, verified};

fn own_program() -> Vec<u8> {
    fs::read(std::env::current_exe().unwrap()).unwrap()
}

fn compared_at(rows: &ModuleRows, elf: &[u8], addend: u64, offsets: &Range<u64>) -> Verification {
    compare(rows, elf, &Symbols::of(elf), addend, offsets)
}

#[test]
fn rows_of_this_program_are_verified_by_code_and_by_symbols() {
    let elf = own_program();
    let rows = verified(&*elf).unwrap();
    let Verification { functions, symbols, calls } = *rows.verification();
    assert!(
        functions.compared > 50 && symbols.compared > 10 && calls > 20,
        "{functions:?} {symbols:?} {calls}"
    );
    assert_eq!(rows.parts().len(), 1);
}

/// Regression test for LLD's layout: all file offsets were taken for addresses a page away.
#[test]
fn rows_that_are_off_by_a_page_are_refused_by_code_and_by_symbols() {
    let elf = own_program();
    let rows = compile(&*elf).unwrap();
    for (addend, offsets) in code(&*elf).unwrap() {
        for shift in [PAGE_BYTES, PAGE_BYTES.wrapping_neg(), 2 * PAGE_BYTES, INDEX_BYTES, 16] {
            let found = compared_at(&rows, &elf, addend.wrapping_add(shift), &offsets);
            assert!(found.functions.is_refuted() && found.symbols.is_refuted(), "{shift:#x}: {found:?}");
        }
    }
}

#[test]
fn segments_of_one_layout_are_one_part_unless_an_unverified_one_is_between_them() {
    let part = |offsets, addend| VerifiedPart { offsets, addend };
    let joined = parts(vec![(0, 0x1010..0x1fff, true), (0, 0x2010..0x3001, true), (5, 0x8000..0x9000, true)]);
    assert_eq!(joined, [part(0x1000..0x4000, 0), part(0x8000..0x9000, 5)]);
    let apart = parts(vec![(0, 0x1000..0x2000, true), (9, 0x2000..0x3000, false), (0, 0x4000..0x5000, true)]);
    assert_eq!(apart, [part(0x1000..0x2000, 0), part(0x4000..0x5000, 0)]);
}

/// All files in a folder and its subfolders.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            files(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

#[test]
fn files_of_this_system_are_right_and_refused_when_they_are_off_by_a_page() {
    let folders: &[&str] =
        if is_long() { &["/usr/bin", "/usr/sbin", "/usr/lib"] } else { &["/usr/sbin", "/usr/lib/go/bin"] };
    let mut paths = Vec::new();
    for folder in folders {
        files(Path::new(folder), &mut paths);
    }
    let (mut right, mut caught, mut not_caught) = (0, 0, Vec::new());
    for path in paths {
        let Ok(elf) = fs::read(&path) else { continue };
        let Ok(rows) = compile(&*elf) else { continue };
        let verified = verify(rows.clone(), &*elf);
        assert!(verified.is_ok(), "{}: {}", path.display(), verified.unwrap_err());
        right += 1;
        for (addend, offsets) in code(&*elf).unwrap() {
            let found = compared_at(&rows, &elf, addend.wrapping_add(PAGE_BYTES), &offsets);
            // In some files, all code is in the page that this shift excludes.
            let is_large = found.functions.compared + found.symbols.compared > 10;
            if found.is_refuted() {
                caught += 1;
            } else if is_large {
                not_caught.push((path.clone(), found));
            }
        }
    }
    assert!(right > 20 && caught > right / 2, "{caught} of {right}");
    assert!(not_caught.is_empty(), "{not_caught:#?}");
}
