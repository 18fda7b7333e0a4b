//! Registry of existing temporary files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::pending::PREFIX;

static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Registers a temporary file for [`discard_all`] until dropped.
#[derive(Debug)]
pub(super) struct Registered(PathBuf);

impl Registered {
    pub(super) fn new(path: &Path) -> Self {
        lock().push(path.to_owned());
        Self(path.to_owned())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock().retain(|path| *path != self.0);
    }
}

/// Removes all registered files, before exiting without unwinding.
pub fn discard_all() {
    for path in lock().drain(..) {
        // There is no remedy if it cannot be removed.
        let _ = fs::remove_file(path);
    }
}

/// Removes the temporary files that killed processes left in a folder; returns their number. Nobody may be writing there.
pub fn discard_left(folder: &Path) -> io::Result<usize> {
    let mut discarded = 0;
    for file in fs::read_dir(folder)? {
        let file = file?;
        let is_ours = file.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        if is_ours && file.file_type()?.is_file() {
            discarded += usize::from(fs::remove_file(file.path()).is_ok());
        }
    }
    Ok(discarded)
}

fn lock() -> MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_at_once_removes_what_is_registered_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let [stays, goes] = ["stays", "goes"].map(|name| folder.path().join(name));
        for path in [&stays, &goes] {
            fs::write(path, b"").unwrap();
        }
        drop(Registered::new(&stays));
        let _registered = Registered::new(&goes);
        discard_all();
        assert!(stays.exists() && !goes.exists());
    }
}
