//! Synthetic memory with a small JVM.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::super::{Jvm, Memory};

/// Memory of words from address 0 on.
pub(crate) struct Words(pub(crate) Vec<u64>);

impl Memory for Words {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let bytes = self.0.iter().flat_map(|word| word.to_le_bytes());
        let rest = bytes.skip(usize::try_from(address).unwrap_or(usize::MAX));
        into.iter_mut().zip(rest).map(|(into, byte)| *into = byte).count()
    }
}

/// Memory of bytes from address 0 on.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(super) bytes: Vec<u8>,
    /// Addresses in use.
    pub(super) written: BTreeSet<u64>,
    next_text: u64,
    pub(super) symbols: BTreeMap<String, u64>,
}

impl Memory for Image {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let rest = usize::try_from(address).ok().and_then(|at| self.bytes.get(at..)).unwrap_or_default();
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        length
    }
}

/// An image that changes meanwhile.
#[derive(Debug)]
pub(super) struct Changing(pub(super) RefCell<Image>);

impl Memory for Changing {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        self.0.borrow().read(address, into)
    }
}

/// Addresses in the synthetic memory.
const SYMBOLS: u64 = 0x1000;
const TEXTS: u64 = 0x8000;
const TABLES: u64 = 0x2_0000;
pub(super) const HEAPS: u64 = 0x4_0000;
const VERSION: u64 = 0x4_8000;
pub(super) const SEGMENT_MAP: u64 = 0x5_0000;
pub(crate) const HEAP: u64 = 0x10_0000;
pub(super) const HEAP_BYTES: u64 = 0x1_0000;
pub(super) const METHODS: u64 = 0x30_0000;
const END: u64 = 0x30_2000;
pub(crate) const STEP: u64 = 0x1000;
pub(super) const BLOB_HEADER: u64 = 0x80;
pub(super) const CODE_BYTES: u64 = 0x100;
/// Segments of 128 bytes.
const SEGMENT_LOG2: u64 = 7;

impl Image {
    fn new() -> Self {
        let bytes = vec![0; usize::try_from(END).unwrap()];
        Self { bytes, written: BTreeSet::new(), next_text: TEXTS, symbols: BTreeMap::new() }
    }

    pub(super) fn put(&mut self, address: u64, bytes: &[u8]) {
        let at = usize::try_from(address).unwrap();
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.written.insert(address);
    }

    pub(super) fn word(&mut self, address: u64, word: u64) {
        self.put(address, &word.to_le_bytes());
    }

    pub(crate) fn int(&mut self, address: u64, number: u32) {
        self.put(address, &number.to_le_bytes());
    }

    pub(super) fn half(&mut self, address: u64, number: u16) {
        self.put(address, &number.to_le_bytes());
    }

    pub(super) fn intern(&mut self, text: &str) -> u64 {
        let at = self.next_text;
        self.put(at, text.as_bytes());
        self.next_text += text.len() as u64 + 1;
        at
    }

    pub(super) fn symbol(&mut self, name: &str, value: u64) {
        let address = SYMBOLS + 8 * self.symbols.len() as u64;
        self.word(address, value);
        self.symbols.insert(name.to_owned(), address);
    }

    /// Writes the tables that describe the structures.
    pub(super) fn describe(
        &mut self,
        fields: &[(&str, &str, &str, u64)],
        statics: &[(&str, &str, u64)],
        sizes: &[(&str, u64)],
    ) {
        for (name, value) in [
            ("gHotSpotVMTypes", TABLES + 0x1_0000),
            ("gHotSpotVMTypeEntryArrayStride", 16),
            ("gHotSpotVMTypeEntryTypeNameOffset", 0),
            ("gHotSpotVMTypeEntrySizeOffset", 8),
            ("gHotSpotVMStructs", TABLES),
            ("gHotSpotVMStructEntryArrayStride", 48),
            ("gHotSpotVMStructEntryTypeNameOffset", 0),
            ("gHotSpotVMStructEntryFieldNameOffset", 8),
            ("gHotSpotVMStructEntryTypeStringOffset", 16),
            ("gHotSpotVMStructEntryIsStaticOffset", 24),
            ("gHotSpotVMStructEntryOffsetOffset", 32),
            ("gHotSpotVMStructEntryAddressOffset", 40),
        ] {
            self.symbol(name, value);
        }
        let mut at = TABLES + 0x1_0000;
        for (name, size) in sizes {
            let name = self.intern(name);
            self.word(at, name);
            self.word(at + 8, *size);
            at += 16;
        }
        at = TABLES;
        let fields = fields.iter().map(|(of, name, kind, offset)| (*of, *name, *kind, 0, *offset));
        let statics = statics.iter().map(|(of, name, address)| (*of, *name, "void*", 1, *address));
        for (of, name, kind, is_static, place) in fields.chain(statics) {
            for (offset, text) in [(0, of), (8, name), (16, kind)] {
                let text = self.intern(text);
                self.word(at + offset, text);
            }
            self.word(at + 24, is_static);
            self.word(at + 32 + 8 * is_static, place);
            at += 48;
        }
    }

    /// Writes a block with a blob, and returns the address of its code.
    pub(super) fn blob(&mut self, block: u64, name: &str, frame_words: u32, method: u64) -> u64 {
        let at = block + 16;
        self.word(block, STEP >> SEGMENT_LOG2);
        // From its last third, back to the start in two steps.
        for segment in 0..STEP >> SEGMENT_LOG2 {
            let back = if segment < 20 { segment } else { segment - 10 };
            self.put(
                SEGMENT_MAP + ((block - HEAP) >> SEGMENT_LOG2) + segment,
                &[u8::try_from(back).unwrap()],
            );
        }
        self.put(block + 8, &[1]);
        let name = self.intern(name);
        self.word(at, name);
        self.int(at + 8, u32::try_from(STEP - 16).unwrap());
        self.int(at + 12, frame_words);
        self.word(at + 16, at + BLOB_HEADER);
        self.word(at + 24, at + BLOB_HEADER + CODE_BYTES);
        self.word(at + 32, method);
        self.int(at + 40, 77);
        at + BLOB_HEADER
    }

    /// Writes a method of class `a/B` with 16 bytes of bytecode: line 10 from 0 on, line 12 from 8 on.
    pub(super) fn method(&mut self, index: u64, name: &str) -> u64 {
        let method = METHODS + index * STEP;
        let (fixed, pool, class, symbols) = (method + 0x100, method + 0x200, method + 0x300, method + 0x400);
        self.word(method, fixed);
        self.word(fixed, pool);
        self.half(fixed + 8, 1);
        self.int(fixed + 12, 10);
        self.half(fixed + 16, 16);
        self.half(fixed + 18, 1);
        // Bytecode at 32; the table of lines: 0 is line 10, 8 is line 12.
        self.put(fixed + 48, &[0xff, 0, 20, 8 << 3 | 2, 0]);
        self.int(pool, 3);
        self.word(pool + 8, class);
        self.half(pool + 16, 2);
        self.word(class, symbols);
        for (index, text) in [(0, "a/B"), (1, name), (2, "B.java")] {
            let symbol = symbols + 0x80 * index;
            self.half(symbol, u16::try_from(text.len()).unwrap());
            self.put(symbol + 2, text.as_bytes());
            self.word(pool + 24 + 8 * index, symbol);
        }
        method
    }
}

impl Image {
    /// Replaces the class of [`Self::method`] by `c/D`, with one method. The size of its pool does not
    /// change.
    pub(super) fn reload(&mut self, index: u64, name: &str) {
        let method = METHODS + index * STEP;
        let (class, symbols) = (method + 0x300, method + 0x400);
        self.method(index, name);
        self.half(symbols + 0x180, 3);
        self.put(symbols + 0x182, b"c/D");
        self.word(class, symbols + 0x180);
    }
}

pub(super) const FIELDS: &[(&str, &str, &str, u64)] = &[
    ("GrowableArrayBase", "_len", "int", 0),
    ("GrowableArray<int>", "_data", "int*", 8),
    ("CodeHeap", "_memory", "VirtualSpace", 0),
    ("CodeHeap", "_segmap", "VirtualSpace", 16),
    ("CodeHeap", "_log2_segment_size", "int", 32),
    ("VirtualSpace", "_low", "char*", 0),
    ("VirtualSpace", "_high_boundary", "char*", 8),
    ("HeapBlock", "_header", "HeapBlock::Header", 0),
    ("HeapBlock::Header", "_length", "size_t", 0),
    ("HeapBlock::Header", "_used", "bool", 8),
    ("CodeBlob", "_name", "const char*", 0),
    ("CodeBlob", "_size", "int", 8),
    ("CodeBlob", "_frame_size", "int", 12),
    ("CodeBlob", "_code_begin", "address", 16),
    ("CodeBlob", "_code_end", "address", 24),
    ("nmethod", "_method", "Method*", 32),
    ("nmethod", "_compile_id", "int", 40),
    ("CompiledMethod", "_scopes_data_begin", "address", 48),
    ("nmethod", "_metadata_offset", "int", 56),
    ("nmethod", "_scopes_pcs_offset", "int", 60),
    ("nmethod", "_dependencies_offset", "int", 64),
    ("PcDesc", "_pc_offset", "int", 0),
    ("PcDesc", "_scope_decode_offset", "int", 4),
    ("Method", "_constMethod", "ConstMethod*", 0),
    ("ConstMethod", "_constants", "ConstantPool*", 0),
    ("ConstMethod", "_flags", "u2", 8),
    ("ConstMethod", "_constMethod_size", "int", 12),
    ("ConstMethod", "_code_size", "u2", 16),
    ("ConstMethod", "_name_index", "u2", 18),
    ("ConstantPool", "_length", "int", 0),
    ("ConstantPool", "_pool_holder", "InstanceKlass*", 8),
    ("ConstantPool", "_source_file_name_index", "u2", 16),
    ("Klass", "_name", "Symbol*", 0),
    ("Symbol", "_length", "u2", 0),
    ("Symbol", "_body", "", 2),
];
const SIZES: &[(&str, u64)] = &[
    ("int", 4),
    ("u2", 2),
    ("size_t", 8),
    ("address", 8),
    ("HeapBlock", 16),
    ("PcDesc", 8),
    ("ConstMethod", 32),
    ("ConstantPool", 24),
    ("JVMFlag", 24),
];

/// A JVM with one code heap: the interpreter, a compiled method `outer` with `inner` inlined at pc 0x20, and
/// a stub.
pub(crate) fn image() -> Image {
    image_of(17, FIELDS, &[("CodeCache", "_heaps", HEAPS)])
}

/// The same JVM with this version, these fields and these variables, which include the heaps.
pub(super) fn image_of(
    version: u32,
    fields: &[(&str, &str, &str, u64)],
    statics: &[(&str, &str, u64)],
) -> Image {
    let mut image = Image::new();
    let version_at = ("Abstract_VM_Version", "_vm_major_version", VERSION);
    image.describe(fields, &[statics, &[version_at]].concat(), SIZES);
    image.int(VERSION, version);
    image.word(HEAPS, HEAPS + 0x10);
    image.int(HEAPS + 0x10, 1);
    image.word(HEAPS + 0x18, HEAPS + 0x30);
    image.word(HEAPS + 0x30, HEAPS + 0x40);
    image.word(HEAPS + 0x40, HEAP);
    image.word(HEAPS + 0x48, HEAP + HEAP_BYTES);
    image.word(HEAPS + 0x50, SEGMENT_MAP);
    image.put(SEGMENT_MAP, &[0xff; (HEAP_BYTES >> SEGMENT_LOG2) as usize]);
    image.int(HEAPS + 0x60, u32::try_from(SEGMENT_LOG2).unwrap());
    let outer = image.method(0, "outer");
    let inner = image.method(1, "inner");
    image.blob(HEAP, "Interpreter", 0, 0);
    image.blob(HEAP + STEP, "nmethod", 6, outer);
    image.blob(HEAP + 2 * STEP, "StubRoutines (1)", 0, 0);
    image.blob(HEAP + 3 * STEP, "StubRoutines (continuation stubs)", 0, 0);
    let blob = HEAP + STEP + 16;
    image.word(blob + 48, blob + 0x410);
    image.int(blob + 56, 0x400);
    image.int(blob + 60, 0x440);
    image.int(blob + 64, 0x458);
    image.word(blob + 0x400, outer);
    image.word(blob + 0x408, inner);
    // Scopes: at 1, `outer` at bytecode 3, not inlined; at 5, `inner` at bytecode 9, inlined into the former.
    image.put(blob + 0x410, &[0, 0, 1, 4, 0, 1, 2, 10]);
    for (index, (pc, scope)) in [(u32::MAX, 0), (0x20, 5), (0x40, 1)].into_iter().enumerate() {
        let place = blob + 0x440 + 8 * index as u64;
        image.int(place, pc);
        image.int(place + 4, scope);
    }
    image
}

pub(crate) fn open(image: Image) -> Jvm<Image> {
    let symbols = image.symbols.clone();
    Jvm::described(image, |name| symbols.get(name).copied()).unwrap()
}

pub(crate) const CODE: u64 = HEAP + STEP + 16 + BLOB_HEADER;
