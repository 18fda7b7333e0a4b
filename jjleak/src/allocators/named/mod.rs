//! Allocators that the user names, because jjleak does not know them.
//!
//! In: a prefix, or a table (`table`). Out: functions with their roles, which are looked for in the files that are
//! mapped, before the known families.

mod table;

pub use table::TableError;

use std::path::{Path, PathBuf};

use jjleak_common::cookie::Signature;

use super::families;
use super::site::Role;

/// An allocator that the user has named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedAllocator {
    /// What it is called in messages.
    pub name: String,
    /// The file that it is in: a path as the process maps it, or a file name; any file if there is none.
    pub file: Option<PathBuf>,
    /// Whether every function was named by the user, and is missed where it is not found.
    pub explicit: bool,
    /// Its functions.
    pub functions: Vec<NamedFunction>,
}

/// A function of an allocator that the user has named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFunction {
    /// Where it is.
    pub place: Place,
    /// What it does to the books.
    pub role: Role,
    /// Which argument is what.
    pub signature: Signature,
}

/// How a function is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// By any of these symbols.
    Names(Vec<String>),
    /// By its address in the file, as a symbol table would give it.
    Address(u64),
}

impl NamedAllocator {
    /// The C library's functions with a prefix in front of their names.
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

    /// Reads a table of allocators.
    pub fn parse_table(text: &str) -> Result<Vec<Self>, TableError> {
        table::parse(text)
    }

    /// Whether it may be in the file with this path.
    #[must_use]
    pub fn may_be_in(&self, path: &Path) -> bool {
        self.file.as_deref().is_none_or(|file| is_file(file, path))
    }
}

/// Whether a file that the user has named, by its path or by its name alone, is the one with this path.
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
