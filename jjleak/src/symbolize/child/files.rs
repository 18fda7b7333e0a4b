//! Symbols and functions of files, by blazesym and gimli.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolizer};

use super::debug_info::DebugInfo;
use super::protocol::{FileNumber, Named, Place, Reply, Request, Symbol};
use crate::own_memory;
use crate::symbolize::demangle::demangled;
use crate::symbolize::tail_calls::Function;

/// Function in which fibres of glibc (makecontext(3)) begin.
const FIBRE_ROOT: &str = "__start_context";
/// Maximum length of a name before it is demangled, and of a file's. Names of C++ templates have some thousands of bytes.
const MAX_NAME_BYTES: usize = 32 << 10;
/// Maximum number of functions inlined into each other at one place; beyond, the outermost are left out.
const MAX_INLINED: usize = 64;
/// Number of places that are looked up in a file together.
const FOUND_AT_ONCE: usize = 64;
/// Number of bytes of text from which a reply has no more symbols.
const ENOUGH_BYTES: usize = 256 << 10;

/// Open files.
pub(super) struct Files {
    /// Folder in which each descriptor has a path.
    folder: &'static str,
    open: HashMap<FileNumber, OpenFile>,
}

/// A file with its separate files.
pub(super) struct Parts {
    pub(super) file: OwnedFd,
    pub(super) debug_file: Option<OwnedFd>,
    /// The file that `.gnu_debugaltlink` names, with what several debug files have in common.
    pub(super) supplement: Option<OwnedFd>,
    /// False if the symbol tables alone are to be read.
    pub(super) with_debug_info: bool,
}

struct OpenFile {
    parts: Parts,
    symbolizer: Symbolizer,
    debug_info: OnceCell<Option<DebugInfo>>,
}

impl Files {
    /// `folder` has a path for each descriptor.
    pub(super) fn new(folder: &'static str) -> Self {
        Self { folder, open: HashMap::new() }
    }

    pub(super) fn open(&mut self, number: FileNumber, parts: Parts) {
        let symbolizer = self.symbolizer(&parts);
        self.open.insert(number, OpenFile { parts, symbolizer, debug_info: OnceCell::new() });
    }

    /// Drops what is known of all files.
    pub(super) fn forget(&mut self) {
        let numbers: Vec<_> = self.open.keys().copied().collect();
        for number in numbers {
            if let Some(OpenFile { parts, .. }) = self.open.remove(&number) {
                self.open(number, parts);
            }
        }
        own_memory::release();
    }

    fn symbolizer(&self, parts: &Parts) -> Symbolizer {
        // blazesym searches here for the file that several debug files share, and nowhere else.
        let folders = parts.supplement.iter().map(|file| self.path(file));
        Symbolizer::builder()
            // Its demanglers take C names for fragments of mangled names.
            .enable_demangling(false)
            .enable_auto_reload(false)
            .set_debug_dirs(Some(folders.collect::<Vec<_>>()))
            .build()
    }

    pub(super) fn has(&self, number: FileNumber) -> bool {
        self.open.contains_key(&number)
    }

    /// The reply to a request; `None` if it has none.
    pub(super) fn reply(&mut self, request: &Request) -> Option<Reply> {
        match request {
            Request::Open { .. } | Request::Forget => None,
            Request::Symbols(file, places) => Some(Reply::Symbols(self.symbols(*file, places))),
            Request::Function(file, address) => Some(Reply::Function(self.function(*file, *address))),
        }
    }

    /// Symbols of the first places, at least one; fewer than all if they are long.
    fn symbols(&self, number: FileNumber, places: &[Place]) -> Vec<Option<Symbol>> {
        let Some(file) = self.open.get(&number) else { return vec![None; places.len()] };
        let mut symbols = Vec::with_capacity(places.len());
        let mut bytes = 0;
        for places in places.chunks(FOUND_AT_ONCE) {
            for found in self.find_all(file, places) {
                let symbol = found.map(|symbol| functions(&symbol));
                bytes += symbol.as_ref().map_or(0, Symbol::text_bytes);
                symbols.push(symbol);
                if bytes >= ENOUGH_BYTES {
                    return symbols;
                }
            }
        }
        symbols
    }

    /// The function with this entry address.
    fn function(&mut self, number: FileNumber, address: u64) -> Option<Function> {
        let OpenFile { parts, debug_info, .. } = self.open.get_mut(&number)?;
        if !parts.with_debug_info {
            return None;
        }
        let of = |file: &OwnedFd| DebugInfo::open(&File::from(file.try_clone().ok()?));
        debug_info.get_or_init(|| of(&parts.file).or_else(|| of(parts.debug_file.as_ref()?)));
        debug_info.get_mut()?.as_mut()?.at(address).map(|function| Function::clone(&function))
    }

    fn path(&self, file: &OwnedFd) -> PathBuf {
        PathBuf::from(format!("{}/{}", self.folder, file.as_raw_fd()))
    }

    /// The symbol at each place.
    fn find_all<'file>(&self, file: &'file OpenFile, places: &[Place]) -> Vec<Option<Sym<'file>>> {
        let addresses: Vec<_> = places.iter().map(|place| place.address).collect();
        let mut found = self.find(file, &addresses);
        // A fibre's function returns to the first byte of one that has not called it.
        let without =
            (0..).zip(places).zip(&found).filter(|((_, place), found)| place.is_call && found.is_none());
        let next = without.filter_map(|((index, place), _)| Some((index, place.address.checked_add(1)?)));
        let (indices, next): (Vec<usize>, Vec<_>) = next.unzip();
        for ((index, address), symbol) in indices.into_iter().zip(&next).zip(self.find(file, &next)) {
            found[index] = symbol.filter(|symbol| symbol.addr == *address && symbol.name == FIBRE_ROOT);
        }
        found
    }

    /// The symbol at each address, from the debug file or from the file itself. Addresses are used because blazesym resolves offsets
    /// by the program headers, and those of debug files have other offsets.
    fn find<'file>(&self, file: &'file OpenFile, addresses: &[u64]) -> Vec<Option<Sym<'file>>> {
        let OpenFile { parts, symbolizer, .. } = file;
        let mut found: Vec<Option<Sym<'file>>> = vec![None; addresses.len()];
        for file in parts.debug_file.iter().chain([&parts.file]) {
            let missing: Vec<_> = (0..found.len()).filter(|index| found[*index].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            let source = Source::Elf(Elf { debug_syms: parts.with_debug_info, ..Elf::new(self.path(file)) });
            let wanted: Vec<_> = missing.iter().map(|index| addresses[*index]).collect();
            // blazesym looks at the file once for all, and reads a damaged one again for each call.
            let symbols = symbolizer.symbolize(&source, Input::VirtOffset(&wanted)).unwrap_or_default();
            for (index, symbol) in missing.iter().zip(symbols) {
                found[*index] = symbol.into_sym();
            }
            self.qualify(file, symbolizer, &missing, addresses, &mut found);
        }
        found
    }

    /// Replaces names like `insert` by those of the symbol table, like `cache::Sessions::insert`: of Rust programs with line tables
    /// alone, the debug information has only the last part.
    fn qualify<'file>(
        &self,
        file: &OwnedFd,
        symbolizer: &'file Symbolizer,
        indices: &[usize],
        addresses: &[u64],
        found: &mut [Option<Sym<'file>>],
    ) {
        let is_part = |index: &&usize| found[**index].as_ref().is_some_and(is_part_of_rust_name);
        let parts: Vec<_> = indices.iter().copied().filter(|index| is_part(&index)).collect();
        if parts.is_empty() {
            return;
        }
        let source = Source::Elf(Elf { debug_syms: false, ..Elf::new(self.path(file)) });
        let wanted: Vec<_> = parts.iter().map(|index| addresses[*index]).collect();
        let symbols = symbolizer.symbolize(&source, Input::VirtOffset(&wanted)).unwrap_or_default();
        for (index, whole) in parts.into_iter().zip(symbols) {
            if let (Some(part), Some(whole)) = (&mut found[index], whole.into_sym())
                && whole.addr == part.addr
                && is_mangled(&whole.name)
            {
                part.name = whole.name;
            }
        }
    }
}

fn is_part_of_rust_name(symbol: &Sym<'_>) -> bool {
    let is_rust = |code: &CodeInfo<'_>| code.file.as_encoded_bytes().ends_with(b".rs");
    !is_mangled(&symbol.name) && symbol.code_info.as_deref().is_some_and(is_rust)
}

/// Returns true for names of Rust and C++ with all their parts.
fn is_mangled(name: &str) -> bool {
    ["_R", "_ZN"].iter().any(|prefix| name.starts_with(prefix))
}

fn functions(symbol: &Sym<'_>) -> Symbol {
    let named = |name: &str, code: Option<&CodeInfo<'_>>| Named {
        name: demangled(bounded(name)).into_owned(),
        file: code.map(|code| bounded(&code.to_path().to_string_lossy()).to_owned()).unwrap_or_default(),
        line: code.and_then(|code| code.line).unwrap_or_default(),
    };
    // blazesym lists inlined functions from the outermost to the innermost.
    let inlined = symbol.inlined.iter().rev().take(MAX_INLINED);
    let inlined = inlined.map(|function| named(&function.name, function.code_info.as_ref()));
    let function = named(&symbol.name, symbol.code_info.as_deref());
    Symbol { start: symbol.addr, functions: inlined.chain([function]).collect() }
}

/// The beginning of a name that is longer than any honest one.
fn bounded(name: &str) -> &str {
    let mut end = name.len().min(MAX_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let long = format!("x{}", "é".repeat(MAX_NAME_BYTES));
        assert_eq!(bounded(&long).len(), MAX_NAME_BYTES - 1);
        assert_eq!(bounded("short"), "short");
    }
}
