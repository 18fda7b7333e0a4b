//! Serves what the daemon knows.
//!
//! In: connections on one Unix socket or TCP address. Out: a page, JSON, metrics and profiles. Bounded in everything that
//! clients choose: connections, time, headers and bodies. No path of the host is made of anything that a client sends.

mod access;
mod api;
mod body;
mod listen;
mod page;
mod profiles;
mod view;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::core::Shared;
pub use access::Guard;
pub use listen::{Error, Listener};

/// How long a client may take with its headers.
const HEADERS: Duration = Duration::from_secs(10);
/// How long a connection may last: a large report over a slow line.
const CONNECTION: Duration = Duration::from_secs(120);
/// Most bytes of a request's head, and of its body: no request has much to say.
const MAX_HEAD: usize = 16 << 10;
const MAX_BODY: usize = 4 << 10;
/// Reports that are drawn at the same time: each takes a core and the memory of a whole profile.
const MAX_RENDERED: usize = 1;
/// KiB of reports that are drawn and not sent yet: slow clients could hold many. A larger one goes alone.
const MAX_SENDING: u32 = 64 << 10;
/// After accepting has failed, as when there are no descriptors left.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// What handlers work with.
#[derive(Debug, Clone)]
struct Served {
    shared: Shared,
    rendering: Arc<Semaphore>,
    sending: Arc<Semaphore>,
}

/// Answers until it is dropped.
pub(super) async fn serve(listener: Listener, guard: Guard, shared: Shared) {
    let most = shared.core().config.http.max_connections.0;
    let connections = Arc::new(Semaphore::new(most));
    let router = router(shared, guard);
    loop {
        // Others wait in the kernel's queue, which is bounded, too.
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        match listener.accept().await {
            Ok(stream) => {
                let router = router.clone();
                tokio::spawn(async move {
                    // A client that is slow or goes away is no news.
                    let _ = timeout(CONNECTION, converse(stream, router)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("a connection cannot be accepted: {error}");
                sleep(AFTER_FAILURE).await;
            }
        }
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) -> Result<(), hyper::Error> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
}

fn router(shared: Shared, guard: Guard) -> Router {
    let served = Served {
        shared,
        rendering: Arc::new(Semaphore::new(MAX_RENDERED)),
        sending: Arc::new(Semaphore::new(MAX_SENDING as usize)),
    };
    Router::new()
        .route("/", get(page::page))
        .route("/metrics", get(api::metrics))
        .route("/debug/pprof/heap", get(profiles::latest))
        .route("/profiles/{id}/profile.pb.gz", get(profiles::pprof))
        .route("/profiles/{id}/flame.svg", get(profiles::flame))
        .route("/profiles/{id}/report.html", get(profiles::report))
        .route("/profiles/{id}/series", get(page::snapshots))
        .route("/api/v1/openapi.json", get(api::openapi))
        .route("/api/v1/processes", get(api::processes))
        .route("/api/v1/processes/{pid}/profile", post(api::request))
        .route("/api/v1/profiles", get(api::profiles))
        .route("/api/v1/profiles/{id}", get(api::profile))
        .fallback(|| async { failure(StatusCode::NOT_FOUND, "there is nothing here") })
        .layer(from_fn_with_state(Arc::new(guard), access::check))
        // Whoever asks whether it lives need not know a secret.
        .route("/healthz", get(api::health))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(map_response(harmless))
        .with_state(served)
}

/// What browsers are told of everything: to take it for what it says it is, and to let it do nothing but show itself.
async fn harmless(mut response: Response) -> Result<Response, Infallible> {
    const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-inline'; base-uri 'none'; \
                          form-action 'self'; frame-ancestors 'none'";
    let mut set = |name: HeaderName, value: &'static str| {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::CACHE_CONTROL, "no-store");
    Ok(response)
}

/// An answer that is none.
fn failure(status: StatusCode, why: &str) -> Response {
    (status, axum::Json(serde_json::json!({ "error": why }))).into_response()
}

#[cfg(test)]
mod tests;
