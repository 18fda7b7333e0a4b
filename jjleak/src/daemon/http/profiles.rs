//! Profiles as pprof files, flame graphs and reports.

use std::fs::File;
use std::io::Cursor;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::body::Chunks;
use super::{MAX_SENDING, Served, failure};
use crate::daemon::history::{Error, Id, MAX_PROFILE, Stored};
use crate::daemon::profile::options;
use crate::error_chain::chain;
use crate::pprof as profile_file;
use crate::render::{Format, render};

const PPROF: &str = "application/octet-stream";
const SVG: &str = "image/svg+xml";
const HTML: &str = "text/html; charset=utf-8";

/// Selects a process.
#[derive(Debug, Deserialize)]
pub(super) struct ProcessQuery {
    pid: u32,
}

/// Latest profile of a process, at the path that Go programs use.
pub(super) async fn latest(State(served): State<Served>, Query(of): Query<ProcessQuery>) -> Response {
    let found = blocking(&served, move |served| {
        let history = served.shared.history();
        let id = history.entries().rev().find(|entry| entry.pid == of.pid).map(|entry| entry.id.clone());
        let kept = id.map(|id| history.profile(&id).map(|kept| (kept, id)));
        drop(history);
        kept.map(|kept| kept.and_then(|(kept, id)| Ok((kept.open()?, id))))
    });
    match found.await {
        Some(Some(Ok(((content, bytes), id)))) => {
            let chunks = Chunks::new(content, bytes, None);
            file(chunks, PPROF, Some(&format!("{id}.pb.gz")))
        }
        Some(Some(Err(error))) => error_response(&error),
        Some(None) => failure(StatusCode::NOT_FOUND, "no profile of this process"),
        None => internal_error(),
    }
}

/// The pprof file of a profile.
pub(super) async fn pprof(State(served): State<Served>, Path(id): Path<String>) -> Response {
    let name = format!("{id}.pb.gz");
    let opened = blocking(&served, move |served| kept(&served, &parse(&id)?)?.open());
    match opened.await {
        Some(Ok((content, bytes))) => file(Chunks::new(content, bytes, None), PPROF, Some(&name)),
        Some(Err(error)) => error_response(&error),
        None => internal_error(),
    }
}

/// The flame graph of a profile.
pub(super) async fn flame(State(served): State<Served>, Path(id): Path<String>) -> Response {
    let opened = blocking(&served, move |served| {
        let path = served.shared.history().picture(&parse(&id)?)?;
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        opened.map_err(|source| Error::State { what: "open", path, source })
    });
    match opened.await {
        Some(Ok((bytes, content))) => file(Chunks::new(content, bytes, None), SVG, None),
        Some(Err(error)) => error_response(&error),
        None => internal_error(),
    }
}

/// The report of a profile.
pub(super) async fn report(State(served): State<Served>, Path(id): Path<String>) -> Response {
    // The semaphore is never closed.
    let Ok(permit) = Arc::clone(&served.rendering).acquire_owned().await else { return internal_error() };
    let page = blocking(&served, move |served| {
        // Rendering goes on if the client disconnects.
        let _permit = permit;
        let id = parse(&id)?;
        let bytes = kept(&served, &id)?.read()?;
        let reading =
            profile_file::read_within(&bytes, MAX_PROFILE).map_err(|error| Error::Unreadable(id, error))?;
        Ok(render(&reading.profile, Format::Html, &options()))
    });
    match page.await {
        Some(Ok(Ok(page))) => {
            let bytes = page.len() as u64;
            // Wait for other reports to be sent.
            let weight = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX).min(MAX_SENDING);
            let Ok(permit) = Arc::clone(&served.sending).acquire_many_owned(weight).await else {
                return internal_error();
            };
            let mut response = file(Chunks::new(Cursor::new(page), bytes, Some(permit)), HTML, None);
            // The report has a stricter policy of its own, with the hash of its script.
            let policy = HeaderValue::from_static("frame-ancestors 'none'");
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
            response
        }
        Some(Ok(Err(error))) => failure(StatusCode::INTERNAL_SERVER_ERROR, &chain(&error)),
        Some(Err(error)) => error_response(&error),
        None => internal_error(),
    }
}

/// Looks up a stored profile; releases the history before its file is read.
fn kept(served: &Served, id: &Id) -> Result<Stored, Error> {
    served.shared.history().profile(id)
}

pub(super) fn parse(id: &str) -> Result<Id, Error> {
    id.parse().map_err(|_| Error::InvalidId)
}

/// Runs blocking or slow work on another thread. `None` if it panicked.
pub(super) async fn blocking<T: Send + 'static>(
    served: &Served,
    work: impl FnOnce(Served) -> T + Send + 'static,
) -> Option<T> {
    let permit = Arc::clone(&served.working).acquire_owned().await.ok()?;
    let served = served.clone();
    let work = move || {
        // The work goes on if the client disconnects.
        let _permit = permit;
        work(served)
    };
    tokio::task::spawn_blocking(work).await.ok()
}

fn file(content: Chunks, kind: &'static str, name: Option<&str>) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let attachment = name.map(|name| HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")));
    if let Some(Ok(attachment)) = attachment {
        headers.insert(header::CONTENT_DISPOSITION, attachment);
    }
    (headers, Body::new(content)).into_response()
}

pub(super) fn error_response(error: &Error) -> Response {
    match error {
        Error::Unknown(_) | Error::InvalidId => failure(StatusCode::NOT_FOUND, "no such profile"),
        // Do not disclose paths on the host.
        Error::State { .. } | Error::Taken | Error::Write(_) => {
            tracing::warn!("cannot serve a profile: {}", chain(error));
            failure(StatusCode::INTERNAL_SERVER_ERROR, "cannot read the profile; see the daemon's log")
        }
        Error::TooLarge { .. } | Error::Damaged(_) | Error::Unreadable(..) => {
            failure(StatusCode::INTERNAL_SERVER_ERROR, &chain(error))
        }
    }
}

pub(super) fn internal_error() -> Response {
    failure(StatusCode::INTERNAL_SERVER_ERROR, "internal error; see the daemon's log")
}
