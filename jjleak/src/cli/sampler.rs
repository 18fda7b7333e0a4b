//! The library that draws samples of malloc: in a command that jjleak starts (`jjleak --sampled -- CMD`), and in a running JVM that is to load
//! it (`--load`).

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::args::{Args, Subject};
use super::failure::{Failure, OTHER};
use crate::allocators;
use crate::file_content::{Content, LazyFile};
use crate::jcmd::Agent;

/// Name of the library's file.
const LIBRARY: &str = "libjjleak_preload.so";
/// Folders that have it, relative to jjleak's own: that of a build, and that of a package.
const FOLDERS: [&str; 2] = ["", "../lib/jjleak"];
/// Environment variable with its path, for other places; empty for no library.
const PATH: &str = "JJLEAK_SAMPLER";

/// Variables of the dynamic loader, and of the library.
const PRELOAD: &str = "LD_PRELOAD";
const DISTANCE: &str = "JJLEAK_SAMPLE_BYTES";

/// Environment variables that make a command draw samples; none for other subjects, and for a command that draws them by itself, where the
/// library is not installed.
pub(super) fn variables(args: &Args, subject: &Subject) -> Result<Vec<(&'static str, OsString)>, Failure> {
    if !args.sampled {
        return Ok(Vec::new());
    }
    let Subject::Command(words) = subject else {
        return match args.sample_bytes {
            Some(_) if !args.load => Err(Failure::usage(
                "--sample-bytes: a running program draws its samples itself, by its own settings".to_owned(),
            )),
            _ => Ok(Vec::new()),
        };
    };
    if args.sample_bytes.is_none() && words.first().is_some_and(|program| announces_samples(program)) {
        return Ok(Vec::new());
    }
    let Some(library) = find() else {
        if args.sample_bytes.is_some() {
            return Err(missing("--sample-bytes"));
        }
        if env::var_os(PATH).is_none() {
            tracing::warn!("{}: the command must draw samples by itself", no_library());
        }
        return Ok(Vec::new());
    };
    if !can_be_preloaded(&library) {
        return Err(Failure::new(
            OTHER,
            format!("the loader reads {} as several names, at each space and colon", library.display()),
            format!("copy it to another folder, and name it in {PATH}"),
        ));
    }
    let mut variables = vec![(PRELOAD, preload(&library, env::var_os(PRELOAD)))];
    variables.extend(args.sample_bytes.map(|bytes| (DISTANCE, bytes.to_string().into())));
    Ok(variables)
}

/// The library that a running JVM is to load.
pub(super) fn agent(args: &Args) -> Result<Option<Agent>, Failure> {
    if !args.load {
        return Ok(None);
    }
    let library = find().ok_or_else(|| missing("--load"))?;
    let library = library.into_os_string().into_string().map_err(|path| {
        Failure::usage(format!("--load: {} is no text, which a JVM needs", path.display()))
    })?;
    let options = args.sample_bytes.map_or(String::new(), |bytes| bytes.to_string());
    Ok(Some(Agent { library, options }))
}

fn missing(option: &str) -> Failure {
    Failure::usage(format!("{option}: {}", no_library()))
}

fn no_library() -> String {
    format!("there is no {LIBRARY} beside jjleak, in ../lib/jjleak, or where {PATH} says")
}

/// Returns true if a program's own file has the probes: two samplers would announce the same blocks.
fn announces_samples(program: &OsStr) -> bool {
    let is_path = program.as_bytes().contains(&b'/');
    let folders = if is_path { None } else { env::var_os("PATH") };
    let mut places = folders.iter().flat_map(env::split_paths).map(|folder| folder.join(program));
    let file = if is_path { Some(program.into()) } else { places.find(|place| place.is_file()) };
    let Some(file) = file.and_then(|file| File::open(file).ok()) else { return false };
    let Ok(content) = LazyFile::new(&file) else { return false };
    allocators::sample_sites(Content::from(&content)).is_ok_and(|sites| !sites.profiled.is_empty())
}

/// The library's path, if it is installed.
fn find() -> Option<PathBuf> {
    if let Some(named) = env::var_os(PATH) {
        return Some(PathBuf::from(named)).filter(|named| !named.as_os_str().is_empty());
    }
    let own = env::current_exe().ok()?;
    let places = FOLDERS.map(|folder| own.parent().map(|beside| beside.join(folder).join(LIBRARY)));
    places.into_iter().flatten().find(|place| place.is_file())
}

/// Returns true if the loader takes a path for one name (ld.so(8)).
fn can_be_preloaded(library: &Path) -> bool {
    !library.as_os_str().as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || *byte == b':')
}

/// The list of preloaded libraries with this one at its head: the others are the next that it calls.
fn preload(library: &Path, others: Option<OsString>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_stands_before_what_is_preloaded_anyway() {
        let library = Path::new("/lib/a.so");
        assert_eq!(preload(library, None), "/lib/a.so");
        assert_eq!(preload(library, Some("".into())), "/lib/a.so");
        assert!(can_be_preloaded(library) && !can_be_preloaded(Path::new("/opt/a folder/a.so")));
        assert_eq!(preload(library, Some("/lib/jemalloc.so".into())), "/lib/a.so:/lib/jemalloc.so");
    }
}
