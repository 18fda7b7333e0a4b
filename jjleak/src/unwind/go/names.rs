//! Names of Go's functions, for files without symbols.

use std::ops::Range;

use crate::file_content::Content;
use crate::unwind::sections;

/// Maximum size of a file's names: Kubernetes' largest program has 10 MiB. In a damaged table names can overlap.
const MAX_BYTES: usize = 64 << 20;

/// The Go functions of a file, by address.
#[derive(Debug)]
pub struct GoNames(Vec<(Range<u64>, String)>);

impl GoNames {
    /// Reads them from the table that Go's runtime uses for its own tracebacks; `None` if there is none.
    #[must_use]
    pub fn read(elf: Content<'_>) -> Option<Self> {
        let go = sections::go_code(elf)?;
        let mut left = MAX_BYTES;
        let functions = go.table.functions().map_while(|function| {
            left = left.checked_sub(function.name.len())?;
            Some((function.addresses, String::from_utf8_lossy(function.name).into_owned()))
        });
        Some(Self(functions.collect()))
    }

    /// The function at an address, before relocation of the file.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&str> {
        let following = self.0.partition_point(|(addresses, _)| addresses.start <= address);
        let (addresses, name) = self.0.get(following.checked_sub(1)?)?;
        addresses.contains(&address).then_some(name)
    }
}
