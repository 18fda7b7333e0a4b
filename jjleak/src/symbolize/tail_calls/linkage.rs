//! What the dynamic loader binds: names behind words of a file, and functions that a file exports.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use object::{Object, ObjectSymbol, ReadRef, RelocationTarget, SymbolKind};

/// Most symbols that are kept of a file, of each kind. Large libraries have some hundred thousand.
const MAX_SYMBOLS: usize = 1 << 20;

/// Names of dynamic symbols of a file.
#[derive(Debug, Default)]
pub(super) struct Linkage {
    /// Names of functions, by the words that the loader writes their addresses to.
    imports: HashMap<u64, String>,
    /// Exported functions by their addresses.
    exports: BTreeMap<u64, Vec<(Range<u64>, String)>>,
}

impl Linkage {
    pub(super) fn read<'data>(content: impl ReadRef<'data>) -> Option<Self> {
        let elf = object::File::parse(content).ok()?;
        let mut this = Self::default();
        for symbol in elf.dynamic_symbols().take(MAX_SYMBOLS) {
            if symbol.kind() == SymbolKind::Text
                && symbol.is_definition()
                && let Ok(name) = symbol.name()
            {
                let code = symbol.address()..symbol.address().saturating_add(symbol.size());
                this.exports.entry(code.start).or_default().push((code, name.to_owned()));
            }
        }
        let symbols = elf.dynamic_symbol_table();
        for (word, relocation) in elf.dynamic_relocations().into_iter().flatten().take(MAX_SYMBOLS) {
            if let (RelocationTarget::Symbol(index), Some(symbols)) = (relocation.target(), &symbols)
                && let Some(name) = object::ObjectSymbolTable::symbol_by_index(symbols, index)
                    .ok()
                    .and_then(|symbol| symbol.name().ok())
            {
                this.imports.insert(word, name.to_owned());
            }
        }
        Some(this)
    }

    /// The function whose address the loader writes to a word.
    pub(super) fn import(&self, word: u64) -> Option<&str> {
        self.imports.get(&word).map(String::as_str)
    }

    /// The names under which the function around an address is exported.
    pub(super) fn exported(&self, address: u64) -> Vec<String> {
        let Some((_, nearest)) = self.exports.range(..=address).next_back() else { return Vec::new() };
        nearest.iter().filter(|(code, _)| code.contains(&address)).map(|(_, name)| name.clone()).collect()
    }
}
