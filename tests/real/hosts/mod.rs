//! Kernels, privileges, and third-party programs.

mod capabilities;
mod programs;
mod refusals;
mod servers;
mod verifier;
