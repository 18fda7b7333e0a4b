//! Kernels, privileges, and third-party programs.

mod capabilities;
mod hostile;
mod programs;
mod refusals;
mod servers;
mod verifier;
