//! HTTP server of the daemon.
//!
//! In: connections to one Unix socket or TCP address. Out: a page, JSON, metrics and profiles. Everything that clients choose is
//! bounded: connections, time, headers and bodies. No path on the host is built from a client's input.

mod access;
mod api;
mod body;
mod command_lines;
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
use command_lines::CommandLines;
pub use listen::{Error, Listener};

/// Timeout for a request's headers.
const HEADERS: Duration = Duration::from_secs(10);
/// Timeout for a connection: a large report over a slow line.
const CONNECTION: Duration = Duration::from_secs(120);
/// Maximum sizes of a request's head and body.
const MAX_HEAD: usize = 16 << 10;
const MAX_BODY: usize = 4 << 10;
/// Maximum number of requests worked on at a time, with those whose client has disconnected: half of the threads for blocking work.
const MAX_WORKING: usize = 4;
/// Maximum number of reports rendered at a time: each takes a core and the memory of a whole profile.
const MAX_RENDERED: usize = 1;
/// Maximum size, in KiB, of reports rendered but not sent, because slow clients could hold many. A larger one is sent alone.
const MAX_SENDING: u32 = 64 << 10;
/// Pause after accepting has failed, for example for lack of file descriptors.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// State of the request handlers.
#[derive(Debug, Clone)]
struct Served {
    shared: Shared,
    command_lines: Arc<CommandLines>,
    working: Arc<Semaphore>,
    rendering: Arc<Semaphore>,
    sending: Arc<Semaphore>,
}

/// Serves connections until dropped.
pub(super) async fn serve(listener: Listener, guard: Guard, shared: Shared) {
    let most = shared.core().config.http.max_connections.0;
    let connections = Arc::new(Semaphore::new(most));
    let router = router(shared, guard);
    loop {
        // Further connections wait in the kernel's backlog, which is bounded as well.
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        match listener.accept().await {
            Ok(stream) => {
                let router = router.clone();
                tokio::spawn(async move {
                    // Slow and disconnecting clients are not worth a log message.
                    let _ = timeout(CONNECTION, serve_connection(stream, router)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                sleep(AFTER_FAILURE).await;
            }
        }
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
) -> Result<(), hyper::Error> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
}

impl Served {
    fn new(shared: Shared) -> Self {
        Self {
            shared,
            command_lines: Arc::new(CommandLines::new()),
            working: Arc::new(Semaphore::new(MAX_WORKING)),
            rendering: Arc::new(Semaphore::new(MAX_RENDERED)),
            sending: Arc::new(Semaphore::new(MAX_SENDING as usize)),
        }
    }
}

fn router(shared: Shared, guard: Guard) -> Router {
    let served = Served::new(shared);
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
        .route("/api/v1/dumps", get(api::dumps))
        .route("/api/v1/profiles", get(api::profiles))
        .route("/api/v1/profiles/{id}", get(api::profile))
        .fallback(|| async { failure(StatusCode::NOT_FOUND, "no such resource") })
        .layer(from_fn_with_state(Arc::new(guard), access::check))
        // Health checks need no token.
        .route("/healthz", get(api::health))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(map_response(security_headers))
        .with_state(served)
}

/// Adds security headers: no MIME sniffing, no external content, no framing, no caching.
async fn security_headers(mut response: Response) -> Result<Response, Infallible> {
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

/// An error response.
fn failure(status: StatusCode, why: &str) -> Response {
    (status, axum::Json(serde_json::json!({ "error": why }))).into_response()
}

#[cfg(test)]
mod tests;
