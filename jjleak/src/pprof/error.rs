//! Errors of the reader.

use std::io;

/// Reason why a file cannot be read as a memory profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The compressed data are damaged.
    #[error("decompression failed")]
    Compression(#[source] io::Error),
    /// The file exceeds a limit.
    #[error("more than {limit} {what}, which is jjleak's limit")]
    TooLarge {
        /// The limit.
        limit: u64,
        /// The limited quantity.
        what: &'static str,
    },
    /// The file is not a protobuf message.
    #[error("not a pprof profile")]
    NotPprof(#[source] prost::DecodeError),
    /// The message violates the pprof format.
    #[error("not a pprof profile: {0}")]
    Malformed(Malformed),
    /// No values are in bytes or objects.
    #[error("not a memory profile: its values are {0}")]
    NoMemory(String),
}

/// A violation of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// No types of values.
    #[error("no sample types")]
    NoSampleTypes,
    /// A string index out of range.
    #[error("string {0} is not in the table")]
    String(i64),
    /// An unknown location.
    #[error("location {0} is not in the table")]
    Location(u64),
    /// An unknown function.
    #[error("function {0} is not in the table")]
    Function(u64),
    /// An unknown mapping.
    #[error("mapping {0} is not in the table")]
    Mapping(u64),
    /// A sample whose number of values differs from that of the types.
    #[error("a sample has {0} values")]
    Values(usize),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}
