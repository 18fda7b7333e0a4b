//! Reads a configuration, and says which line is wrong.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::de::DeTable;
use toml::{Table, Value};

use super::{Config, Store};
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
        let blame = |(key, what): (&[&str; 2], String)| Error {
            origin: origin.clone(),
            line: line_of_key(text, key),
            what: format!("{}: {what}", key.join(".")),
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
    let blame = |(key, what): (&[&str; 2], String)| Error {
        origin: format!("{origin} with --set"),
        line: None,
        what: format!("{}: {what}", key.join(".")),
    };
    contradiction(&config).map_or(Ok(config), |found| Err(blame(found)))
}

/// Two values that do not go together: which key to change, and why.
fn contradiction(config: &Config) -> Option<(&'static [&'static str; 2], String)> {
    let Config { profile, http, state, push, .. } = config;
    let least = profile.settle.0 * (JUDGED_SPANS + 1);
    if profile.duration.0 < least {
        let what = format!("nothing can be judged in less than {} s, with this settle", least.as_secs());
        return Some((&["profile", "duration"], what));
    }
    if profile.back_off_max.0 < profile.back_off.0 {
        return Some((&["profile", "back_off_max"], "it is less than back_off".to_owned()));
    }
    if http.listen.is_open_to_others() && http.token_file == PathBuf::new() {
        let what = "anybody could read it there: name a token_file, or listen on 127.0.0.1 or a Unix socket";
        return Some((&["http", "listen"], what.to_owned()));
    }
    let is_relative = |path: &Path| path != Path::new("") && path.is_relative();
    if is_relative(&state.directory) || state.directory == PathBuf::new() {
        return Some((&["state", "directory"], "it must begin with /".to_owned()));
    }
    if is_relative(&http.token_file) {
        return Some((&["http", "token_file"], "it must begin with /".to_owned()));
    }
    if push.to != Store::Off && !["http://", "https://"].iter().any(|scheme| push.url.starts_with(scheme)) {
        return Some((&["push", "url"], "it must begin with https:// or http://".to_owned()));
    }
    is_relative(&push.token_file).then(|| (&["push", "token_file"], "it must begin with /".to_owned()))
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
