//! Reads and validates a configuration; errors name the line.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};
use glob::Pattern;
use serde::Deserialize;
use toml::de::DeTable;
use toml::{Table, Value};

use super::{Config, Profiling, Store};
use crate::profile::JUDGED_SPANS;
use crate::session::is_address;

/// Invalid configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The file, or the setting on the command line.
    origin: String,
    /// Line number in the file, from 1.
    line: Option<usize>,
    what: String,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(formatter, "{}:{line}: {}", self.origin, self.what),
            None => write!(formatter, "{}: {}", self.origin, self.what),
        }
    }
}

/// Reads a configuration file. `settings` (`section.key=value`) override values in the file.
pub fn read(file: &Path, text: &str, settings: &[String]) -> Result<Config, Error> {
    let origin = file.display().to_string();
    let in_file = |error: &toml::de::Error| Error {
        origin: origin.clone(),
        line: error.span().map(|span| line_of(text, &span)),
        what: error.message().replace('\n', " "),
    };
    let config: Config = toml::from_str(text).map_err(|error| in_file(&error))?;
    if settings.is_empty() {
        let blame = |found: Conflict| Error {
            origin: origin.clone(),
            line: found.keys().find_map(|key| line_of_key(text, key)),
            what: found.to_string(),
        };
        return conflict(&config).map_or(Ok(config), |found| Err(blame(found)));
    }
    let mut table: Table = toml::from_str(text).map_err(|error| in_file(&error))?;
    let mut config = config;
    for setting in settings {
        let wrong = |what: String| Error { origin: format!("--set {setting}"), line: None, what };
        set(&mut table, setting).map_err(wrong)?;
        config =
            Config::deserialize(table.clone()).map_err(|error| wrong(error.message().replace('\n', " ")))?;
    }
    let blame = |found: Conflict| Error {
        origin: format!("{origin} with --set"),
        line: None,
        what: found.to_string(),
    };
    conflict(&config).map_or(Ok(config), |found| Err(blame(found)))
}

/// Two values that conflict.
struct Conflict {
    /// The key to change.
    key: Key,
    /// The key it conflicts with. The file may contain either or both.
    with: Option<Key>,
    why: String,
}

/// Section and key.
type Key = [&'static str; 2];

const DURATION: Key = ["profile", "duration"];
const DUMPS: Key = ["dumps", "from"];
/// Maximum number of sources of heap profiles: each has a thread.
const MAX_DUMPS: usize = 16;

impl Conflict {
    fn keys(&self) -> impl Iterator<Item = &Key> {
        std::iter::once(&self.key).chain(&self.with)
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.key.join("."), self.why)
    }
}

/// First conflict.
fn conflict(config: &Config) -> Option<Conflict> {
    let Config { http, state, push, dumps, .. } = config;
    let found = |key, with, why: &str| Some(Conflict { key, with, why: why.to_owned() });
    let in_profile = in_profile(&config.profile);
    if in_profile.is_some() {
        return in_profile;
    }
    if http.listen.is_reachable_remotely() && http.token_file == PathBuf::new() {
        let why =
            "it would be readable by anybody: set http.token_file, or listen on 127.0.0.1 or a Unix socket";
        return found(["http", "listen"], None, why);
    }
    if push.to != Store::Off && !is_server(&push.url) {
        let why = "must be a URL that begins with https:// or http://";
        return found(["push", "url"], Some(["push", "to"]), why);
    }
    let is_sendable = |(name, value): &(&String, &String)| {
        name.parse::<HeaderName>().is_ok() && value.parse::<HeaderValue>().is_ok()
    };
    for (headers, key) in [(&push.headers, ["push", "headers"]), (&dumps.headers, ["dumps", "headers"])] {
        if let Some((name, _)) = headers.iter().find(|header| !is_sendable(header)) {
            let why = format!("`{name}` is not a valid header with this value");
            return found(key, None, &why);
        }
    }
    if dumps.from.len() > MAX_DUMPS {
        return found(DUMPS, None, &format!("more than {MAX_DUMPS} are not allowed"));
    }
    if let Some(why) = dumps.from.iter().find_map(|from| no_source(from)) {
        return found(DUMPS, None, &why);
    }
    let is_relative = |path: &Path| path != Path::new("") && path.is_relative();
    let no_path = [
        (is_relative(&state.directory) || state.directory == PathBuf::new(), ["state", "directory"]),
        (is_relative(&http.token_file), ["http", "token_file"]),
        (is_relative(&push.token_file), ["push", "token_file"]),
    ];
    let (_, key) = no_path.into_iter().find(|(is_so, _)| *is_so)?;
    found(key, None, "must be an absolute path")
}

/// First conflict in `[profile]`.
fn in_profile(profile: &Profiling) -> Option<Conflict> {
    let seconds = |span: Duration| span.as_secs();
    let (settle, duration) = (profile.settle.0, profile.duration.0);
    let least = settle * (JUDGED_SPANS + 1);
    if duration < least {
        let why = format!(
            "too short for a verdict with this settle: use at least {} s, or reduce profile.settle",
            seconds(least)
        );
        return Some(Conflict { key: DURATION, with: Some(["profile", "settle"]), why });
    }
    (profile.back_off_max.0 < profile.back_off.0).then(|| Conflict {
        key: ["profile", "back_off_max"],
        with: Some(["profile", "back_off"]),
        why: "less than profile.back_off".to_owned(),
    })
}

/// Reason why there can be no heap profiles from here, if there is one.
fn no_source(from: &str) -> Option<String> {
    if is_address(Path::new(from)) {
        let is_wrong = !from.starts_with("unix:/") && !is_server(from);
        return is_wrong.then(|| format!("`{from}` is neither a URL nor unix:SOCKET:PATH"));
    }
    if Path::new(from).is_relative() {
        return Some(format!("`{from}` must be an absolute path, or a URL"));
    }
    Pattern::new(from).err().map(|error| format!("`{from}`: {error}"))
}

fn is_server(url: &str) -> bool {
    let uri = url.parse::<Uri>().unwrap_or_default();
    uri.host().is_some_and(|host| !host.is_empty()) && matches!(uri.scheme_str(), Some("http" | "https"))
}

/// Sets a key (`section.key=value`). A value that is not valid TOML is taken as text.
fn set(table: &mut Table, setting: &str) -> Result<(), String> {
    let form = || "settings are written as SECTION.KEY=VALUE".to_owned();
    let (key, value) = setting.split_once('=').ok_or_else(form)?;
    let (section, key) = key.split_once('.').ok_or_else(form)?;
    let parsed = toml::from_str::<Table>(&format!("value = {value}")).ok();
    let value =
        parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(value.to_owned()));
    let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    section.as_table_mut().ok_or_else(form)?.insert(key.to_owned(), value);
    Ok(())
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1
}

/// Line of a key; `None` if it is not in the file.
fn line_of_key(text: &str, [section, key]: &[&str; 2]) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let section = table.get_ref().get(*section)?;
    let (name, _) = section.get_ref().as_table()?.iter().find(|(name, _)| name.get_ref() == key)?;
    Some(line_of(text, &name.span()))
}
