//! Memory mappings of a process: `/proc/PID/maps`.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use jjleak_common::unwind::code_identity;

use super::{Error, Pid};

/// Maximum length of `/proc/PID/maps`. A process with 100,000 threads has 15 MiB; any process can map 65,000 files, each with a
/// path of 4 KiB.
const MAX_MAPS_BYTES: u64 = 32 << 20;

/// Identifies a file on this host: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Major and minor device number, as `/proc/PID/maps` prints them.
    pub device: (u32, u32),
    /// Inode number.
    pub inode: u64,
}

/// One version of a file. Inode numbers are reused, so caches of file data need more than the inode as a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileVersion {
    /// The file.
    pub file: FileId,
    /// Time of the last change of content or status (ctime), in seconds and nanoseconds.
    pub changed: (i64, i64),
}

impl FileVersion {
    /// Placeholder for the code that the kernel maps into every process (vdso(7)), which is in no file.
    pub const VDSO: Self = Self { file: FileId { device: (0, 0), inode: u64::MAX }, changed: (0, 0) };

    /// The fields in hex, separated by hyphens.
    #[must_use]
    pub fn key(&self) -> String {
        let Self { file: FileId { device: (major, minor), inode }, changed: (seconds, nanoseconds) } = self;
        format!("{major:x}-{minor:x}-{inode:x}-{seconds:x}-{nanoseconds:x}")
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Address range.
    pub addresses: Range<u64>,
    /// True if the mapping is executable.
    pub executable: bool,
    /// File offset of the first byte.
    pub file_offset: u64,
    /// The mapped file; `None` for anonymous memory.
    pub file: Option<FileId>,
    /// Path of the file as the process sees it, or a name such as `[uprobes]`; may be empty.
    pub path: PathBuf,
    /// True if the file has been deleted or replaced.
    pub deleted: bool,
}

impl Mapping {
    /// Reads all mappings of a process.
    pub fn all(pid: Pid) -> Result<Vec<Self>, Error> {
        Self::all_within(pid, MAX_MAPS_BYTES)
    }

    fn all_within(pid: Pid, most: u64) -> Result<Vec<Self>, Error> {
        let path = pid.proc_file("maps");
        let mut text = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(most + 1).read_to_end(&mut text))
            .map_err(|source| Error::read(pid, path.clone(), source))?;
        if text.len() as u64 > most {
            return Err(Error::TooLong { path, most });
        }
        if text.is_empty() {
            // A process that has released its memory, but not yet its PID, has an empty file.
            return Err(Error::Gone(pid));
        }
        parse_maps(&String::from_utf8_lossy(&text))
            .map_err(|line| Error::Malformed { path, line: line.to_owned() })
    }

    /// Distinguishes it from other code at the same addresses.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.file.map_or(0, |file| {
            code_identity(file.device, file.inode, self.addresses.start.wrapping_sub(self.file_offset))
        })
    }

    /// Returns true for the code that the kernel maps into every process (vdso(7)).
    #[must_use]
    pub fn is_vdso(&self) -> bool {
        self.path.as_os_str() == "[vdso]"
    }

    /// Returns true for generated code: executable, without a file, and not mapped by the kernel.
    #[must_use]
    pub fn is_generated(&self) -> bool {
        let is_kernels = self.path.as_os_str().as_encoded_bytes().starts_with(b"[v") || self.is_of_uprobes();
        self.executable && self.file.is_none() && !is_kernels
    }

    /// Returns true for the kernel's area with the uretprobe trampoline, which is not code of the process.
    #[must_use]
    pub fn is_of_uprobes(&self) -> bool {
        self.path.as_os_str() == "[uprobes]"
    }

    /// Reads the bytes of the mapping from the process's memory.
    pub fn read(&self, pid: Pid) -> std::io::Result<Vec<u8>> {
        let length =
            usize::try_from(self.addresses.end - self.addresses.start).map_err(std::io::Error::other)?;
        let mut bytes = vec![0; length];
        File::open(pid.proc_file("mem"))?.read_exact_at(&mut bytes, self.addresses.start)?;
        Ok(bytes)
    }

    /// Path of the symbolic link under /proc to the mapped file itself, independent of what its path now refers to.
    #[must_use]
    pub fn map_file(&self, pid: Pid) -> PathBuf {
        pid.proc_file(&format!("map_files/{:x}-{:x}", self.addresses.start, self.addresses.end))
    }
}

/// Parses the text of `/proc/PID/maps` (proc(5)). On failure, returns the first malformed line.
pub fn parse_maps(text: &str) -> Result<Vec<Mapping>, &str> {
    text.lines().map(|line| parse_line(line).ok_or(line)).collect()
}

fn parse_line(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let addresses = parse_range(next_word(&mut rest)?)?;
    let permissions = next_word(&mut rest)?;
    let file_offset = u64::from_str_radix(next_word(&mut rest)?, 16).ok()?;
    let (major, minor) = next_word(&mut rest)?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode: u64 = next_word(&mut rest)?.parse().ok()?;
    let path = rest.trim_start_matches(' ');
    let live_path = path.strip_suffix(" (deleted)");
    Some(Mapping {
        addresses,
        executable: permissions.as_bytes().get(2) == Some(&b'x'),
        file_offset,
        file: (inode != 0).then_some(FileId { device, inode }),
        path: Path::new(live_path.unwrap_or(path)).to_owned(),
        deleted: live_path.is_some(),
    })
}

fn parse_range(word: &str) -> Option<Range<u64>> {
    let (start, end) = word.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    (!range.is_empty()).then_some(range)
}

/// Cuts the next word off the front.
fn next_word<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let trimmed = rest.trim_start_matches(' ');
    let end = trimmed.find(' ').unwrap_or(trimmed.len());
    let (word, tail) = trimmed.split_at(end);
    *rest = tail;
    (!word.is_empty()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_mapped_file_is_read_with_spaces_in_its_path() {
        let text = "7f00-7f10 r-xp 00001000 fd:01 77 /opt/my app/lib (1).so (deleted)\n";
        let expected = Mapping {
            addresses: 0x7f00..0x7f10,
            executable: true,
            file_offset: 0x1000,
            file: Some(FileId { device: (0xfd, 1), inode: 77 }),
            path: "/opt/my app/lib (1).so".into(),
            deleted: true,
        };
        assert_eq!(parse_maps(text), Ok(vec![expected]));
    }

    #[test]
    fn anonymous_and_special_mappings_have_no_file() {
        let text = "1000-2000 rw-p 00000000 00:00 0 \n3000-4000 --xp 00000000 00:00 0   [uprobes]\n";
        let maps = parse_maps(text).unwrap();
        assert_eq!((maps[0].file, maps[0].path.to_str()), (None, Some("")));
        assert_eq!((maps[1].file, maps[1].path.to_str()), (None, Some("[uprobes]")));
        assert!(!maps[0].executable && maps[1].executable);
    }

    #[test]
    fn a_file_that_is_too_long_is_not_read() {
        let pid = Pid::new(std::process::id()).unwrap();
        assert!(matches!(Mapping::all_within(pid, 100), Err(Error::TooLong { most: 100, .. })));
        assert!(Mapping::all(pid).is_ok());
    }

    #[test]
    fn a_line_of_another_form_is_named() {
        let text = "1000-2000 rw-p 0 00:00 0\nnonsense\n";
        assert_eq!(parse_maps(text), Err("nonsense"));
        assert_eq!(parse_maps("2000-1000 rw-p 0 00:00 0"), Err("2000-1000 rw-p 0 00:00 0"));
    }

    /// The line that the kernel prints (`show_map_vma` in `fs/proc/task_mmu.c`).
    fn printed(mapping: &Mapping) -> String {
        let Range { start, end } = mapping.addresses;
        let executable = if mapping.executable { 'x' } else { '-' };
        let (major, minor) = mapping.file.map_or((0, 0), |file| file.device);
        let inode = mapping.file.map_or(0, |file| file.inode);
        let (offset, path) = (mapping.file_offset, mapping.path.display());
        let deleted = if mapping.deleted { " (deleted)" } else { "" };
        let numbers =
            format!("{start:08x}-{end:08x} r-{executable}p {offset:08x} {major:02x}:{minor:02x} {inode} ");
        format!("{numbers:<73}{path}{deleted}\n")
    }

    fn mapping() -> impl Strategy<Value = Mapping> {
        let file = proptest::option::of((any::<u32>(), any::<u32>(), 1..u64::MAX));
        let place = (0..u64::MAX - 1).prop_flat_map(|start| (Just(start), start + 1..u64::MAX));
        let path = "(/[a-z0-9 .()é+:-]{0,20}[a-z0-9.+:-]){0,4}";
        (place, any::<[bool; 2]>(), any::<u64>(), file, path).prop_map(
            |((start, end), [executable, deleted], file_offset, file, path)| Mapping {
                addresses: start..end,
                executable,
                file_offset,
                file: file.map(|(major, minor, inode)| FileId { device: (major, minor), inode }),
                deleted: deleted && !path.is_empty(),
                path: path.into(),
            },
        )
    }

    /// A small fuzzer with `cargo xtask test --long`.
    fn cases() -> u32 {
        if std::env::var("JJLEAK_LONG").is_ok_and(|value| value == "1") { 200_000 } else { 1000 }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

        #[test]
        fn no_text_makes_the_parser_panic(text in "[0-9a-fx: /\\-\n\\(\\)é]{0,200}") {
            let _ = parse_maps(&text);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_maps(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn what_the_kernel_prints_is_what_is_mapped(maps in proptest::collection::vec(mapping(), 0..8)) {
            let text: String = maps.iter().map(printed).collect();
            prop_assert_eq!(parse_maps(&text), Ok(maps));
        }

        #[test]
        fn damaged_lines_are_refused_or_are_mappings_of_something(
            maps in proptest::collection::vec(mapping(), 1..4),
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes: Vec<u8> = maps.iter().flat_map(|mapping| printed(mapping).into_bytes()).collect();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(maps) = parse_maps(&String::from_utf8_lossy(&bytes)) {
                prop_assert!(maps.iter().all(|mapping| !mapping.addresses.is_empty()));
                prop_assert!(maps.iter().all(|mapping| mapping.file.is_none_or(|file| file.inode != 0)));
            }
        }
    }
}
