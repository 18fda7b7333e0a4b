//! `.gopclntab`: the header, the functions, and tables of values by address (src/runtime/symtab.go and
//! src/cmd/link/internal/ld/pcln.go in Go).

use std::{iter, ops::Range};

use super::{WORD, image::Image};

/// Go 1.18 and 1.19.
const MAGIC_1_18: u32 = 0xffff_fff0;
/// Go 1.20 and later; entries of functions also contain the function's first line.
const MAGIC_1_20: u32 = 0xffff_fff1;

/// Bytes after the magic: padding, the size of the smallest instruction, and the size of an address.
const SIZES: [u8; 4] = [0, 0, 1, 8];

/// Returns true if a table of a known version can begin here.
pub(in crate::unwind) fn is_table(bytes: &[u8]) -> bool {
    u32_at(bytes, 0).is_some_and(|magic| [MAGIC_1_18, MAGIC_1_20].contains(&magic))
        && bytes.get(4..8).is_some_and(|sizes| sizes == SIZES)
}

/// Offsets in the header (`runtime.pcHeader`): words after eight bytes of magic and sizes.
mod header {
    pub(super) const FUNCTIONS: usize = 8;
    pub(super) const NAMES: usize = 32;
    pub(super) const VALUES: usize = 56;
    pub(super) const LINES: usize = 64;
    pub(super) const BYTES: usize = 72;
}

/// Word indexes in `runtime.moduledata`: fields that must agree with the header, and the start of the code.
mod module {
    pub(super) const NAMES: u64 = 1;
    pub(super) const VALUES: u64 = 10;
    pub(super) const LINES: u64 = 13;
    pub(super) const FUNCTIONS: u64 = 16;
    pub(super) const FIRST: u64 = 20;
    pub(super) const LAST: u64 = 21;
    pub(super) const TEXT: u64 = 22;
}

/// Maximum number of functions of a module; Kubernetes' largest program has 120,000.
const MAX_FUNCTIONS: u64 = 1 << 22;
/// Maximum length of a function name.
const MAX_NAME_BYTES: usize = 4096;

/// Offsets in `runtime._func`, up to its flags.
mod function {
    pub(super) const NAME: usize = 4;
    pub(super) const DEPTHS: usize = 16;
    /// Follows the function's number, which differs between versions; four bytes further from Go 1.20 on.
    pub(super) const FLAGS: usize = 37;
    pub(super) const LINE_BYTES: usize = 4;
}

/// `FuncFlagTopFrame` and `FuncFlagSPWrite` (src/internal/abi/symtab.go).
const TOP_FRAME: u8 = 1;
const WRITES_STACK_POINTER: u8 = 2;

/// A Go function.
pub(super) struct Function<'data> {
    pub(super) addresses: Range<u64>,
    pub(super) name: &'data [u8],
    depths: u32,
    flags: u8,
}

impl Function<'_> {
    pub(super) fn is_top_frame(&self) -> bool {
        self.flags & TOP_FRAME != 0
    }

    /// Returns true if it sets the stack pointer to a value that its table cannot describe.
    pub(super) fn writes_stack_pointer(&self) -> bool {
        self.flags & WRITES_STACK_POINTER != 0
    }
}

/// The table, with the address of its code.
pub(super) struct Table<'data> {
    bytes: &'data [u8],
    address: u64,
    text: u64,
    functions: usize,
    names: &'data [u8],
    values: &'data [u8],
    lines: &'data [u8],
    flags_at: usize,
}

impl<'data> Table<'data> {
    /// Parses the table at `address`, with its code's address still unknown.
    pub(super) fn parse(bytes: &'data [u8], address: u64) -> Option<Self> {
        let flags_at = match u32_at(bytes, 0)? {
            MAGIC_1_18 => function::FLAGS,
            MAGIC_1_20 => function::FLAGS + function::LINE_BYTES,
            _ => return None,
        };
        if bytes.get(4..8)? != SIZES || bytes.len() < header::BYTES {
            return None;
        }
        let functions = u64_at(bytes, header::FUNCTIONS).filter(|functions| *functions <= MAX_FUNCTIONS)?;
        let part = |at| bytes.get(usize::try_from(u64_at(bytes, at)?).ok()?..);
        let (names, values, lines) = (part(header::NAMES)?, part(header::VALUES)?, part(header::LINES)?);
        let functions = usize::try_from(functions).ok()?;
        Some(Self { bytes, address, text: 0, functions, names, values, lines, flags_at })
    }

    /// The table, with the code's address from `runtime.firstmoduledata`.
    pub(super) fn placed_by(self, image: &Image<'_>) -> Option<Self> {
        let text =
            image.places_of(self.address).into_iter().find_map(|module| self.text_of(image, module))?;
        Some(Self { text, ..self })
    }

    /// Start of the code, if the data at this address describes the module of this table.
    fn text_of(&self, image: &Image<'_>, module: u64) -> Option<u64> {
        let word = |index: u64| image.word(module.checked_add(index * WORD)?);
        let part = |at| u64_at(self.bytes, at).and_then(|offset| self.address.checked_add(offset));
        let text = word(module::TEXT)?;
        let is_of_this = word(module::NAMES)? == part(header::NAMES)?
            && word(module::VALUES)? == part(header::VALUES)?
            && word(module::LINES)? == part(header::LINES)?
            && word(module::FUNCTIONS)? == part(header::LINES)?
            && word(module::FIRST)? == text.checked_add(self.start_of(0)?)?
            && word(module::LAST)? == text.checked_add(self.start_of(self.functions)?)?;
        is_of_this.then_some(text)
    }

    pub(super) fn text(&self) -> u64 {
        self.text
    }

    pub(super) fn bytes(&self) -> &'data [u8] {
        self.bytes
    }

    /// The functions, by address, up to the first that breaks the order, and as long as their names have fewer bytes than the
    /// table: in a damaged one, all functions can share a long name.
    pub(super) fn functions(&self) -> impl Iterator<Item = Function<'data>> {
        let mut room = self.bytes.len();
        (0..self.functions).map_while(move |index| {
            let function = self.function(index)?;
            room = room.checked_sub(function.name.len())?;
            Some(function)
        })
    }

    fn function(&self, index: usize) -> Option<Function<'data>> {
        let (start, end) = (self.start_of(index)?, self.start_of(index + 1)?);
        let at = usize::try_from(u32_at(self.lines, index * 8 + 4)?).ok()?;
        let described = self.lines.get(at..)?;
        let name = self.names.get(usize::try_from(u32_at(described, function::NAME)?).ok()?..)?;
        let name = &name[..name.len().min(MAX_NAME_BYTES)];
        let name = &name[..name.iter().position(|byte| *byte == 0)?];
        let addresses = self.text.checked_add(start)?..self.text.checked_add(end)?;
        let is_as_listed = u64::from(u32_at(described, 0)?) == start && start <= end;
        is_as_listed.then_some(Function {
            addresses,
            name,
            depths: u32_at(described, function::DEPTHS)?,
            flags: *described.get(self.flags_at)?,
        })
    }

    /// Start of a function, relative to the code; for an index equal to the number of functions, the end of the last one.
    fn start_of(&self, index: usize) -> Option<u64> {
        u32_at(self.lines, index * 8).map(u64::from)
    }

    /// Distances in bytes from the stack pointer up to the return address, each with the first address at which it applies. Empty
    /// for a function without such a table.
    pub(super) fn depths(&self, function: &Function<'_>) -> impl Iterator<Item = (u64, i64)> {
        let (values, Range { start, end }) = (self.values, function.addresses.clone());
        let (mut at, mut depth) = (function.depths as usize, -1_i64);
        let mut next = Some(start).filter(|_| at != 0);
        iter::from_fn(move || {
            let address = next.take().filter(|address| *address < end)?;
            let change = varint(values, &mut at)?;
            if change == 0 && address != start {
                return None;
            }
            // The lowest bit is the sign.
            depth += i64::from(change >> 1) ^ -i64::from(change & 1);
            let bytes = varint(values, &mut at).filter(|bytes| *bytes > 0);
            next = bytes.map(|bytes| address + u64::from(bytes));
            Some((address, depth))
        })
    }
}

/// Decodes a number with seven bits per byte, lowest first.
fn varint(bytes: &[u8], at: &mut usize) -> Option<u32> {
    let mut value = 0;
    for shift in (0..u32::BITS).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a function's description in these tests.
    const DESCRIPTION: usize = 48;

    /// The list of functions of one byte each, all with the name at the beginning of the names, and their descriptions.
    fn lines(functions: usize) -> Vec<u8> {
        let list = (functions + 1) * 8;
        let mut lines = vec![0; list + functions * DESCRIPTION];
        for index in 0..functions {
            let (start, at) = (u32::try_from(index).unwrap().to_le_bytes(), list + index * DESCRIPTION);
            lines[index * 8..][..4].copy_from_slice(&start);
            lines[index * 8 + 4..][..4].copy_from_slice(&u32::try_from(at).unwrap().to_le_bytes());
            lines[at..][..4].copy_from_slice(&start);
        }
        lines[functions * 8..][..4].copy_from_slice(&u32::try_from(functions).unwrap().to_le_bytes());
        lines
    }

    fn table(functions: usize, [names, values, lines]: [&[u8]; 3]) -> Table<'_> {
        let flags_at = function::FLAGS;
        Table { bytes: lines, address: 0, text: 0, functions, names, values, lines, flags_at }
    }

    #[test]
    fn names_have_no_more_bytes_than_the_table() {
        let lines = lines(1000);
        let shared = [&[b'x'; MAX_NAME_BYTES - 1][..], &[0]].concat();
        assert_eq!(table(1000, [b"f\0", &[], &lines]).functions().count(), 1000);
        let count = table(1000, [&shared, &[], &lines]).functions().count();
        assert_eq!(count, lines.len() / (MAX_NAME_BYTES - 1));
    }

    #[test]
    fn depths_end_with_their_table_and_with_their_function() {
        // 8 deeper for four bytes of code, 8 less for two, and 16 deeper.
        let values = [0, 18, 4, 15, 2, 32, 100, 0];
        let depths = |addresses: Range<u64>, depths| {
            let function = Function { addresses, name: b"f", depths, flags: 0 };
            table(0, [&[], &values, &[]]).depths(&function).collect::<Vec<_>>()
        };
        assert_eq!(depths(0x10..0x80, 1), [(0x10, 8), (0x14, 0), (0x16, 16)]);
        assert_eq!(depths(0x10..0x16, 1), [(0x10, 8), (0x14, 0)]);
        assert_eq!(depths(0x10..0x80, 0), []);
        assert_eq!(depths(0x10..0x80, 100), []);
    }
}
