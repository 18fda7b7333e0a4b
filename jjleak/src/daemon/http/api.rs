//! API for programs: `/api/v1`, metrics and health.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::profiles::{blocking, error_response, internal_error, parse};
use super::view::processes as views;
use super::{Served, failure};
use crate::daemon::core::since_boot;
use crate::daemon::dumps::{Source, lock};
use crate::daemon::history::{Entry, Error, Id};
use crate::daemon::metrics;
use crate::processes::Pid;

/// Description of the API, in the `OpenAPI` format.
const OPENAPI: &str = include_str!("openapi.json");
/// Default number of profiles in a response.
const PROFILES: usize = 100;
/// Maximum number of profiles in a response.
const MAX_PROFILES: usize = 1000;
/// Number of missed scans after which the daemon counts as hung.
const MISSED_SCANS: u32 = 5;
/// Minimum time without scans after which the daemon counts as hung: starting to profile loads the machine.
const MIN_HUNG: Duration = Duration::from_secs(60);

/// Selects profiles.
#[derive(Debug, Deserialize)]
pub(super) struct ProfileQuery {
    pid: Option<u32>,
    series: Option<Id>,
    limit: Option<usize>,
}

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

pub(super) async fn processes(State(served): State<Served>) -> Response {
    let processes = blocking(&served, |served| json!({ "processes": views(&served) }));
    processes.await.map_or_else(internal_error, |processes| Json(processes).into_response())
}

/// Lists profiles, latest first.
pub(super) async fn profiles(State(served): State<Served>, Query(wanted): Query<ProfileQuery>) -> Response {
    let found = blocking(&served, move |served| {
        let limit = wanted.limit.unwrap_or(PROFILES).min(MAX_PROFILES);
        let history = served.shared.history();
        let first = wanted.series.as_ref().and_then(|first| history.get(first));
        // The first profile may have been removed, and adopted profiles do not know their series.
        let is_of = |entry: &Entry, series: &Id| {
            entry.series.as_ref() == Some(series) || first.is_some_and(|first| entry.is_same_series(first))
        };
        let is_wanted = |entry: &&Entry| {
            wanted.pid.is_none_or(|pid| entry.pid == pid)
                && wanted.series.as_ref().is_none_or(|series| is_of(entry, series))
        };
        let entries: Vec<_> = history.entries().rev().filter(is_wanted).take(limit).cloned().collect();
        drop(history);
        json!({ "profiles": entries })
    });
    found.await.map_or_else(internal_error, |profiles| Json(profiles).into_response())
}

pub(super) async fn profile(State(served): State<Served>, Path(id): Path<String>) -> Response {
    let found = blocking(&served, move |served| {
        let id = parse(&id)?;
        served.shared.history().get(&id).cloned().ok_or(Error::Unknown(id))
    });
    match found.await {
        Some(Ok(entry)) => Json(entry).into_response(),
        Some(Err(error)) => error_response(&error),
        None => internal_error(),
    }
}

/// Lists the sources of heap profiles that programs write themselves.
pub(super) async fn dumps(State(served): State<Served>) -> Response {
    let known = lock(&served.shared.dumps);
    let sources: Vec<_> =
        known.iter().map(|(from, source)| DumpsView { from: from.clone(), source: source.clone() }).collect();
    drop(known);
    Json(json!({ "sources": sources })).into_response()
}

/// A source of heap profiles.
#[derive(Debug, Serialize)]
struct DumpsView {
    from: String,
    #[serde(flatten)]
    source: Source,
}

/// Requests a profile of a process.
pub(super) async fn request(State(served): State<Served>, Path(pid): Path<u32>) -> Response {
    let taken = Pid::new(pid).and_then(|pid| served.shared.core().request(pid));
    match taken {
        None => failure(StatusCode::NOT_FOUND, "this process is not watched"),
        Some(false) => failure(StatusCode::CONFLICT, "this process is being profiled"),
        Some(true) => {
            served.shared.wake.notify_one();
            tracing::info!("profile requested by a client: pid {pid}");
            (StatusCode::ACCEPTED, Json(json!({ "pid": pid, "state": "suspected" }))).into_response()
        }
    }
}

pub(super) async fn metrics(State(served): State<Served>) -> Response {
    let text = blocking(&served, |served| {
        let text = metrics::of_processes(&served.shared.core());
        let pushing = served.shared.pusher.as_ref().map(|pusher| metrics::of_pushing(&pusher.status()));
        let dumps = metrics::of_dumps(&lock(&served.shared.dumps));
        text + &dumps + &metrics::of_history(&served.shared.history()) + &pushing.unwrap_or_default()
    });
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    text.await.map_or_else(internal_error, |text| (kind, text).into_response())
}

/// Responds 200 if scans are on time, 503 if not.
pub(super) async fn health(State(served): State<Served>) -> Response {
    let core = served.shared.core();
    let latest = (core.config.watch.interval.0 * MISSED_SCANS).max(MIN_HUNG);
    let since = since_boot().saturating_sub(core.scanned_at);
    if since <= latest {
        (StatusCode::OK, "ok\n").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("no scan for {} s\n", since.as_secs())).into_response()
    }
}
