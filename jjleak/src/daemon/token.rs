//! Tokens in files, by which those who ask are known.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Shorter ones can be guessed.
const LEAST_TOKEN: usize = 16;
/// No token is longer.
const MOST_TOKEN: u64 = 4096;
/// What the world may do with a file.
const OTHERS: u32 = 0o007;

/// The token in a file; `None` when there is no name of a file.
pub(super) fn read(path: &Path) -> Result<Option<String>, String> {
    if path == Path::new("") {
        return Ok(None);
    }
    let about = fs::metadata(path).map_err(|error| error.to_string())?;
    if about.mode() & OTHERS != 0 {
        return Err("everybody on this host may read it (chmod o= FILE)".to_owned());
    }
    if about.len() > MOST_TOKEN {
        return Err("it is too long".to_owned());
    }
    let token = fs::read_to_string(path).map_err(|error| error.to_string())?.trim().to_owned();
    if token.len() < LEAST_TOKEN {
        Err(format!("it has less than {LEAST_TOKEN} characters"))
    } else {
        Ok(Some(token))
    }
}
