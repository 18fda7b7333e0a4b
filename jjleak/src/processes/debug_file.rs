//! Locates separate debug files and checks that they match.
//!
//! The search order is that of debuggers (GDB manual, "Debugging Information in Separate Files"), in the root of the process.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use object::Object;

use super::headers::Headers;
use super::module::MAX_FILE_BYTES;
use super::{Pid, Root};

/// Folder in which distributions install debug files.
const FOLDER: &str = "/usr/lib/debug";

/// Reads the debug file that matches a mapped file with this path, build ID and content.
pub(super) fn read(pid: Pid, path: &Path, build_id: &str, elf: &[u8]) -> Option<Vec<u8>> {
    let root = Root::of(pid).ok()?;
    let by_build_id = by_build_id(build_id).and_then(|file| matching(&root, &file, build_id));
    by_build_id.or_else(|| {
        let (name, sum) = link(elf)?;
        by_link(path, &name).into_iter().find_map(|file| {
            let bytes = matching(&root, &file, build_id)?;
            (crc32fast::hash(&bytes) == sum).then_some(bytes)
        })
    })
}

/// Opens the debug file of a build ID, at the path that debuggers use, if it is not too large to read.
pub(super) fn open(pid: Pid, build_id: &str) -> Option<File> {
    let file = Root::of(pid).ok()?.open(&by_build_id(build_id)?).ok()?;
    file.metadata().ok().filter(|about| about.len() <= MAX_FILE_BYTES)?;
    (Headers::read(&file).build_id == build_id).then_some(file)
}

/// Name and checksum of the debug file, from the file's `.gnu_debuglink` section.
fn link(elf: &[u8]) -> Option<(String, u32)> {
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

/// Content of a file in the root, if its build ID matches.
fn matching(root: &Root, path: &Path, build_id: &str) -> Option<Vec<u8>> {
    let file = root.open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if metadata.len() > MAX_FILE_BYTES || Headers::read(&file).build_id != build_id {
        return None;
    }
    let mut bytes = Vec::new();
    let mut file = rewound(file).ok()?;
    file.by_ref().take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn rewound(mut file: File) -> io::Result<File> {
    io::Seek::rewind(&mut file)?;
    Ok(file)
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
