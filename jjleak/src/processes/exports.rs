//! Exported symbols of a mapped file.

use std::fs::File;

use object::elf::{FileHeader64, SHN_UNDEF, SHT_DYNSYM, STT_OBJECT, Sym64};
use object::read::elf::{FileHeader, Sym};
use object::{Endianness, ReadCache};

/// Bytes of a pointer.
const POINTER_BYTES: u64 = 8;

/// Returns true if a 64-bit ELF file exports a variable of this name that has the size of a pointer. The sizes are compared
/// first: few variables have that size, so that few names are read.
pub(super) fn exports_word(file: &File, name: &str) -> bool {
    let content = ReadCache::new(file);
    let search = || {
        let header = FileHeader64::<Endianness>::parse(&content).ok()?;
        let endian = header.endian().ok()?;
        let symbols = header.sections(endian, &content).ok()?.symbols(endian, &content, SHT_DYNSYM).ok()?;
        let is_word = |symbol: &&Sym64<Endianness>| {
            symbol.st_type() == STT_OBJECT
                && symbol.st_size(endian) == POINTER_BYTES
                && symbol.st_shndx(endian) != SHN_UNDEF
        };
        let mut words = symbols.iter().filter(is_word);
        Some(words.any(|symbol| symbol.name(endian, symbols.strings()) == Ok(name.as_bytes())))
    };
    search().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

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
        let found =
            ["word", "hidden", "byte", "elsewhere", "function", ""].map(|name| exports_word(&library, name));
        assert_eq!(found, [true, false, false, false, false, false]);
        assert!(!exports_word(&File::open(Path::new("/proc/self/status")).unwrap(), "word"));
    }
}
