use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use jjleak_common::unwind::{RowKind, SavedFp};
use tempfile::TempDir;

use super::*;
use crate::processes::FileVersion;
use crate::unwind::{
    compile,
    test_elf::{AT_ENTRY, CODE_ADDRESS, Frames, TestElf},
};

const BUILD_ID: &str = "0123456789abcdef";

/// A module with one function of this length.
fn module(function_bytes: u32) -> Vec<u8> {
    let mut frames = Frames::eh_frame();
    let cie = frames.cie("", AT_ENTRY);
    frames.fde(cie, CODE_ADDRESS, function_bytes, &[0x41, 0x0e, 16]);
    TestElf::new(0x1000, frames).build()
}

struct Fixture {
    folder: TempDir,
    cache: RowCache,
}

impl Fixture {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let files = CacheFolder::new(folder.path().join("made/when/needed"));
        Self { cache: RowCache::new(files), folder }
    }

    fn file(&self) -> PathBuf {
        self.cache.files.as_ref().unwrap().path(&name(BUILD_ID).unwrap())
    }

    /// Requests the rows of `elf`; returns true if the file was not rewritten.
    fn is_used(&self, elf: &[u8]) -> bool {
        let inode = || fs::metadata(self.file()).unwrap().ino();
        let before = inode();
        assert_eq!(self.cache.rows(BUILD_ID, elf).unwrap().rows(), &compile(elf).unwrap());
        inode() == before
    }
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn rows_come_back_as_they_were() {
    let fixture = Fixture::new();
    let elf = module(64);
    assert_eq!(fixture.cache.rows(BUILD_ID, &*elf).unwrap().rows(), &compile(&*elf).unwrap());
    assert_eq!(fs::metadata(fixture.file()).unwrap().mode() & 0o777, 0o600);
    assert!(fixture.is_used(&elf));
    assert_eq!(files(fixture.file().parent().unwrap()), 1);
}

#[test]
fn a_file_damaged_anywhere_is_replaced() {
    let fixture = Fixture::new();
    let elf = module(64);
    fixture.cache.rows(BUILD_ID, &*elf).unwrap();
    let sound = fs::read(fixture.file()).unwrap();
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x10;
        fs::write(fixture.file(), &damaged).unwrap();
        assert!(!fixture.is_used(&elf), "byte {at}");
        assert_eq!(fs::read(fixture.file()).unwrap(), sound);
        fs::write(fixture.file(), &sound[..at]).unwrap();
        assert!(!fixture.is_used(&elf), "cut at {at}");
    }
    fs::write(fixture.file(), [&sound[..], &[0; 8]].concat()).unwrap();
    assert!(!fixture.is_used(&elf));
}

#[test]
fn a_file_with_a_right_checksum_and_wrong_rows_is_replaced() {
    let fixture = Fixture::new();
    let elf = module(64);
    fixture.cache.rows(BUILD_ID, &*elf).unwrap();
    let mut content = fs::read(fixture.file()).unwrap();
    // The second row's address becomes 0, like the first one's.
    content[HEADER_BYTES + 8..HEADER_BYTES + 12].fill(0);
    let checksum = crc32fast::hash(&content[COVERED_AT..]);
    content[CHECKSUM_AT..COVERED_AT].copy_from_slice(&checksum.to_le_bytes());
    fs::write(fixture.file(), content).unwrap();
    assert!(!fixture.is_used(&elf));
}

#[test]
fn another_module_with_the_same_build_id_gets_its_own_rows() {
    let fixture = Fixture::new();
    fixture.cache.rows(BUILD_ID, &*module(64)).unwrap();
    assert!(!fixture.is_used(&module(65)));
    assert!(fixture.is_used(&module(65)));
}

#[test]
fn a_file_that_others_can_write_is_replaced() {
    let fixture = Fixture::new();
    let elf = module(64);
    fixture.cache.rows(BUILD_ID, &*elf).unwrap();
    for mode in [0o666, 0o664] {
        fs::set_permissions(fixture.file(), Permissions::from_mode(mode)).unwrap();
        assert!(!fixture.is_used(&elf));
    }
    assert!(fixture.is_used(&elf));
}

#[test]
fn a_link_is_not_followed() {
    let fixture = Fixture::new();
    let elf = module(64);
    fixture.cache.rows(BUILD_ID, &*elf).unwrap();
    let elsewhere = fixture.folder.path().join("elsewhere");
    fs::rename(fixture.file(), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, fixture.file()).unwrap();
    assert_eq!(fixture.cache.rows(BUILD_ID, &*elf).unwrap().rows(), &compile(&*elf).unwrap());
    assert!(fs::symlink_metadata(fixture.file()).unwrap().is_file());
}

#[test]
fn a_key_that_is_not_of_hex_digits_names_no_file() {
    let fixture = Fixture::new();
    let elf = module(64);
    for key in ["", "../../etc/passwd", "xyz", &"0".repeat(MAX_KEY_CHARACTERS + 1)] {
        assert_eq!(fixture.cache.rows(key, &*elf).unwrap().rows(), &compile(&*elf).unwrap());
    }
    assert_eq!(files(fixture.folder.path()), 0);
}

#[test]
fn rows_of_a_file_without_a_build_id_are_kept_by_its_version() {
    let fixture = Fixture::new();
    let elf = module(64);
    let key = FileVersion::VDSO.key();
    let compiled = fixture.cache.rows(&key, &*elf).unwrap();
    let kept = fixture.cache.files.as_ref().unwrap().open(&name(&key).unwrap());
    assert!(kept.unwrap().metadata().unwrap().len() > HEADER_BYTES as u64);
    assert_eq!(fixture.cache.rows(&key, &*elf).unwrap(), compiled);
}

#[test]
fn a_folder_that_cannot_be_written_to_is_no_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cache = RowCache::new(CacheFolder::new(file.path().join("folder")));
    assert!(cache.rows(BUILD_ID, &*module(64)).is_ok());
}

#[test]
fn a_module_without_rows_is_an_error_each_time() {
    let fixture = Fixture::new();
    let elf = TestElf::new(0x1000, Frames::eh_frame()).build();
    for _ in 0..2 {
        assert!(matches!(fixture.cache.rows(BUILD_ID, &*elf), Err(Error::NoCallFrames)));
    }
}

#[test]
fn rows_beyond_the_last_address_are_none() {
    let rows = compile(&*module(64)).unwrap();
    let at = |text_start| ModuleRows::new(text_start, rows.rows().to_vec(), Statistics::default());
    let last_page = u64::MAX - 0xfff;
    assert!(at(0x1000).is_some());
    assert!(rows.rows().last().unwrap().address() < 0x1000 && at(last_page).is_some());
    let far = Row::new(0x1000, RowKind::Sp, 1, SavedFp::Register, 0).unwrap();
    let rows = rows.rows().iter().copied().chain([far]).collect();
    assert!(ModuleRows::new(last_page, rows, Statistics::default()).is_none());
}
