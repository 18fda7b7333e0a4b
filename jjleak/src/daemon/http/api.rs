//! What programs ask for: `/api/v1`, metrics, and whether the daemon lives.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::profiles::{blocking, defect, parse, trouble};
use super::view::processes as views;
use super::{Served, failure};
use crate::daemon::core::since_boot;
use crate::daemon::history::{Entry, Error, Id};
use crate::daemon::metrics;
use crate::processes::Pid;

/// What the interface is, for programs.
const OPENAPI: &str = include_str!("openapi.json");
/// Profiles of an answer, when nobody asks for a number.
const PROFILES: usize = 100;
/// And when somebody asks for more.
const MAX_PROFILES: usize = 1000;
/// Looks that may be missed before the daemon counts as stuck.
const MISSED_LOOKS: u32 = 5;
/// And at least so long: profiling begins on the same machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The profiles that are wanted.
#[derive(Debug, Deserialize)]
pub(super) struct Wanted {
    pid: Option<u32>,
    series: Option<Id>,
    limit: Option<usize>,
}

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

pub(super) async fn processes(State(served): State<Served>) -> Response {
    let processes = blocking(&served, |served| json!({ "processes": views(&served.shared) }));
    processes.await.map_or_else(defect, |processes| Json(processes).into_response())
}

/// The latest first.
pub(super) async fn profiles(State(served): State<Served>, Query(wanted): Query<Wanted>) -> Response {
    let found = blocking(&served, move |served| {
        let limit = wanted.limit.unwrap_or(PROFILES).min(MAX_PROFILES);
        let history = served.shared.history();
        let first = wanted.series.as_ref().and_then(|first| history.get(first));
        // The first one may be there no more, and others may have been found without what they are of.
        let is_of = |entry: &Entry, series: &Id| {
            entry.series.as_ref() == Some(series) || first.is_some_and(|first| entry.is_beside(first))
        };
        let is_wanted = |entry: &&Entry| {
            wanted.pid.is_none_or(|pid| entry.pid == pid)
                && wanted.series.as_ref().is_none_or(|series| is_of(entry, series))
        };
        let entries: Vec<_> = history.entries().rev().filter(is_wanted).take(limit).cloned().collect();
        drop(history);
        json!({ "profiles": entries })
    });
    found.await.map_or_else(defect, |profiles| Json(profiles).into_response())
}

pub(super) async fn profile(State(served): State<Served>, Path(id): Path<String>) -> Response {
    let found = blocking(&served, move |served| {
        let id = parse(&id)?;
        served.shared.history().get(&id).cloned().ok_or(Error::Unknown(id))
    });
    match found.await {
        Some(Ok(entry)) => Json(entry).into_response(),
        Some(Err(error)) => trouble(&error),
        None => defect(),
    }
}

/// Has a process profiled as soon as its turn comes.
pub(super) async fn request(State(served): State<Served>, Path(pid): Path<u32>) -> Response {
    let taken = Pid::new(pid).and_then(|pid| served.shared.core().request(pid));
    match taken {
        None => failure(StatusCode::NOT_FOUND, "this process is not watched"),
        Some(false) => failure(StatusCode::CONFLICT, "this process is being profiled"),
        Some(true) => {
            served.shared.wake.notify_one();
            tracing::info!("a client asks for a profile of pid {pid}");
            (StatusCode::ACCEPTED, Json(json!({ "pid": pid, "state": "suspected" }))).into_response()
        }
    }
}

pub(super) async fn metrics(State(served): State<Served>) -> Response {
    let text = blocking(&served, |served| {
        let text = metrics::of_processes(&served.shared.core());
        let pushing = served.shared.pusher.as_ref().map(|pusher| metrics::of_pushing(&pusher.status()));
        text + &metrics::of_history(&served.shared.history()) + &pushing.unwrap_or_default()
    });
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    text.await.map_or_else(defect, |text| (kind, text).into_response())
}

/// Whether processes are looked at.
pub(super) async fn health(State(served): State<Served>) -> Response {
    let core = served.shared.core();
    let latest = (core.config.watch.interval.0 * MISSED_LOOKS).max(PATIENCE);
    let since = since_boot().saturating_sub(core.looked);
    if since <= latest {
        (StatusCode::OK, "ok\n").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("no look at any process for {} s\n", since.as_secs()))
            .into_response()
    }
}
