//! The code of jjleak's sampler in a program that links it, or that it is preloaded into.

use super::Frame;

/// Beginnings of its functions: of the crate, and of the library that is preloaded.
const FUNCTIONS: [&str; 3] = ["jjleak_sampler::", "<jjleak_sampler::", "jjleak_preload::"];

/// Parts of the paths of the crate's files. The second is of a registry.
const SOURCES: [&str; 2] = ["jjleak-sampler/src/", "/jjleak-sampler-"];

impl Frame {
    /// Returns true for functions of jjleak's sampler. Inlined ones have no module in their name: their files tell.
    #[must_use]
    pub fn is_of_sampler(&self) -> bool {
        FUNCTIONS.iter().any(|beginning| self.symbol.starts_with(beginning))
            || SOURCES.iter().any(|part| self.file.contains(part))
    }
}
