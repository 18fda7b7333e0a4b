//! Access control.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};

use super::{Error, failure};
use crate::daemon::config::{Http, ListenAddress};
use crate::daemon::token;

/// Names of this host in requests from itself.
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Checks requests.
#[derive(Debug)]
pub struct Guard {
    /// Hash of the token. Comparing hashes takes the same time wherever tokens differ.
    token: Option<[u8; 32]>,
    /// True to check the host name against DNS rebinding: a foreign page can resolve a name of its own to this host.
    checks_name: bool,
}

impl Guard {
    /// Reads the token, if one is configured.
    pub fn of(http: &Http) -> Result<Self, Error> {
        let path = &http.token_file;
        let token = token::read(path).map_err(|why| Error::Token { path: path.clone(), why })?;
        let token = token.map(|token| Sha256::digest(token).into());
        Ok(Self { checks_name: token.is_none() && matches!(http.listen, ListenAddress::Tcp(_)), token })
    }

    /// Reason to refuse a request; `None` if it is allowed.
    fn refusal(&self, method: &Method, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(token) = self.token {
            let sent = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
            let is_right = sent.is_some_and(|sent| <[u8; 32]>::from(Sha256::digest(sent.trim())) == token);
            if !is_right {
                return Some((StatusCode::UNAUTHORIZED, "token required: Authorization: Bearer TOKEN"));
            }
        }
        let host = text(header::HOST);
        let name = host.and_then(|host| host.parse::<Authority>().ok());
        if self.checks_name && !name.is_some_and(|name| LOCAL_NAMES.contains(&name.host())) {
            return Some((StatusCode::FORBIDDEN, "wrong host name: use localhost"));
        }
        let origin = text(header::ORIGIN);
        let is_own = |origin: &str| origin.split_once("://").map(|(_, origin)| origin) == host;
        if method != Method::GET && origin.is_some_and(|origin| !is_own(origin)) {
            return Some((StatusCode::FORBIDDEN, "cross-site requests are not allowed"));
        }
        None
    }
}

/// Middleware that refuses requests.
pub(super) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    match guard.refusal(request.method(), request.headers()) {
        Some((status, why)) => failure(status, why),
        None => next.run(request).await,
    }
}
