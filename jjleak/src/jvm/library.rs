//! Where a JVM's library is.

use std::rc::Rc;

use super::{LIBRARY, STRUCTS};
use crate::processes::{Mapping, Module, ModuleTable};

/// Whether a file has HotSpot in it, whatever its name is: a launcher can be linked with all of it. Or it takes HotSpot's
/// place in another JVM, and has its name.
#[must_use]
pub fn is_library(module: &Module) -> bool {
    has_name(module) || describes_itself(module)
}

/// Whether a file describes the HotSpot that is in it.
#[must_use]
pub fn describes_itself(module: &Module) -> bool {
    module.exports_word(STRUCTS)
}

/// The JVM's library, and how far above its own addresses it is mapped.
#[must_use]
pub fn library<'a>(mappings: &[Mapping], modules: &'a ModuleTable) -> Option<(&'a Rc<Module>, u64)> {
    let mut libraries = mappings.iter().filter(|mapping| mapping.executable).filter_map(|mapping| {
        let (id, offset) = modules.find(mapping.addresses.start)?;
        let module = modules.get(id);
        let address = is_library(module).then(|| module.address_of(offset))??;
        Some((module, mapping.addresses.start.wrapping_sub(address)))
    });
    let first = libraries.next()?;
    // OpenJ9 has a libjvm.so, too, which only leads to the JVM.
    Some([first].into_iter().chain(libraries).find(|(module, _)| describes_itself(module)).unwrap_or(first))
}

/// Whether a file has the name of the library that HotSpot is in.
#[must_use]
pub fn has_name(module: &Module) -> bool {
    module.path.file_name().is_some_and(|name| name == LIBRARY)
}
