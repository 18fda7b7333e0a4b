//! A small x86-64 ELF file for tests: one executable segment and a dynamic symbol table.

/// File offset of the code.
pub(super) const CODE_OFFSET: u64 = 120;
/// Address of the loaded code.
pub(super) const CODE_ADDRESS: u64 = 0x1000;

/// ELF's `STT_FUNC`.
pub(super) const FUNC: u8 = 2;
/// ELF's `STT_GNU_IFUNC`.
pub(super) const IFUNC: u8 = 10;

const GLOBAL: u8 = 1 << 4;
const SECTION_HEADER_BYTES: u16 = 64;
const SYMBOL_BYTES: u64 = 24;

/// A symbol defined in the code.
pub(super) struct Symbol {
    pub(super) name: &'static str,
    /// Distance of its address from [`CODE_ADDRESS`].
    pub(super) at: u64,
    pub(super) size: u64,
    pub(super) kind: u8,
    pub(super) is_local: bool,
}

/// A function of known size.
pub(super) const fn function(name: &'static str, at: u64, size: u64) -> Symbol {
    Symbol { name, at, size, kind: FUNC, is_local: false }
}

/// Builds the file.
pub(super) fn elf(code: &[u8], symbols: &[Symbol]) -> Vec<u8> {
    let mut strings = vec![0];
    let mut table = vec![0; 24];
    for symbol in symbols {
        table.extend(u32::try_from(strings.len()).unwrap().to_le_bytes());
        let binding = if symbol.is_local { 0 } else { GLOBAL };
        table.extend([binding | symbol.kind, 0, 1, 0]);
        table.extend((CODE_ADDRESS + symbol.at).to_le_bytes());
        table.extend(symbol.size.to_le_bytes());
        strings.extend(symbol.name.bytes().chain([0]));
    }
    let [code_len, strings_len, table_len] = [code.len(), strings.len(), table.len()].map(|len| len as u64);
    let strings_at = CODE_OFFSET + code_len;
    let table_at = strings_at + strings_len;

    let mut file = Vec::new();
    file.extend(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    halves(&mut file, &[3, 62, 1, 0]); // ET_DYN, EM_X86_64, version
    words(&mut file, &[0, 64, table_at + table_len]); // entry, program headers, section headers
    halves(&mut file, &[0, 0, 64, 56, 1, SECTION_HEADER_BYTES, 3, 1]); // sizes and counts; names in section 1
    halves(&mut file, &[1, 0, 5, 0]); // PT_LOAD, readable and executable
    words(&mut file, &[CODE_OFFSET, CODE_ADDRESS, CODE_ADDRESS, code_len, code_len, 1]);
    file.extend(code);
    file.extend(&strings);
    file.extend(&table);
    section(&mut file, [0, 0], [0, 0], 0);
    section(&mut file, [3, 0], [strings_at, strings_len], 0); // SHT_STRTAB
    section(&mut file, [11, 1], [table_at, table_len], SYMBOL_BYTES); // SHT_DYNSYM, its strings in section 1
    file
}

fn section(file: &mut Vec<u8>, [kind, link]: [u16; 2], [offset, size]: [u64; 2], entry_size: u64) {
    halves(file, &[0, 0, kind, 0]);
    words(file, &[0, 0, offset, size]);
    halves(file, &[link, 0, 1, 0]);
    words(file, &[1, entry_size]);
}

fn halves(file: &mut Vec<u8>, values: &[u16]) {
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn words(file: &mut Vec<u8>, values: &[u64]) {
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}
