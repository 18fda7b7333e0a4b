//! Requests to servers of others: profiles that are read and pushed.

use std::path::Path;
use std::time::Duration;

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// Files with the certificates that a system trusts: Debian's and Alpine's, those of Red Hat's and SUSE's distributions, and OpenSSL's own.
const TRUSTED: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/var/lib/ca-certificates/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Variables that name others, as OpenSSL has them.
const NAMED_BY: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Sends requests, each of which takes this long at most. Servers are known by the certificates that this system trusts, or those in
/// `SSL_CERT_FILE` or `SSL_CERT_DIR`: those of an organization of its own are in no list that a program could bring. In a root without any, as in
/// a container, that list has to do.
pub(crate) fn agent(timeout: Duration) -> Agent {
    Agent::config_builder()
        .timeout_global(Some(timeout))
        .tls_config(TlsConfig::builder().root_certs(roots()).build())
        // Do not send a token to another server.
        .max_redirects(0)
        .http_status_as_error(false)
        .user_agent(concat!("jjleak/", env!("CARGO_PKG_VERSION")))
        .build()
        .into()
}

/// Messages up to this level, except those of the library that verifies certificates: the error of the request says the same.
pub(crate) fn messages(level: Level) -> Targets {
    Targets::new().with_default(level).with_target("rustls_platform_verifier", LevelFilter::OFF)
}

fn roots() -> RootCerts {
    let is_named = NAMED_BY.iter().any(|name| std::env::var_os(name).is_some());
    if is_named || TRUSTED.iter().any(|file| Path::new(file).exists()) {
        RootCerts::PlatformVerifier
    } else {
        RootCerts::WebPki
    }
}
