//! Reads a configuration, and says which line is wrong.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};
use serde::Deserialize;
use toml::de::DeTable;
use toml::{Table, Value};

use super::{Config, Profiling, Store};
use crate::profile::JUDGED_SPANS;

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The file, or the setting of the command line.
    origin: String,
    /// The line in the file, from 1 on.
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

/// Reads the text of a file. What `settings` say (`section.key=value`) holds instead of what is in it.
pub fn read(file: &Path, text: &str, settings: &[String]) -> Result<Config, Error> {
    let origin = file.display().to_string();
    let in_file = |error: &toml::de::Error| Error {
        origin: origin.clone(),
        line: error.span().map(|span| line_of(text, &span)),
        what: error.message().replace('\n', " "),
    };
    let config: Config = toml::from_str(text).map_err(|error| in_file(&error))?;
    if settings.is_empty() {
        let blame = |found: Contradiction| Error {
            origin: origin.clone(),
            line: found.keys().find_map(|key| line_of_key(text, key)),
            what: found.to_string(),
        };
        return contradiction(&config).map_or(Ok(config), |found| Err(blame(found)));
    }
    let mut table: Table = toml::from_str(text).map_err(|error| in_file(&error))?;
    let mut config = config;
    for setting in settings {
        let wrong = |what: String| Error { origin: format!("--set {setting}"), line: None, what };
        set(&mut table, setting).map_err(wrong)?;
        config =
            Config::deserialize(table.clone()).map_err(|error| wrong(error.message().replace('\n', " ")))?;
    }
    let blame = |found: Contradiction| Error {
        origin: format!("{origin} with --set"),
        line: None,
        what: found.to_string(),
    };
    contradiction(&config).map_or(Ok(config), |found| Err(blame(found)))
}

/// Two values that do not go together.
struct Contradiction {
    /// The key to change.
    key: Key,
    /// The one that it does not go with. In the file there may be either, or both.
    with: Option<Key>,
    why: String,
}

/// A section and a key of it.
type Key = [&'static str; 2];

const DURATION: Key = ["profile", "duration"];

impl Contradiction {
    fn keys(&self) -> impl Iterator<Item = &Key> {
        std::iter::once(&self.key).chain(&self.with)
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.key.join("."), self.why)
    }
}

/// The first one.
fn contradiction(config: &Config) -> Option<Contradiction> {
    let Config { http, state, push, .. } = config;
    let found = |key, with, why: &str| Some(Contradiction { key, with, why: why.to_owned() });
    let in_profile = in_profile(&config.profile);
    if in_profile.is_some() {
        return in_profile;
    }
    if http.listen.is_open_to_others() && http.token_file == PathBuf::new() {
        let why = "anybody could read it there: name a token_file, or listen on 127.0.0.1 or a Unix socket";
        return found(["http", "listen"], None, why);
    }
    if push.to != Store::Off && !is_server(&push.url) {
        let why = "it must begin with https:// or http://, and name a server";
        return found(["push", "url"], Some(["push", "to"]), why);
    }
    let is_sendable = |(name, value): &(&String, &String)| {
        name.parse::<HeaderName>().is_ok() && value.parse::<HeaderValue>().is_ok()
    };
    if let Some((name, _)) = push.headers.iter().find(|header| !is_sendable(header)) {
        let why = format!("`{name}` is no header that can be sent, with this value");
        return found(["push", "headers"], None, &why);
    }
    let is_relative = |path: &Path| path != Path::new("") && path.is_relative();
    let no_path = [
        (is_relative(&state.directory) || state.directory == PathBuf::new(), ["state", "directory"]),
        (is_relative(&http.token_file), ["http", "token_file"]),
        (is_relative(&push.token_file), ["push", "token_file"]),
    ];
    let (_, key) = no_path.into_iter().find(|(is_so, _)| *is_so)?;
    found(key, None, "it must begin with /")
}

/// The first one of how suspects are profiled.
fn in_profile(profile: &Profiling) -> Option<Contradiction> {
    let seconds = |span: Duration| span.as_secs();
    let (settle, duration) = (profile.settle.0, profile.duration.0);
    let least = settle * (JUDGED_SPANS + 1);
    if duration < least {
        let why = format!(
            "nothing can be judged in less than {} s, with this settle: make it as long, or settle shorter",
            seconds(least)
        );
        return Some(Contradiction { key: DURATION, with: Some(["profile", "settle"]), why });
    }
    (profile.back_off_max.0 < profile.back_off.0).then(|| Contradiction {
        key: ["profile", "back_off_max"],
        with: Some(["profile", "back_off"]),
        why: "it is less than back_off".to_owned(),
    })
}

fn is_server(url: &str) -> bool {
    let uri = url.parse::<Uri>().unwrap_or_default();
    uri.host().is_some_and(|host| !host.is_empty()) && matches!(uri.scheme_str(), Some("http" | "https"))
}

/// Sets a key, `section.key=value`: a value that is no TOML is text.
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

/// Where a key is; `None` when the file does not have it.
fn line_of_key(text: &str, [section, key]: &[&str; 2]) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let section = table.get_ref().get(*section)?;
    let (name, _) = section.get_ref().as_table()?.iter().find(|(name, _)| name.get_ref() == key)?;
    Some(line_of(text, &name.span()))
}
