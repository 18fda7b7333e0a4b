//! Locates separate debug files and checks that they match.
//!
//! The search order is that of debuggers (GDB manual, "Debugging Information in Separate Files"), in the root of the process.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::Object;

use super::headers::Headers;
use super::module::MAX_FILE_BYTES;
use super::{Pid, Root};
use crate::file_content::{Content, LazyFile};

/// Folder in which distributions install debug files.
const FOLDER: &str = "/usr/lib/debug";

/// Opens the debug file that matches a mapped file with this path, build ID and content.
pub(super) fn find(pid: Pid, path: &Path, build_id: &str, elf: Content<'_>) -> Option<File> {
    let root = Root::of(pid).ok()?;
    let by_build_id = by_build_id(build_id).and_then(|file| matching(&root, &file, build_id));
    by_build_id.or_else(|| {
        let (name, sum) = link(elf)?;
        let has_sum = |file: &File| checksum(file).is_some_and(|found| found == sum);
        by_link(path, &name).into_iter().find_map(|file| matching(&root, &file, build_id).filter(has_sum))
    })
}

/// Opens the debug file of a build ID, at the path that debuggers use, if it is not too large to read.
pub(super) fn open(pid: Pid, build_id: &str) -> Option<File> {
    matching(&Root::of(pid).ok()?, &by_build_id(build_id)?, build_id)
}

/// Name and checksum of the debug file, from the file's `.gnu_debuglink` section.
fn link(elf: Content<'_>) -> Option<(String, u32)> {
    let file = object::File::parse(elf).ok()?;
    let (name, sum) = file.gnu_debuglink().ok()??;
    let name = str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('/'))?;
    Some((name.to_owned(), sum))
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

/// A file in the root, if it is not too large to read and its build ID matches.
fn matching(root: &Root, path: &Path, build_id: &str) -> Option<File> {
    let file = root.open(path).ok()?;
    let is_small = file.metadata().ok()?.len() <= MAX_FILE_BYTES;
    (is_small && Headers::read(&file).build_id == build_id).then_some(file)
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
