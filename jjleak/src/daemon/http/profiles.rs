//! Profiles: as they were written, drawn, and as pages.

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::{Served, failure};
use crate::daemon::history::{Error, Id};
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
        id.map(|id| history.read(&id).map(|bytes| (bytes, id)))
    });
    match found.await {
        Some(Some(Ok((bytes, id)))) => file(bytes, PPROF, Some(&format!("{id}.pb.gz"))),
        Some(Some(Err(error))) => trouble(&error),
        Some(None) => failure(StatusCode::NOT_FOUND, "no profile of this process is kept"),
        None => defect(),
    }
}

/// A profile as it was written.
pub(super) async fn pprof(State(served): State<Served>, Path(id): Path<String>) -> Response {
    let name = format!("{id}.pb.gz");
    match blocking(&served, move |served| served.shared.history().read(&parse(&id)?)).await {
        Some(Ok(bytes)) => file(bytes, PPROF, Some(&name)),
        Some(Err(error)) => trouble(&error),
        None => defect(),
    }
}

/// The flame graph that was drawn of it.
pub(super) async fn flame(State(served): State<Served>, Path(id): Path<String>) -> Response {
    match blocking(&served, move |served| served.shared.history().picture(&parse(&id)?)).await {
        Some(Ok(bytes)) => file(bytes, SVG, None),
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
        let bytes = served.shared.history().read(&id)?;
        let reading = profile_file::read(&bytes).map_err(|error| Error::Unreadable(id, error))?;
        Ok(render(&reading.profile, Format::Html, &options()))
    });
    match page.await {
        Some(Ok(Ok(page))) => {
            let mut response = file(page, HTML, None);
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

fn file(bytes: Vec<u8>, kind: &'static str, name: Option<&str>) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let attachment = name.map(|name| HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")));
    if let Some(Ok(attachment)) = attachment {
        headers.insert(header::CONTENT_DISPOSITION, attachment);
    }
    (headers, bytes).into_response()
}

pub(super) fn trouble(error: &Error) -> Response {
    match error {
        Error::Unknown(_) | Error::NoId => failure(StatusCode::NOT_FOUND, "there is no such profile"),
        // Where it is on the host is nobody's business.
        Error::State { .. } | Error::Taken | Error::Write(_) => {
            tracing::warn!("a profile cannot be served: {}", cli::chain(error));
            failure(StatusCode::INTERNAL_SERVER_ERROR, "it cannot be read; the daemon's log says why")
        }
        Error::Damaged(_) | Error::Unreadable(..) => {
            failure(StatusCode::INTERNAL_SERVER_ERROR, &cli::chain(error))
        }
    }
}

pub(super) fn defect() -> Response {
    failure(StatusCode::INTERNAL_SERVER_ERROR, "a defect in jjleak; the daemon's log may say more")
}
