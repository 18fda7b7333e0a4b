//! Profiles in files: pprof, gzip-compressed protobuf, as read by `go tool pprof`, Pyroscope and Parca.
//!
//! In and out: a [`Profile`](crate::profile::Profile) and the bytes of a file. jjleak's own files are
//! restored exactly; other tools' profiles are read as far as possible ([`read`]).

mod comments;
mod elements;
mod error;
mod frame;
mod limits;
mod otlp;
mod proto;
mod read;
mod tables;
mod thread;
mod verdicts;
mod write;

pub use error::{Error, Malformed};
pub use otlp::otlp;
pub use read::{MappedFile, Reading, read, read_within};
pub use write::write;

/// Types and units of a sample's values, in the order in which they are written.
const SAMPLE_TYPES: [(&str, &str); 4] = [
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
];

#[cfg(test)]
mod tests;
