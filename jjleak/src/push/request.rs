//! HTTP requests of each kind of destination. Pure.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::pprof;
use crate::profile::ProcessInfo;

/// Destination of profiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Protocol.
    pub kind: Kind,
    /// URL of the server; for [`Kind::Pprof`], including the path.
    pub url: String,
    /// Sent as `Authorization: Bearer`.
    pub token: Option<String>,
    /// Additional headers, such as a tenant.
    pub headers: BTreeMap<String, String>,
    /// Labels added to every profile, such as the host.
    pub labels: BTreeMap<String, String>,
}

/// Protocol of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Pyroscope's ingestion endpoint (`POST /ingest`).
    Pyroscope,
    /// A server that takes a pprof file as the body of a `POST`.
    Pprof,
    /// An OpenTelemetry collector over HTTP (`POST /v1development/profiles`).
    Otlp,
}

/// An HTTP request to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) url: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// Pyroscope's description of the sample types: live values are levels, allocated values are cumulative.
const SAMPLE_TYPES: &str = r#"{"inuse_objects":{"units":"objects","display-name":"inuse_objects","aggregation":"average"},"inuse_space":{"units":"bytes","display-name":"inuse_space","aggregation":"average"},"alloc_objects":{"units":"objects","display-name":"alloc_objects","cumulative":true},"alloc_space":{"units":"bytes","display-name":"alloc_space","cumulative":true}}"#;

/// Separator of multipart bodies. Occurs in a compressed profile with a probability of 2^-200.
const BOUNDARY: &str = "jjleak-0f5b21c09a3d4e7c8b6a";

impl Destination {
    /// Builds the request that delivers a profile.
    pub(super) fn request(&self, file: &[u8]) -> Result<Request, pprof::Error> {
        let profile = pprof::read(file)?.profile;
        let mut headers: Vec<_> =
            self.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        if let Some(token) = &self.token {
            headers.push(("Authorization".to_owned(), format!("Bearer {token}")));
        }
        let mut add = |name: &str, value: &str| headers.push((name.to_owned(), value.to_owned()));
        let mut query = Vec::new();
        let server = self.url.trim_end_matches('/');
        let (url, body) = match self.kind {
            Kind::Pyroscope => {
                add("Content-Type", &format!("multipart/form-data; boundary={BOUNDARY}"));
                query = vec![
                    ("name", self.application(&profile.process)),
                    ("from", profile.started_at.as_second().to_string()),
                    ("until", profile.taken_at.as_second().to_string()),
                    ("format", "pprof".to_owned()),
                    ("spyName", "jjleak".to_owned()),
                ];
                (format!("{server}/ingest"), form(file))
            }
            Kind::Pprof => {
                add("Content-Type", "application/octet-stream");
                (self.url.clone(), file.to_vec())
            }
            Kind::Otlp => {
                add("Content-Type", "application/x-protobuf");
                add("Content-Encoding", "gzip");
                let message = pprof::otlp(&profile, &self.labels);
                (format!("{server}/v1development/profiles"), gzip(&message))
            }
        };
        Ok(Request { url, query, headers, body })
    }

    /// Name of the series in Pyroscope: an application with labels.
    fn application(&self, process: &ProcessInfo) -> String {
        let pid = ("pid".to_owned(), process.pid.to_string());
        let labels = self.labels.iter().map(|(name, value)| (name.clone(), value.clone())).chain([pid]);
        let labels: Vec<_> =
            labels.map(|(name, value)| format!("{}={}", label_name(&name), plain(&value))).collect();
        format!("{}{{{}}}", plain(&process.comm), labels.join(","))
    }
}

/// Multipart form with a profile and its sample types (RFC 7578).
fn form(file: &[u8]) -> Vec<u8> {
    let part = |name: &str, kind: &str| {
        format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\
             Content-Type: {kind}\r\n\r\n"
        )
    };
    let mut body = part("profile", "application/octet-stream").into_bytes();
    body.extend_from_slice(file);
    body.extend_from_slice(b"\r\n");
    body.extend_from_slice(part("sample_type_config", "application/json").as_bytes());
    body.extend_from_slice(SAMPLE_TYPES.as_bytes());
    body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    body
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    gzip.write_all(bytes).and_then(|()| gzip.finish()).unwrap_or_default()
}

/// Replaces characters that are special in series names: a process can choose its name freely.
fn plain(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.:/ ".contains(c);
    text.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}

/// Replaces characters that Prometheus does not allow in label names.
fn label_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
