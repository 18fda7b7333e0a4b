//! The symbol tables of a file, read symbol by symbol: names are not kept in memory.

use crate::file_content::{Content, Window};
use object::{
    LittleEndian,
    elf::{self, FileHeader64, Sym64},
    read::elf::{ElfFile, SectionHeader, Sym, SymbolTable},
};
use std::ops::Range;

/// Maximum length of the version that `.symtab` appends to a name, and of the NUL.
const MAX_VERSION_BYTES: usize = 64;

pub(super) type Elf<'data> = ElfFile<'data, FileHeader64<LittleEndian>, Content<'data>>;
type Symbols<'data> = SymbolTable<'data, FileHeader64<LittleEndian>, Content<'data>>;

/// A symbol table and the file range of its names.
pub(super) struct Table<'a, 'data> {
    pub(super) symbols: &'a Symbols<'data>,
    pub(super) content: Content<'data>,
    names: Range<u64>,
}

impl<'a, 'data> Table<'a, 'data> {
    /// A symbol table of a file.
    pub(super) fn of(file: &Elf<'data>, symbols: &'a Symbols<'data>) -> Self {
        let names = file.elf_section_table().section(symbols.string_section()).ok();
        let names = names.and_then(|section| section.file_range(LittleEndian));
        let names = names.map_or(0..0, |(offset, bytes)| offset..offset.saturating_add(bytes));
        Self { symbols, content: file.data(), names }
    }

    /// Passes the defined symbols with names of up to `longest` bytes to `visit`; of the local ones, only functions.
    pub(super) fn visit(&self, longest: usize, mut visit: impl FnMut(&str, &Sym64<LittleEndian>)) {
        let symbols = self.symbols.iter().filter(|symbol| {
            let counts = !symbol.is_local() || symbol.st_type() == elf::STT_FUNC;
            counts && !symbol.is_undefined(LittleEndian)
        });
        let mut window = Window::new(self.content);
        for symbol in symbols {
            // An unreadable name is not the name of an allocator function.
            let Some(name) = self.name(&mut window, symbol, longest) else { continue };
            if let Ok(name) = str::from_utf8(without_version(name)) {
                visit(name, symbol);
            }
        }
    }

    /// Name of a symbol; `None` if it is longer than `longest`, apart from its version.
    pub(super) fn name<'w>(
        &self,
        window: &'w mut Window<'data>,
        symbol: &Sym64<LittleEndian>,
        longest: usize,
    ) -> Option<&'w [u8]> {
        let start = self.names.start.checked_add(symbol.st_name.get(LittleEndian).into())?;
        window.string(start..self.names.end, longest + MAX_VERSION_BYTES)
    }
}

/// Strips the version that `.symtab` appends to a name: `cfree@GLIBC_2.2.5`.
fn without_version(name: &[u8]) -> &[u8] {
    name.split(|&byte| byte == b'@').next().unwrap_or(name)
}
