//! Files that are complete or absent.
//!
//! In: rendered bytes. Out: files. A [`PendingFile`] has no name, or a temporary one, until it is complete; until then the
//! destination is untouched, however jjleak ends. Devices and pipes are written to directly. A [`Journal`] is a file of records,
//! each of which is complete or absent.

mod journal;
mod pending;
mod temporary;

pub use journal::{Journal, Records, line_bytes};
pub use pending::{Error, PendingFile, is_stream, make_folder};
pub use temporary::{discard_all, discard_left};
