//! Reads from outside what the memory of a process is used for: no probe, no stop, no code in the process.
//!
//! In: a process's memory, its mappings and the state of its pages. Out: ranges and bytes by use, or the reason why they are unknown.

pub mod glibc;
mod go;
pub mod hotspot;
mod kind;
mod libraries;
mod process;
mod rows;
mod scan;
mod smaps;
mod stacks;
mod uses;

pub use glibc::{PageState, Pages, ProcessPages};
pub(crate) use go::GO_HEAP;
pub use kind::{Claim, Kind};
pub use libraries::Libraries;
pub use process::{ProcessScan, uses_of};
pub use rows::{Row, rows};
pub use scan::Scan;
pub use smaps::{Area, parse_smaps};
pub use uses::{Use, uses};
