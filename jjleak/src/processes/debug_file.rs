//! Locates separate debug files and checks that they match.
//!
//! The search order is that of debuggers (GDB manual, "Debugging Information in Separate Files"), in the root of the process.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memchr::memchr;
use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};

use super::headers::{debug_file_build_id, hex};
use super::module::MAX_FILE_BYTES;
use super::{Pid, Root};
use crate::file_content::{Content, LazyFile};

/// Folder in which distributions install debug files.
const FOLDER: &str = "/usr/lib/debug";

/// Maximum size of a debug file that another process maps: those of browsers have some gigabytes.
const MAX_MAPPED_BYTES: u64 = 16 << 30;
/// Maximum size of a section with a link: a path, and a checksum or a build ID.
const MAX_LINK_BYTES: u64 = 64 << 10;

/// Opens the debug file that matches a mapped file with this path, build ID and content, if it is not too large to read.
pub(super) fn find(pid: Pid, path: &Path, build_id: &str, elf: Content<'_>) -> Option<File> {
    let search = Search { root: Root::of(pid).ok()?, most: MAX_FILE_BYTES };
    search.debug_file(path, build_id, elf).map(|(_, file)| file)
}

/// Opens the debug file of a file in the root file system of another host.
pub(super) fn find_in_folder(folder: &Path, path: &Path, build_id: &str, elf: Content<'_>) -> Option<File> {
    let search = Search { root: Root::folder(folder).ok()?, most: MAX_MAPPED_BYTES };
    search.debug_file(path, build_id, elf).map(|(_, file)| file)
}

/// Opens a debug file at a path on this host, if it has this build ID.
pub(super) fn open(path: &Path, build_id: &str) -> Option<File> {
    let search = Search { root: Root::own().ok()?, most: MAX_MAPPED_BYTES };
    search.matching(path, build_id).filter(|_| !build_id.is_empty())
}

/// Opens the debug file, unless it is known, and the supplement that it has in common with others, for another process to map.
/// Without a debug file, the supplement is that of the file itself.
pub(super) fn find_with_supplement(
    pid: Pid,
    path: &Path,
    build_id: &str,
    elf: Content<'_>,
    known: Option<File>,
) -> (Option<File>, Option<File>) {
    // Symbols may be read after the process has ended. What is found has the build ID or the checksum that it must have.
    let Ok(root) = Root::of(pid).or_else(|_| Root::own()) else { return (None, None) };
    let search = Search { root, most: MAX_MAPPED_BYTES };
    let known = known.map(|file| (path.to_owned(), file));
    match known.or_else(|| search.debug_file(path, build_id, elf)) {
        Some((path, file)) => {
            let content = LazyFile::new(&file).ok();
            let supplement = content.and_then(|content| search.supplement(&path, Content::from(&content)));
            (Some(file), supplement)
        }
        None => (None, search.supplement(path, elf)),
    }
}

/// Search for files in the root of a process, of a limited size.
struct Search {
    root: Root,
    most: u64,
}

impl Search {
    /// Opens the debug file; the path is that at which it was found.
    fn debug_file(&self, path: &Path, build_id: &str, elf: Content<'_>) -> Option<(PathBuf, File)> {
        let open = |file: PathBuf| self.matching(&file, build_id).map(|opened| (file, opened));
        by_build_id(build_id).and_then(open).or_else(|| {
            let (name, sum) = link(elf)?;
            let has_sum = |file: &File| checksum(file).is_some_and(|found| found == sum);
            by_link(path, &name).into_iter().find_map(|file| open(file).filter(|(_, file)| has_sum(file)))
        })
    }

    /// Opens the supplement of a debug file with this path and content.
    fn supplement(&self, path: &Path, elf: Content<'_>) -> Option<File> {
        let link = short_section(elf, b".gnu_debugaltlink")?;
        let (linked, build_id) = link.split_at(memchr(0, link)?);
        let build_id = &build_id[1..];
        let build_id = hex(build_id);
        // Without a build ID, any file would match.
        let by_build_id = by_build_id(&build_id)?;
        let linked = path.parent()?.join(OsStr::from_bytes(linked));
        [by_build_id, linked].into_iter().find_map(|file| self.matching(&file, &build_id))
    }

    /// A file in the root, if it is not too large and its build ID matches.
    fn matching(&self, path: &Path, build_id: &str) -> Option<File> {
        let file = match self.root.open(path) {
            Ok(file) => file,
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
                    tracing::warn!(path = %path.display(), %error, "cannot open debug file");
                }
                return None;
            }
        };
        let is_small = file.metadata().ok()?.len() <= self.most;
        (is_small && debug_file_build_id(&file) == build_id).then_some(file)
    }
}

/// Name and checksum of the debug file, from the file's `.gnu_debuglink` section.
fn link(elf: Content<'_>) -> Option<(String, u32)> {
    let link = short_section(elf, b".gnu_debuglink")?;
    let end = memchr(0, link)?;
    // Padded to a multiple of four bytes.
    let sum = link.get((end / 4 + 1) * 4..)?.first_chunk().map(|sum| u32::from_le_bytes(*sum))?;
    let name = str::from_utf8(&link[..end]).ok().filter(|name| !name.is_empty() && !name.contains('/'))?;
    Some((name.to_owned(), sum))
}

/// Returns true if a file has debug information of its own.
pub(super) fn has_debug_info(elf: Content<'_>) -> bool {
    let has_section = |elf| {
        let header = FileHeader64::<LittleEndian>::parse(elf).ok()?;
        let sections = header.sections(LittleEndian, elf).ok()?;
        sections.section_by_name(LittleEndian, b".debug_info")
    };
    has_section(elf).is_some()
}

/// Content of a section, unless it is too long for a link. No more is read than that and the section headers.
fn short_section<'data>(elf: Content<'data>, name: &[u8]) -> Option<&'data [u8]> {
    let header = FileHeader64::<LittleEndian>::parse(elf).ok()?;
    let sections = header.sections(LittleEndian, elf).ok()?;
    let (_, section) = sections.section_by_name(LittleEndian, name)?;
    if section.sh_size(LittleEndian) > MAX_LINK_BYTES {
        return None;
    }
    section.data(LittleEndian, elf).ok()
}

fn by_build_id(build_id: &str) -> Option<PathBuf> {
    let (start, rest) = build_id.split_at_checked(2).filter(|(_, rest)| !rest.is_empty())?;
    Some(PathBuf::from(format!("{FOLDER}/.build-id/{start}/{rest}.debug")))
}

fn by_link(path: &Path, name: &str) -> Vec<PathBuf> {
    let Some(folder) = path.parent() else { return Vec::new() };
    let everywhere = Path::new(FOLDER).join(folder.strip_prefix("/").unwrap_or(folder));
    [folder.join(name), folder.join(".debug").join(name), everywhere.join(name)]
        .into_iter()
        .filter(|file| file != path)
        .collect()
}

/// Checksum of a file's content, as in `.gnu_debuglink`.
fn checksum(file: &File) -> Option<u32> {
    let content = LazyFile::new(file).ok()?;
    let content = Content::from(&content);
    let mut sum = crc32fast::Hasher::new();
    content.visit(0..content.length(), 0, |_, bytes| sum.update(bytes)).then(|| sum.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_files_are_searched_for_where_debuggers_do() {
        let file = by_build_id("0123456789").unwrap();
        assert_eq!(file, Path::new("/usr/lib/debug/.build-id/01/23456789.debug"));
        assert_eq!(by_build_id(""), None);

        let files = by_link(Path::new("/usr/bin/server"), "server.debug");
        let expected =
            ["/usr/bin/server.debug", "/usr/bin/.debug/server.debug", "/usr/lib/debug/usr/bin/server.debug"];
        assert_eq!(files, expected.map(PathBuf::from));
    }
}
