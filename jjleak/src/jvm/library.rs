//! Where a JVM's library is.

use std::path::Path;

use super::LIBRARY;
use crate::processes::{Mapping, Module, ModuleTable};

/// Whether a file is HotSpot's, or takes its place in another JVM.
#[must_use]
pub fn is_library(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == LIBRARY)
}

/// The JVM's library, and how far above its own addresses it is mapped.
#[must_use]
pub fn library<'a>(mappings: &[Mapping], modules: &'a ModuleTable) -> Option<(&'a Module, u64)> {
    let mapping = mappings.iter().find(|mapping| mapping.executable && is_library(&mapping.path))?;
    let (id, offset) = modules.find(mapping.addresses.start)?;
    let module = modules.get(id);
    Some((module, mapping.addresses.start.wrapping_sub(module.address_of(offset)?)))
}
