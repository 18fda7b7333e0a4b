//! Files that are whole or not there.
//!
//! In: rendered bytes. Out: files. A [`PendingFile`] has no name, or a temporary one, until it is whole; until then,
//! however jjleak ends, the destination is untouched. Devices and pipes are written to as they are. A [`Journal`] is a file of
//! records of which each is whole or not there.

mod journal;
mod pending;
mod temporary;

pub use journal::{Journal, Records, line_bytes};
pub use pending::{Error, PendingFile, is_stream};
pub use temporary::{discard_all, discard_left};
