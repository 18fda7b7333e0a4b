//! Begins to send profiles to where those of others are, as the configuration says.

use std::fs;
use std::path::PathBuf;

use super::config::{Config, Store};
use super::token;
use crate::push::{self, Destination, Kind, Pusher};

/// Profiles that wait to be sent, in the state directory.
const QUEUE: &str = "push";
/// The label that tells hosts apart (OpenTelemetry's semantic conventions).
const HOST: &str = "host.name";

/// Profiles cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no token where one should be.
    #[error("push.token_file {path}: {why}")]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// They cannot be kept until they are sent.
    #[error(transparent)]
    Queue(#[from] push::Error),
}

/// What sends profiles; `None` when they are sent nowhere.
pub(super) fn start(config: &Config) -> Result<Option<Pusher>, Error> {
    let push = &config.push;
    let kind = match push.to {
        Store::Off => return Ok(None),
        Store::Pyroscope => Kind::Pyroscope,
        Store::Otlp => Kind::Otlp,
        Store::Pprof => Kind::Pprof,
    };
    let path = &push.token_file;
    let token = token::read(path).map_err(|why| Error::Token { path: path.clone(), why })?;
    if token.is_some() && push.url.starts_with("http://") {
        tracing::warn!(
            "push.url begins with http:// and there is a push.token_file: others can read the token on its way"
        );
    }
    let mut labels = push.labels.clone();
    if !labels.contains_key(HOST)
        && let Ok(name) = fs::read_to_string("/proc/sys/kernel/hostname")
    {
        labels.insert(HOST.to_owned(), name.trim().to_owned());
    }
    let destination =
        Destination { kind, url: push.url.clone(), token, headers: push.headers.clone(), labels };
    let queue = config.state.directory.join(QUEUE);
    tracing::info!("profiles are sent to {}", push.url);
    Ok(Some(Pusher::start(destination, &queue, push.queue_bytes.0)?))
}
