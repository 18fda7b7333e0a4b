//! Files that are whole or not there.
//!
//! In: rendered bytes. Out: files. A [`PendingFile`] is written under a temporary name beside its destination and
//! takes its name when it is whole; until then, however jjleak ends, the destination is untouched.

mod pending;

pub use pending::{Error, PendingFile, discard_all};
