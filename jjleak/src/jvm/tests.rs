//! A small JVM in made-up memory, as it is and damaged.

mod fuzzed;

use std::collections::{BTreeMap, BTreeSet};

use jjleak_common::jvm::CodeHeap;
use proptest::prelude::*;

use super::{Blob, BlobKind, JavaFrame, Jvm, KnownMethods, Memory};

/// Memory from address 0 on, which ends somewhere.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    bytes: Vec<u8>,
    /// Addresses that mean something.
    written: BTreeSet<u64>,
    next_text: u64,
    symbols: BTreeMap<String, u64>,
}

impl Memory for Image {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let rest = usize::try_from(address).ok().and_then(|at| self.bytes.get(at..)).unwrap_or_default();
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        length
    }
}

/// Where things are in the made-up memory.
const SYMBOLS: u64 = 0x1000;
const TEXTS: u64 = 0x8000;
const TABLES: u64 = 0x2_0000;
const HEAPS: u64 = 0x4_0000;
const VERSION: u64 = 0x4_8000;
const SEGMENT_MAP: u64 = 0x5_0000;
pub(crate) const HEAP: u64 = 0x10_0000;
const HEAP_BYTES: u64 = 0x1_0000;
const METHODS: u64 = 0x30_0000;
const END: u64 = 0x30_2000;
pub(crate) const STEP: u64 = 0x1000;
const BLOB_HEADER: u64 = 0x80;
const CODE_BYTES: u64 = 0x100;
/// Segments of 128 bytes.
const SEGMENT_LOG2: u64 = 7;

impl Image {
    fn new() -> Self {
        let bytes = vec![0; usize::try_from(END).unwrap()];
        Self { bytes, written: BTreeSet::new(), next_text: TEXTS, symbols: BTreeMap::new() }
    }

    fn put(&mut self, address: u64, bytes: &[u8]) {
        let at = usize::try_from(address).unwrap();
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.written.insert(address);
    }

    fn word(&mut self, address: u64, word: u64) {
        self.put(address, &word.to_le_bytes());
    }

    pub(crate) fn int(&mut self, address: u64, number: u32) {
        self.put(address, &number.to_le_bytes());
    }

    fn half(&mut self, address: u64, number: u16) {
        self.put(address, &number.to_le_bytes());
    }

    fn intern(&mut self, text: &str) -> u64 {
        let at = self.next_text;
        self.put(at, text.as_bytes());
        self.next_text += text.len() as u64 + 1;
        at
    }

    fn symbol(&mut self, name: &str, value: u64) {
        let address = SYMBOLS + 8 * self.symbols.len() as u64;
        self.word(address, value);
        self.symbols.insert(name.to_owned(), address);
    }

    /// The tables that describe the structures.
    fn describe(
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

    /// A block of the code heap with a blob: where its code begins.
    fn blob(&mut self, block: u64, name: &str, frame_words: u32, method: u64) -> u64 {
        let at = block + 16;
        self.word(block, STEP >> SEGMENT_LOG2);
        // Back to the start in two steps from its last third.
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

    /// A method of class `a/B`, with bytecode of 16 bytes: from 0 on line 10, from 8 on line 12.
    fn method(&mut self, index: u64, name: &str) -> u64 {
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

const FIELDS: &[(&str, &str, &str, u64)] = &[
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

/// A JVM with one code heap: the interpreter, a compiled method `outer` that has `inner` inlined at pc 0x20, and a stub.
pub(crate) fn image() -> Image {
    image_of(17, FIELDS, &[("CodeCache", "_heaps", HEAPS)])
}

/// The same with this version, these fields, and these variables, of which the heaps are one.
fn image_of(version: u32, fields: &[(&str, &str, &str, u64)], statics: &[(&str, &str, u64)]) -> Image {
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
    // Scopes: at 1, `outer` at bytecode 3, inlined into nothing; at 5, `inner` at bytecode 9, inlined into that.
    image.put(blob + 0x410, &[0, 0, 1, 4, 0, 1, 2, 10]);
    for (index, (pc, scope)) in [(u32::MAX, 0), (0x20, 5), (0x40, 1)].into_iter().enumerate() {
        let place = blob + 0x440 + 8 * index as u64;
        image.int(place, pc);
        image.int(place + 4, scope);
    }
    image
}

/// The same as JDK 8 describes it: one heap, distances instead of addresses, and the JVM's own version.
fn image_of_jdk_8() -> Image {
    const GONE: [&str; 3] = ["GrowableArrayBase", "GrowableArray<int>", "CompiledMethod"];
    let kept = FIELDS.iter().filter(|(of, name, ..)| !GONE.contains(of) && !name.starts_with("_code_"));
    let own = [
        ("CodeBlob", "_code_offset", "int", 16),
        ("CodeBlob", "_data_offset", "int", 20),
        ("nmethod", "_scopes_data_offset", "int", 48),
    ];
    let fields: Vec<_> = kept.copied().chain([("ConstMethod", "_code_size", "u2", 16)]).chain(own).collect();
    let mut image = image_of(25, &fields, &[("CodeCache", "_heap", HEAPS + 0x30)]);
    for step in 0..4 {
        let blob = HEAP + step * STEP + 16;
        image.int(blob + 16, u32::try_from(BLOB_HEADER).unwrap());
        image.int(blob + 20, u32::try_from(BLOB_HEADER + CODE_BYTES).unwrap());
    }
    image.int(HEAP + STEP + 16 + 48, 0x410);
    image
}

#[test]
fn a_jvm_has_no_code_heaps_before_it_has_its_interpreter() {
    const INTERPRETER: u64 = HEAPS + 0x100;
    let statics = [("CodeCache", "_heaps", HEAPS), ("AbstractInterpreter", "_code", INTERPRETER)];
    let mut image = image_of(17, FIELDS, &statics);
    assert!(open(image.clone()).heaps().is_err());
    image.word(INTERPRETER, HEAP);
    assert_eq!(open(image).heaps().unwrap().len(), 1);
}

#[test]
fn what_jdk_8_describes_is_known_and_what_it_does_not_is_said() {
    let jvm = open(image_of_jdk_8());
    assert_eq!((jvm.version(), jvm.lacks()), (8, Some("lines of interpreted methods")));
    let frame = |name: &str, line| (format!("a.B.{name}"), "B.java".to_owned(), line);
    assert_eq!(names(&jvm, CODE + 0x20), [frame("inner", 12), frame("outer", 10)]);
    let heaps = jvm.heaps().unwrap();
    let told = jvm.code_cache(&heaps).unwrap();
    assert_eq!((told.heaps[0].begin, told.is_relative, told.code_begin, told.code_end), (HEAP, 1, 8, 9));
    let bytecode = u16::try_from((METHODS + 0x100 + 32) & 0xffff).unwrap();
    let interpreted = interpreted(&jvm, METHODS, bytecode).unwrap();
    assert_eq!((&*interpreted.name, interpreted.line), ("a.B.outer", 0));
}

pub(crate) fn open(image: Image) -> Jvm<Image> {
    let symbols = image.symbols.clone();
    Jvm::described(image, |name| symbols.get(name).copied()).unwrap()
}

pub(crate) const CODE: u64 = HEAP + STEP + 16 + BLOB_HEADER;

/// The blob with code at a return address.
fn find(jvm: &Jvm<Image>, return_address: u64) -> Option<Blob> {
    jvm.find(&jvm.heaps().unwrap(), return_address)
}

fn names(jvm: &Jvm<Image>, return_address: u64) -> Vec<(String, String, u32)> {
    let blob = find(jvm, return_address).unwrap();
    let frames = jvm.methods(&mut KnownMethods::default()).compiled(&blob, return_address);
    frames.into_iter().map(|frame| (frame.name, frame.file, frame.line)).collect()
}

#[test]
fn code_is_found_with_its_kind_wherever_in_it_an_address_is() {
    let jvm = open(image());
    let kinds = [
        (BlobKind::Interpreter, "Interpreter", 0),
        (BlobKind::Compiled, "nmethod", 77),
        (BlobKind::Stub, "StubRoutines (1)", 0),
        (BlobKind::Continuation, "StubRoutines (continuation stubs)", 0),
    ];
    for (step, expected) in (0..).zip(kinds) {
        let begin = HEAP + step * STEP + 16 + BLOB_HEADER;
        for return_address in [begin + 1, begin + 0x80, begin + CODE_BYTES] {
            let blob = find(&jvm, return_address).unwrap();
            assert_eq!((blob.kind, &*blob.name, blob.compile_id()), expected);
            assert_eq!(blob.code, begin..begin + CODE_BYTES);
        }
        assert_eq!(find(&jvm, begin), None, "no call can be in front of the first instruction");
        assert_eq!(find(&jvm, begin + CODE_BYTES + 1), None);
    }
    assert_eq!(find(&jvm, HEAP + 5 * STEP), None, "no block");
    assert_eq!(find(&jvm, HEAP + HEAP_BYTES), None);
}

#[test]
fn the_kernel_side_is_told_where_to_read() {
    let jvm = open(image());
    let heaps = jvm.heaps().unwrap();
    let told = jvm.code_cache(&heaps).unwrap();
    let (begin, end) = (HEAP, HEAP + HEAP_BYTES);
    let heap = CodeHeap { begin, end, segment_map: SEGMENT_MAP, segment_log2: 7, reserved: 0 };
    assert_eq!((told.heaps[0], told.heaps[1]), (heap, CodeHeap::default()));
    // Words of 4 bytes from the start of the block, which is 16 bytes before the blob.
    assert_eq!((told.used, told.blob, told.name, told.frame_size), (2, 4, 4, 7));
    assert_eq!((told.code_begin, told.code_end, told.is_relative, told.compile_id), (8, 10, 0, 14));
    assert_eq!((told.plain_bytes, told.header_bytes), (48, 60));
}

#[test]
fn a_block_that_is_free_has_no_code() {
    let mut image = image();
    image.put(HEAP + STEP + 8, &[0]);
    assert_eq!(find(&open(image), CODE + 0x20), None);
}

#[test]
fn a_return_address_stands_for_the_inlined_methods_with_their_lines() {
    let jvm = open(image());
    let frame = |name: &str, line| (format!("a.B.{name}"), "B.java".to_owned(), line);
    assert_eq!(names(&jvm, CODE + 0x20), [frame("inner", 12), frame("outer", 10)]);
    assert_eq!(names(&jvm, CODE + 0x40), [frame("outer", 10)]);
    // A call without a description of its own has the next one's; behind the last, the method is known.
    assert_eq!(names(&jvm, CODE + 0x18), [frame("inner", 12), frame("outer", 10)]);
    assert_eq!(names(&jvm, CODE + 0x50), [frame("outer", 0)]);
}

#[test]
fn an_interpreted_method_is_told_by_the_low_bits_of_its_bytecode() {
    let jvm = open(image());
    let bytecode = METHODS + 0x100 + 32;
    let line = |at: u64| interpreted(&jvm, METHODS, u16::try_from(at & 0xffff).unwrap()).unwrap().line;
    assert_eq!([bytecode, bytecode + 7, bytecode + 8, bytecode + 15].map(line), [10, 10, 12, 12]);
    assert_eq!(line(bytecode + 16), 0, "behind the bytecode");
    assert_eq!(interpreted(&jvm, 0x10, 0), None);
}

fn interpreted(jvm: &Jvm<Image>, method: u64, bytecode_low: u16) -> Option<JavaFrame> {
    jvm.methods(&mut KnownMethods::default()).interpreted(method, bytecode_low)
}

#[test]
fn a_method_in_the_place_of_another_one_has_its_own_name() {
    let (mut known, jvm) = (KnownMethods::default(), open(image()));
    let name = |jvm: &Jvm<Image>, known: &mut _| jvm.methods(known).interpreted(METHODS, 0).unwrap().name;
    assert_eq!(name(&jvm, &mut known), "a.B.outer");
    let mut later = image();
    later.method(0, "later");
    later.word(METHODS, METHODS + STEP + 0x100);
    assert_eq!(name(&open(later), &mut known), "a.B.inner");
}

#[test]
fn code_that_has_given_way_to_other_code_has_no_names() {
    let blob = find(&open(image()), CODE + 0x20).unwrap();
    let mut later = image();
    later.int(HEAP + STEP + 16 + 40, 78);
    let later = open(later);
    assert!(later.methods(&mut KnownMethods::default()).compiled(&blob, CODE + 0x20).is_empty());
}

/// Reads all that there is to read.
fn exhaust(image: Image) {
    let symbols = image.symbols.clone();
    let Ok(jvm) = Jvm::described(image, |name| symbols.get(name).copied()) else { return };
    let Ok(heaps) = jvm.heaps() else { return };
    let _ = jvm.code_cache(&heaps);
    let mut known = KnownMethods::default();
    for address in (HEAP..HEAP + 5 * STEP).step_by(64) {
        if let Some(blob) = jvm.find(&heaps, address) {
            jvm.methods(&mut known).compiled(&blob, address);
        }
    }
    for method in (METHODS..METHODS + 2 * STEP).step_by(8) {
        jvm.methods(&mut known).interpreted(method, 5);
    }
}

proptest! {
    #[test]
    fn damaged_memory_does_no_harm(damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 1usize..9), 1..12)) {
        let mut image = image();
        let places: Vec<u64> = image.written.iter().copied().collect();
        for (place, word, width) in damage {
            let at = places[place.index(places.len())];
            image.put(at, &word.to_le_bytes()[..width]);
        }
        exhaust(image);
    }

    #[test]
    fn pointers_to_anywhere_do_no_harm(damage in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..40)) {
        let mut image = image();
        let places: Vec<u64> = image.written.iter().copied().filter(|at| at % 8 == 0).collect();
        for (place, target) in damage {
            let (at, target) = (places[place.index(places.len())], places[target.index(places.len())]);
            image.word(at, target);
        }
        exhaust(image);
    }
}
