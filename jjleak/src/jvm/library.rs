//! The file that contains the JVM.

use std::rc::Rc;

use super::{LIBRARY, STRUCTS};
use crate::processes::{Mapping, Module, ModuleTable};

/// Returns whether a file contains HotSpot, under any name: a launcher can link all of it statically. A file
/// with the library's name counts too, as it replaces HotSpot in another JVM.
#[must_use]
pub fn is_library(module: &Module) -> bool {
    has_name(module) || describes_itself(module)
}

/// Returns whether a file describes the HotSpot in it.
#[must_use]
pub fn describes_itself(module: &Module) -> bool {
    module.exported_word(STRUCTS).is_some()
}

/// The JVM's library and its load bias.
#[must_use]
pub fn library<'a>(mappings: &[Mapping], modules: &'a ModuleTable) -> Option<(&'a Rc<Module>, u64)> {
    let mut libraries = mappings.iter().filter(|mapping| mapping.executable).filter_map(|mapping| {
        let located = modules.find(mapping.addresses.start)?;
        let module = modules.get(located.module);
        let address = is_library(module).then_some(located.address)??;
        Some((module, mapping.addresses.start.wrapping_sub(address)))
    });
    let first = libraries.next()?;
    // OpenJ9 has a libjvm.so too, which only forwards to the JVM.
    Some([first].into_iter().chain(libraries).find(|(module, _)| describes_itself(module)).unwrap_or(first))
}

/// Returns whether a file is named like HotSpot's library.
#[must_use]
pub fn has_name(module: &Module) -> bool {
    module.path.file_name().is_some_and(|name| name == LIBRARY)
}
