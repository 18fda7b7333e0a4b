//! Profiles: as they were written, drawn, and as pages.

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
use crate::daemon::history::{Error, Id, Kept, MAX_PROFILE};
use crate::daemon::profile::options;
use crate::render::{Format, render};
use crate::{cli, pprof as profile_file};

const PPROF: &str = "application/octet-stream";
const SVG: &str = "image/svg+xml";
const HTML: &str = "text/html; charset=utf-8";

/// Of which process.
#[derive(Debug, Deserialize)]
pub(super) struct Of {
    pid: u32,
}

/// The latest profile of a process, where Go programs have theirs.
pub(super) async fn latest(State(served): State<Served>, Query(of): Query<Of>) -> Response {
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
        Some(Some(Err(error))) => trouble(&error),
        Some(None) => failure(StatusCode::NOT_FOUND, "no profile of this process is kept"),
        None => defect(),
    }
}

/// A profile as it was written.
pub(super) async fn pprof(State(served): State<Served>, Path(id): Path<String>) -> Response {
    let name = format!("{id}.pb.gz");
    let opened = blocking(&served, move |served| kept(&served, &parse(&id)?)?.open());
    match opened.await {
        Some(Ok((content, bytes))) => file(Chunks::new(content, bytes, None), PPROF, Some(&name)),
        Some(Err(error)) => trouble(&error),
        None => defect(),
    }
}

/// The flame graph that was drawn of it.
pub(super) async fn flame(State(served): State<Served>, Path(id): Path<String>) -> Response {
    let opened = blocking(&served, move |served| {
        let path = served.shared.history().picture(&parse(&id)?)?;
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        opened.map_err(|source| Error::State { what: "opening", path, source })
    });
    match opened.await {
        Some(Ok((bytes, content))) => file(Chunks::new(content, bytes, None), SVG, None),
        Some(Err(error)) => trouble(&error),
        None => defect(),
    }
}

/// A page with everything that is in it.
pub(super) async fn report(State(served): State<Served>, Path(id): Path<String>) -> Response {
    // Never closed.
    let Ok(_permit) = served.rendering.acquire().await else { return defect() };
    let page = blocking(&served, move |served| {
        let id = parse(&id)?;
        let bytes = kept(&served, &id)?.read()?;
        let reading =
            profile_file::read_within(&bytes, MAX_PROFILE).map_err(|error| Error::Unreadable(id, error))?;
        Ok(render(&reading.profile, Format::Html, &options()))
    });
    match page.await {
        Some(Ok(Ok(page))) => {
            let bytes = page.len() as u64;
            // Until there is room for it, no other is drawn.
            let weight = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX).min(MAX_SENDING);
            let Ok(permit) = Arc::clone(&served.sending).acquire_many_owned(weight).await else {
                return defect();
            };
            let mut response = file(Chunks::new(Cursor::new(page), bytes, Some(permit)), HTML, None);
            // It brings a stricter policy of its own, which names its script by its hash.
            let policy = HeaderValue::from_static("frame-ancestors 'none'");
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
            response
        }
        Some(Ok(Err(error))) => failure(StatusCode::INTERNAL_SERVER_ERROR, &cli::chain(&error)),
        Some(Err(error)) => trouble(&error),
        None => defect(),
    }
}

/// The history is nobody's while the file is read.
fn kept(served: &Served, id: &Id) -> Result<Kept, Error> {
    served.shared.history().profile(id)
}

pub(super) fn parse(id: &str) -> Result<Id, Error> {
    id.parse().map_err(|_| Error::NoId)
}

/// Does what may wait for a disk, or takes long, aside. `None` when it has panicked.
pub(super) async fn blocking<T: Send + 'static>(
    served: &Served,
    work: impl FnOnce(Served) -> T + Send + 'static,
) -> Option<T> {
    let served = served.clone();
    tokio::task::spawn_blocking(move || work(served)).await.ok()
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

pub(super) fn trouble(error: &Error) -> Response {
    match error {
        Error::Unknown(_) | Error::NoId => failure(StatusCode::NOT_FOUND, "there is no such profile"),
        // Where it is on the host is nobody's business.
        Error::State { .. } | Error::Taken | Error::Write(_) => {
            tracing::warn!("a profile cannot be served: {}", cli::chain(error));
            failure(StatusCode::INTERNAL_SERVER_ERROR, "it cannot be read; the daemon's log says why")
        }
        Error::TooLarge { .. } | Error::Damaged(_) | Error::Unreadable(..) => {
            failure(StatusCode::INTERNAL_SERVER_ERROR, &cli::chain(error))
        }
    }
}

pub(super) fn defect() -> Response {
    failure(StatusCode::INTERNAL_SERVER_ERROR, "a defect in jjleak; the daemon's log may say more")
}
