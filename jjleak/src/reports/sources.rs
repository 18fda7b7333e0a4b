//! Source lines with their memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use nix::libc;
use regex::Regex;

use crate::notices::print;
use crate::profile::Profile;
use crate::render::{ListedFunction, Value, listed_functions, listing};

/// Maximum size of a source file.
const MAX_BYTES: u64 = 64 << 20;

/// The source lines of the functions whose names match, with the memory that was allocated in each; `None` if none matches. Sources
/// are below a folder, if one is given. Prints why a function has no source lines.
#[must_use]
pub fn source_lines(profile: &Profile, names: &Regex, value: Value, below: Option<&Path>) -> Option<String> {
    let all = value.of(profile.live());
    let text = |function: &ListedFunction| {
        let source = source_of(function, below, profile.taken_at);
        listing(function, all, value, source.as_ref().map(|source| &source.lines[..]))
    };
    let texts: Vec<_> = listed_functions(profile, names, value).iter().map(text).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

fn source_of(function: &ListedFunction, below: Option<&Path>, taken_at: Timestamp) -> Option<Source> {
    let ListedFunction { name, file, .. } = function;
    if file.is_empty() {
        print(&format!("no source lines of {name}: no debug information names its source"));
        return None;
    }
    match read(file, below) {
        Ok(source) => {
            if source.changed.is_some_and(|changed| changed > SystemTime::from(taken_at)) {
                print(&format!("{file} has changed since the profile was taken: its lines may be others"));
            }
            Some(source)
        }
        Err(error) => {
            print(&format!(
                "no source lines of {name} in {file}: {error} (--sources DIR names another folder)"
            ));
            None
        }
    }
}

struct Source {
    lines: Vec<String>,
    /// Time of its last change.
    changed: Option<SystemTime>,
}

/// Reads a source file: at the path that the debug information has, or below a folder, where the path may begin anywhere.
fn read(path: &str, below: Option<&Path>) -> io::Result<Source> {
    let path = Path::new(path);
    let Some(folder) = below else { return read_at(path) };
    let names: Vec<_> = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let suffixes = (0..names.len()).map(|skipped| names[skipped..].iter().collect::<PathBuf>());
    let found = suffixes.map(|suffix| folder.join(suffix)).find(|path| path.is_file());
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("it is not below {}", folder.display()));
    read_at(&found.ok_or_else(missing)?)
}

fn read_at(path: &Path) -> io::Result<Source> {
    // A profile can name anything: a pipe would block.
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > MAX_BYTES {
        return Err(io::Error::other(format!("it is larger than {} MiB", MAX_BYTES >> 20)));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let lines = String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect();
    Ok(Source { lines, changed: metadata.modified().ok() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_source_is_found_below_a_folder_wherever_its_path_begins() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("src/app.c"), "one\ntwo\n").unwrap();
        for path in ["/build/app-1.0/src/app.c", "./src/app.c", "src/app.c", "/build/../src/app.c"] {
            assert_eq!(read(path, Some(folder.path())).unwrap().lines, ["one", "two"], "{path}");
        }
        assert!(read("/build/other.c", Some(folder.path())).is_err());
    }

    #[test]
    fn what_is_no_source_is_refused_and_blocks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read(pipe.to_str().unwrap(), None).is_err());
        assert!(read(folder.path().to_str().unwrap(), None).is_err());
    }
}
