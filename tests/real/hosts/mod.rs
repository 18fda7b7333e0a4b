//! Kernels, privileges, and third-party programs.

mod capabilities;
mod hostile_files;
mod programs;
mod refusals;
mod servers;
mod verifier;
