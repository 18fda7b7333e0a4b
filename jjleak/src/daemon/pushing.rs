//! Starts the pusher from the configuration.

use std::fs;
use std::path::PathBuf;

use super::config::{Config, Store};
use super::token;
use crate::push::{self, Destination, Kind, Pusher};

/// Folder of the queue, in the state directory.
const QUEUE: &str = "push";
/// Label of the host (OpenTelemetry semantic conventions).
const HOST: &str = "host.name";

/// Reasons why the pusher cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The token file is unusable.
    #[error("push.token_file {path}: {why}")]
    Token {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The queue is unusable.
    #[error(transparent)]
    Queue(#[from] push::Error),
}

/// Starts the pusher; `None` if pushing is off.
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
        tracing::warn!("push.url is http://: the token in push.token_file is sent unencrypted");
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
    tracing::info!("pushing profiles to {}", push.url);
    Ok(Some(Pusher::start(destination, &queue, push.queue_bytes.0)?))
}
