//! Exported symbols of a mapped file.

use object::LittleEndian;
use object::elf::{FileHeader64, SHN_UNDEF, SHT_DYNSYM, STT_OBJECT, Sym64};
use object::read::elf::{FileHeader, SectionHeader, Sym};

use crate::file_content::{Content, Window};

/// Bytes of a pointer.
const POINTER_BYTES: u64 = 8;

/// Address of a variable that a 64-bit ELF file exports under this name and with the size of a pointer. The sizes are compared
/// first: few variables have that size, so that few names are read.
pub(super) fn word(elf: Content<'_>, name: &str) -> Option<u64> {
    let search = || {
        let header = FileHeader64::<LittleEndian>::parse(elf).ok()?;
        let sections = header.sections(LittleEndian, elf).ok()?;
        let symbols = sections.symbols(LittleEndian, elf, SHT_DYNSYM).ok()?;
        let (begin, bytes) = sections.section(symbols.string_section()).ok()?.file_range(LittleEndian)?;
        let mut window = Window::new(elf);
        let mut has_name = |symbol: &Sym64<LittleEndian>| {
            let start = begin.saturating_add(symbol.st_name(LittleEndian).into());
            window.string(start..begin.saturating_add(bytes), name.len() + 1) == Some(name.as_bytes())
        };
        let is_word = |symbol: &&Sym64<LittleEndian>| {
            symbol.st_type() == STT_OBJECT
                && symbol.st_size(LittleEndian) == POINTER_BYTES
                && symbol.st_shndx(LittleEndian) != SHN_UNDEF
        };
        let found = symbols.iter().filter(is_word).find(|symbol| !name.is_empty() && has_name(symbol));
        Some(found?.st_value(LittleEndian))
    };
    search()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use super::*;
    use crate::file_content::LazyFile;

    #[test]
    fn a_word_is_found_if_it_is_exported_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let source = "void *word = 0; static void *hidden = 0; char byte = 0; extern void *elsewhere;\n\
             void *function(void) { return &hidden != elsewhere ? word : 0; }\n";
        std::fs::write(folder.path().join("words.c"), source).unwrap();
        let mut compiler = Command::new("cc");
        compiler.current_dir(folder.path()).args(["-shared", "-fPIC", "-o", "words.so", "words.c"]);
        assert!(compiler.status().unwrap().success());
        let library = File::open(folder.path().join("words.so")).unwrap();
        let library = LazyFile::new(&library).unwrap();
        let found = ["word", "hidden", "byte", "elsewhere", "function", ""]
            .map(|name| word(Content::from(&library), name).is_some());
        assert_eq!(found, [true, false, false, false, false, false]);
        assert_eq!(word(Content::Memory(b"no ELF file"), "word"), None);
    }
}
