//! Cache of mapped files and of JVMs' symbols: many processes run the same JVM.

use std::rc::Rc;

use crate::file_content::Content;
use crate::jvm::Symbols;
use crate::processes::{Module, ModuleFiles};

/// Maximum number of libraries whose symbols are kept: more versions of JVMs do not run on a host.
const MAX_KEPT: usize = 16;

/// Cache of mapped files.
#[derive(Debug, Default)]
pub struct Libraries {
    pub(super) files: ModuleFiles,
    symbols: Vec<(Rc<Module>, Rc<Symbols>)>,
}

impl Libraries {
    /// The symbols of a JVM's library, or why they cannot be read.
    pub(super) fn symbols(&mut self, library: &Rc<Module>) -> Result<Rc<Symbols>, String> {
        if let Some((_, symbols)) = self.symbols.iter().find(|(known, _)| Rc::ptr_eq(known, library)) {
            return Ok(Rc::clone(symbols));
        }
        let content = library.content().map_err(|error| error.to_string())?;
        let symbols = Rc::new(Symbols::of(Content::from(&content)).map_err(|error| error.to_string())?);
        if self.symbols.len() == MAX_KEPT {
            self.symbols.remove(0);
        }
        self.symbols.push((Rc::clone(library), Rc::clone(&symbols)));
        Ok(symbols)
    }
}
