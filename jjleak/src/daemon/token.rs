//! Bearer tokens in files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Minimum length; shorter tokens can be guessed.
const LEAST_TOKEN: usize = 16;
/// Maximum size of a token file.
const MOST_TOKEN: u64 = 4096;
/// Permission bits of other users.
const OTHERS: u32 = 0o007;

/// Reads the token in a file; `None` if the path is empty.
pub(super) fn read(path: &Path) -> Result<Option<String>, String> {
    if path == Path::new("") {
        return Ok(None);
    }
    let about = fs::metadata(path).map_err(|error| error.to_string())?;
    if about.mode() & OTHERS != 0 {
        return Err("it is accessible to every user (chmod o= FILE)".to_owned());
    }
    if about.len() > MOST_TOKEN {
        return Err("it is too long".to_owned());
    }
    let token = fs::read_to_string(path).map_err(|error| error.to_string())?.trim().to_owned();
    if token.len() < LEAST_TOKEN {
        Err(format!("it has fewer than {LEAST_TOKEN} characters"))
    } else {
        Ok(Some(token))
    }
}
