//! Sends profiles to where those of a whole fleet are kept: Pyroscope, OTLP, or any that takes pprof.
//!
//! In: files as [`crate::pprof`] writes them. Out: requests over HTTP. What cannot be sent waits in a queue on disk, which
//! survives jjleak and is bounded; what finds no place there, and what the other side refuses, is counted.

mod pusher;
mod queue;
mod request;
#[cfg(test)]
mod tests;

pub use pusher::{Pusher, Status};
pub use queue::{Error, Queue};
pub use request::{Destination, Kind};
