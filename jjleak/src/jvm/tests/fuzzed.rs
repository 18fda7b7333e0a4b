//! The JVM that the fuzz target changes: `tests/fuzz/jvm-memory` is written here, where it is known to be whole.

use std::fmt::Write as _;
use std::{env, fs};

use super::super::Description;
use super::super::continuations::variable;
use super::image::{CODE, FIELDS, HEAPS, Image, image_of, open};
use super::names;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fuzz/jvm-memory");
/// Makes the file anew.
const WRITE: &str = "JJLEAK_WRITE_JVM_MEMORY";

const FLAGS: u64 = HEAPS + 0x1000;
const CLASSES: u64 = HEAPS + 0x2000;
const SHIFTS: u64 = HEAPS + 0x3000;

/// The small JVM, with a flag and virtual threads.
fn whole() -> Image {
    let more = [
        ("JVMFlag", "_addr", "void*", 0),
        ("JVMFlag", "_name", "const char*", 8),
        ("JVMFlag", "_flags", "int", 16),
        ("oopDesc", "_metadata._klass", "Klass*", 8),
    ];
    let mut image = image_of(
        17,
        &[FIELDS, &more].concat(),
        &[
            ("CodeCache", "_heaps", HEAPS),
            ("JVMFlag", "flags", FLAGS),
            ("JVMFlag", "numFlags", FLAGS + 8),
            ("CompressedOops", "_narrow_oop._base", SHIFTS),
            ("CompressedOops", "_narrow_oop._shift", SHIFTS + 8),
            ("CompressedKlassPointers", "_narrow_klass._base", SHIFTS + 16),
            ("CompressedKlassPointers", "_narrow_klass._shift", SHIFTS + 24),
        ],
    );
    image.word(FLAGS, FLAGS + 0x20);
    image.word(FLAGS + 8, 1);
    image.word(FLAGS + 0x20, FLAGS + 0x10);
    let name = image.intern("UseCompressedOops");
    image.word(FLAGS + 0x28, name);
    image.word(FLAGS + 0x30, 5);
    image.put(FLAGS + 0x10, &[1]);
    image.word(SHIFTS + 8, 3);
    for (name, value) in variable::ALL.into_iter().zip([8, 12, 16, 20, 24, 48, 0x7777]) {
        image.symbol(name, value);
    }
    image.symbol(variable::SAFEPOINT, 0);
    image.symbol(variable::SAFEPOINTS, 0);
    image.symbols.insert(variable::CLASSES.to_owned(), CLASSES);
    let (class, symbol) = (CLASSES + 0x100, CLASSES + 0x200);
    image.word(CLASSES + 8, class);
    image.word(class, symbol);
    let chunk = "jdk/internal/vm/StackChunk";
    image.half(symbol, u16::try_from(chunk.len()).unwrap());
    image.put(symbol + 2, chunk.as_bytes());
    image
}

/// Where symbols are, and the words that are not 0.
fn text(image: &Image) -> String {
    let mut text = String::new();
    for (name, address) in &image.symbols {
        writeln!(text, "{name} {address:x}").unwrap();
    }
    for (index, word) in image.bytes.as_chunks().0.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        if word != 0 {
            writeln!(text, "{:x} {word:x}", 8 * index).unwrap();
        }
    }
    text
}

#[test]
fn the_jvm_that_is_fuzzed_is_whole() {
    let image = whole();
    let known = Description::described(image.clone(), |name| image.symbols.get(name).copied()).unwrap();
    assert_eq!(known.is_on("UseCompressedOops"), Some(true));
    let text = text(&image);
    let jvm = open(image);
    assert_eq!((jvm.version(), jvm.lacks()), (17, None));
    assert_eq!(names(&jvm, CODE + 0x20).len(), 2);
    assert!(jvm.continuations().is_some());
    if env::var_os(WRITE).is_some() {
        fs::write(FILE, &text).unwrap();
    }
    let kept = fs::read_to_string(FILE).unwrap_or_default();
    assert!(kept == text, "{FILE} is another one: {WRITE}=1 writes it anew");
}

#[test]
fn a_library_that_puts_its_classes_at_the_end_of_all_addresses_does_no_harm() {
    let mut image = whole();
    image.symbols.insert(variable::CLASSES.to_owned(), u64::MAX - 7);
    assert_eq!(open(image).continuations(), None);
}
