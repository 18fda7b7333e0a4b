//! Dynamic linkage: imported symbols by relocated word, and exported functions.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use object::{Object, ObjectSymbol, ReadRef, RelocationTarget, SymbolKind};

/// Maximum number of symbols per file, of each kind. Large libraries have some hundred thousand.
const MAX_SYMBOLS: usize = 1 << 20;

/// Dynamic symbols of a file.
#[derive(Debug, Default)]
pub(super) struct Linkage {
    /// Function names by the word to which the loader writes their address.
    imports: HashMap<u64, String>,
    /// Exported functions by address.
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

    /// The exported names of the function at an address.
    pub(super) fn exported(&self, address: u64) -> Vec<String> {
        let Some((_, nearest)) = self.exports.range(..=address).next_back() else { return Vec::new() };
        nearest.iter().filter(|(code, _)| code.contains(&address)).map(|(_, name)| name.clone()).collect()
    }
}
