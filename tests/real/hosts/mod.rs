//! Kernels, privileges, and third-party programs.

mod capabilities;
pub(crate) mod hostile;
mod programs;
mod refusals;
mod servers;
mod verifier;
