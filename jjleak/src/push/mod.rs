//! Sends profiles to a remote profile store: Pyroscope, an OpenTelemetry collector, or any server that takes pprof.
//!
//! In: profile files as [`crate::pprof`] writes them. Out: HTTP requests. Unsent profiles wait in a bounded queue on disk, which
//! survives a restart; profiles that do not fit or that the server refuses are counted.

mod pusher;
mod queue;
mod request;
#[cfg(test)]
mod tests;

pub use pusher::{Pusher, Status};
pub use queue::{Error, Queue};
pub use request::{Destination, Kind};
