//! A small JVM in synthetic memory, intact and damaged.

mod fuzzed;
pub(crate) mod image;
mod jdk_8;

use std::cell::RefCell;

use jjleak_common::jvm::CodeHeap;
use jjleak_common::unwind::RowKind;
use proptest::prelude::*;

use super::{Blob, BlobKind, JavaCode, JavaFrame, Jvm, KnownMethods, Methods};
use image::{
    BLOB_HEADER, CODE, CODE_BYTES, Changing, FIELDS, HEAP, HEAP_BYTES, HEAPS, Image, METHODS, SEGMENT_MAP,
    STEP, image, image_of, open,
};

/// The blob with the code before a return address.
fn find(jvm: &Jvm<Image>, return_address: u64) -> Option<Blob> {
    jvm.find(&jvm.heaps().unwrap(), return_address)
}

fn names(jvm: &Jvm<Image>, return_address: u64) -> Vec<(String, String, u32)> {
    let blob = find(jvm, return_address).unwrap();
    let frames = jvm.methods(&mut KnownMethods::default()).compiled(&blob, return_address);
    frames.into_iter().map(|frame| (frame.name, frame.file, frame.line)).collect()
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
fn code_is_unwound_by_what_it_is() {
    let jvm = open(image());
    let unwinding = |step: u64| {
        let at = HEAP + step * STEP + 16 + BLOB_HEADER + 0x20;
        find(&jvm, at).unwrap().unwinding(at)
    };
    assert_eq!(unwinding(0), Some(JavaCode::Interpreted));
    let Some(JavaCode::By(compiled)) = unwinding(1) else { panic!("compiled code has a row") };
    assert_eq!(compiled.kind(), RowKind::Sp as u64);
    assert_eq!(unwinding(3), None, "the callers of a virtual thread's frames are not on its stack");
}

#[test]
fn the_kernel_side_is_passed_where_to_read() {
    let jvm = open(image());
    let heaps = jvm.heaps().unwrap();
    let layout = jvm.code_cache(&heaps).unwrap();
    let (begin, end) = (HEAP, HEAP + HEAP_BYTES);
    let heap = CodeHeap { begin, end, segment_map: SEGMENT_MAP, segment_log2: 7, reserved: 0 };
    assert_eq!((layout.heaps[0], layout.heaps[1]), (heap, CodeHeap::default()));
    // Words of 4 bytes from the start of the block, which is 16 bytes before the blob.
    assert_eq!((layout.used, layout.blob, layout.name, layout.frame_size), (2, 4, 4, 7));
    assert_eq!((layout.code_begin, layout.code_end, layout.is_relative, layout.compile_id), (8, 10, 0, 14));
    assert_eq!((layout.plain_bytes, layout.header_bytes), (48, 60));
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
    // A call without a scope of its own has that of the next one; behind the last, only the method is known.
    assert_eq!(names(&jvm, CODE + 0x18), [frame("inner", 12), frame("outer", 10)]);
    assert_eq!(names(&jvm, CODE + 0x50), [frame("outer", 0)]);
}

#[test]
fn an_interpreted_method_is_identified_by_the_low_bits_of_its_bytecode() {
    let jvm = open(image());
    let bytecode = u64::from(BYTECODE);
    let line = |at: u64| Some(interpreted(&jvm, METHODS, u16::try_from(at & 0xffff).unwrap())?.line);
    assert_eq!([0, 7, 8, 15].map(|index| line(bytecode + index)), [Some(10), Some(10), Some(12), Some(12)]);
    assert_eq!([bytecode - 1, bytecode + 16].map(line), [None; 2], "another's, whose place it has");
    assert_eq!(interpreted(&jvm, 0x10, 0), None);
}

#[test]
fn a_native_method_has_a_name_and_no_line() {
    let mut image = image();
    image.put(METHODS + 0x100 + 16, &[0; 2]);
    let native = interpreted(&open(image), METHODS, 0).unwrap();
    assert_eq!((&*native.name, native.line), ("a.B.outer", 0));
}

/// The lowest 16 bits of the bytecode address of a method, and of the next one.
const BYTECODE: u16 = low(METHODS + 0x100 + 32);
const NEXT_BYTECODE: u16 = low(METHODS + STEP + 0x100 + 32);

#[expect(clippy::cast_possible_truncation, reason = "the lowest bits are what is wanted")]
const fn low(address: u64) -> u16 {
    address as u16
}

fn interpreted(jvm: &Jvm<Image>, method: u64, bytecode_low: u16) -> Option<JavaFrame> {
    jvm.methods(&mut KnownMethods::default()).interpreted(method, bytecode_low)
}

#[test]
fn a_method_in_the_place_of_another_one_has_its_own_name() {
    let (mut known, jvm) = (KnownMethods::default(), open(image()));
    let name = |jvm: &Jvm<Image>, known: &mut _, bytecode| {
        Some(jvm.methods(known).interpreted(METHODS, bytecode)?.name)
    };
    assert_eq!(name(&jvm, &mut known, BYTECODE).unwrap(), "a.B.outer");
    let mut later = image();
    later.method(0, "later");
    later.word(METHODS, METHODS + STEP + 0x100);
    let later = open(later);
    assert_eq!(name(&later, &mut known, NEXT_BYTECODE).unwrap(), "a.B.inner");
    assert_eq!(name(&later, &mut known, BYTECODE), None, "what ran there before is not known any more");
}

#[test]
fn a_class_in_the_place_of_one_that_is_unloaded_gives_its_methods_its_own_name() {
    let mut image = image();
    let symbols = image.symbols.clone();
    // Both methods are of one class, whose pool is the first one's.
    image.word(METHODS + STEP + 0x100, METHODS + 0x200);
    let image = Changing(RefCell::new(image));
    let jvm = Jvm::described(image, |name| symbols.get(name).copied()).unwrap();
    let (mut known, names) = (KnownMethods::default(), |methods: &mut Methods<Changing>, at, bytecode| {
        methods.interpreted(at, bytecode).map(|frame| frame.name)
    });
    let mut methods = jvm.methods(&mut known);
    assert_eq!(names(&mut methods, METHODS, BYTECODE).unwrap(), "a.B.outer");
    jvm.memory.0.borrow_mut().reload(0, "later");
    let later = (METHODS + STEP, NEXT_BYTECODE);
    assert_eq!(names(&mut methods, later.0, later.1).unwrap(), "c.D.later");
    assert_eq!(names(&mut jvm.methods(&mut known), later.0, later.1).unwrap(), "c.D.later", "for good");
}

#[test]
fn a_class_that_could_not_be_read_is_read_when_it_can_be() {
    let mut image = image();
    let symbols = image.symbols.clone();
    image.word(METHODS + 0x300, 0);
    let jvm = Jvm::described(Changing(RefCell::new(image)), |name| symbols.get(name).copied()).unwrap();
    let mut known = KnownMethods::default();
    let mut methods = jvm.methods(&mut known);
    assert_eq!(methods.interpreted(METHODS, BYTECODE), None);
    jvm.memory.0.borrow_mut().method(0, "outer");
    assert_eq!(methods.interpreted(METHODS, BYTECODE).unwrap().name, "a.B.outer");
}

#[test]
fn replaced_code_has_no_names() {
    let blob = find(&open(image()), CODE + 0x20).unwrap();
    let mut later = image();
    later.int(HEAP + STEP + 16 + 40, 78);
    let later = open(later);
    assert!(later.methods(&mut KnownMethods::default()).compiled(&blob, CODE + 0x20).is_empty());
}

/// Reads everything that can be read.
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
        jvm.methods(&mut known).interpreted(method, low(method + 0x100 + 32 + 5));
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
