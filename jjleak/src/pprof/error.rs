//! Why a file is not read.

use std::io;

/// A file that cannot be read as a profile of memory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its compression is damaged.
    #[error("it cannot be decompressed")]
    Compression(#[source] io::Error),
    /// It is more than a profile can be.
    #[error("it has more than {limit} {what}, which is more than jjleak reads")]
    TooLarge {
        /// The most that is read.
        limit: u64,
        /// Of what.
        what: &'static str,
    },
    /// It is no protobuf message.
    #[error("it is no pprof profile")]
    NotPprof(#[source] prost::DecodeError),
    /// It is not what pprof describes.
    #[error("it is no pprof profile: {0}")]
    Malformed(Malformed),
    /// It has no figures in bytes or objects.
    #[error("it is no profile of memory: its figures are {0}")]
    NoMemory(String),
}

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Nothing says what values are of.
    #[error("it has no sample types")]
    NoSampleTypes,
    /// A string that is not in the table.
    #[error("string {0} is not in its table")]
    String(i64),
    /// A location that is not in the table.
    #[error("location {0} is not in its table")]
    Location(u64),
    /// A function that is not in the table.
    #[error("function {0} is not in its table")]
    Function(u64),
    /// A mapping that is not in the table.
    #[error("mapping {0} is not in its table")]
    Mapping(u64),
    /// A sample has another number of values than there are types.
    #[error("a sample has {0} values")]
    Values(usize),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}
