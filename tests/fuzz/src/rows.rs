//! Mapped files, their call frame information, and cached unwind rows.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use jjleak::cache_folder::CacheFolder;
use jjleak::jvm::Symbols;
use jjleak::unwind::{ModuleRows, RowCache, compile};
use object::{Object, ObjectSection};
use tempfile::TempDir;

/// Asserts that rows are sorted, and that a search for a row's address finds that row.
fn check(rows: &ModuleRows) {
    let all = rows.rows();
    assert!(all.windows(2).all(|pair| pair[0].address() < pair[1].address()));
    for (index, row) in all.iter().enumerate().take(256) {
        let found = rows.find(rows.text_start().wrapping_add(u64::from(row.address())));
        assert_eq!(found, Some(all[index]));
    }
    for address in [0, rows.text_start(), rows.text_start().wrapping_sub(1), u64::MAX] {
        let _ = rows.find(address);
    }
}

/// Compiles any file, which a process can also map as its JVM's library.
pub(crate) fn elf(data: &[u8]) {
    let _ = Symbols::of(data);
    if let Ok(rows) = compile(data) {
        check(&rows);
    }
}

/// Compiles a valid file whose call frame information is the input, or is changed by the input.
pub(crate) fn call_frames(data: &[u8]) {
    static TEMPLATE: LazyLock<(Vec<u8>, std::ops::Range<usize>)> = LazyLock::new(|| {
        let elf = vdso();
        let file = object::File::parse(&*elf).expect("the vDSO is an ELF file");
        let section = file.section_by_name(".eh_frame").expect("the vDSO has call frame information");
        let (start, length) = section.file_range().expect("it is in the file");
        let range = start as usize..(start + length) as usize;
        (elf, range)
    });
    let (mut elf, range) = TEMPLATE.clone();
    let frames = &mut elf[range];
    let Some((first, data)) = data.split_first() else { return };
    if first % 2 == 1 {
        frames.fill(0);
    }
    frames.iter_mut().zip(data).for_each(|(byte, change)| *byte ^= change);
    if let Ok(rows) = compile(&*elf) {
        check(&rows);
    }
}

/// The vDSO, which the kernel maps into every process, including this one: it is small, and has everything that
/// larger files have.
fn vdso() -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let maps = fs::read_to_string("/proc/self/maps").expect("there is /proc");
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).expect("there is a vDSO");
    let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).expect("an address"));
    let mut bytes = vec![0; (end - start) as usize];
    let memory = fs::File::open("/proc/self/mem").expect("own memory can be read");
    memory.read_exact_at(&mut bytes, start).expect("it is mapped");
    bytes
}

/// Reads a cache file with a valid checksum, in which the input changes bits or appends bytes.
pub(crate) fn cache(data: &[u8]) {
    const BUILD_ID: &str = "0123456789abcdef";
    static FIXTURE: LazyLock<(TempDir, RowCache, PathBuf, Vec<u8>, Vec<u8>)> = LazyLock::new(|| {
        // In memory, because each input makes a file.
        let folder = TempDir::new_in("/dev/shm").expect("a folder can be made");
        let (cache, elf) = (RowCache::new(CacheFolder::new(folder.path().to_owned())), vdso());
        cache.rows(BUILD_ID, &*elf).expect("the vDSO has rows");
        let file = fs::read_dir(folder.path()).expect("it is there").next().expect("it has a file");
        let path = file.expect("it can be seen").path();
        let content = fs::read(&path).expect("it can be read");
        (folder, cache, path, elf, content)
    });
    let (_, cache, path, elf, sound) = &*FIXTURE;
    let mut content = sound.clone();
    // The input changes everything after the magic number and the checksum, which are valid.
    let length = data.len().max(sound.len() - 12);
    content.resize(12 + length, 0);
    content[12..].iter_mut().zip(data).for_each(|(byte, change)| *byte ^= change);
    let checksum = crc32fast::hash(&content[12..]);
    content[8..12].copy_from_slice(&checksum.to_le_bytes());
    fs::write(path, content).expect("it can be written");
    check(cache.rows(BUILD_ID, &**elf).expect("what is wrong is compiled anew").rows());
}
