//! Allocators named by the user, because jjleak does not know them.
//!
//! In: a prefix, or a table (`table`). Out: functions with their roles; the mapped files are searched for them before the known
//! families.

mod java_heap;
mod table;

pub use java_heap::{JAVA_HEAP, OLDEST_JDK_WITH_HEAP, java_heap_sites};
pub use table::TableError;

use std::path::{Path, PathBuf};

use jjleak_common::cookie::Signature;

use super::families;
use super::site::Role;

/// An allocator named by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedAllocator {
    /// Name in messages.
    pub name: String,
    /// The file that contains it: a path as the process maps it, or a file name; `None` for any file.
    pub file: Option<PathBuf>,
    /// True if the user named every function: each that is not found is reported as missing.
    pub explicit: bool,
    /// Functions with their roles.
    pub functions: Vec<NamedFunction>,
}

/// A function of an allocator named by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFunction {
    /// Symbols or address.
    pub place: Place,
    /// Effect on the accounting.
    pub role: Role,
    /// Meaning of the arguments.
    pub signature: Signature,
}

/// Rule for finding a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// By any of these symbols.
    Names(Vec<String>),
    /// By its address in the file, as a symbol table would give it.
    Address(u64),
}

impl NamedAllocator {
    /// The C library's functions, with a prefix before their names.
    #[must_use]
    pub fn with_prefix(prefix: &str, file: Option<PathBuf>) -> Self {
        let function = |row: &families::Function| NamedFunction {
            place: Place::Names(row.names.iter().map(|name| format!("{prefix}{name}")).collect()),
            role: row.role,
            signature: row.signature,
        };
        let functions = families::C_FUNCTIONS.iter().map(function).collect();
        Self { name: format!("{prefix}malloc"), file, explicit: false, functions }
    }

    /// Parses a table of allocators.
    pub fn parse_table(text: &str) -> Result<Vec<Self>, TableError> {
        table::parse(text)
    }

    /// Returns true if the file with this path may contain it.
    #[must_use]
    pub fn may_be_in(&self, path: &Path) -> bool {
        self.file.as_deref().is_none_or(|file| is_file(file, path))
    }
}

/// Returns true if a file named by the user, by path or by file name, is the one with this path.
#[must_use]
pub fn is_file(named: &Path, path: &Path) -> bool {
    named == path || named.components().count() == 1 && path.file_name() == Some(named.as_os_str())
}

impl NamedFunction {
    pub(super) fn names(&self) -> &[String] {
        match &self.place {
            Place::Names(names) => names,
            Place::Address(_) => &[],
        }
    }
}
