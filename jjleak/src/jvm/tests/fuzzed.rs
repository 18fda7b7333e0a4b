//! The seed of the fuzz target `jvm-memory`: writes `tests/fuzz/jvm-memory` and checks that it is intact.

use std::fmt::Write as _;
use std::{env, fs};

use jjleak_common::jvm::{Colours, barrier};

use super::super::Description;
use super::super::continuations::variable;
use super::super::counters::VENDOR;
use super::super::zgc::variable as thread_local;
use super::image::{CODE, FIELDS, HEAPS, Image, METHODS, image_of, open};
use super::names;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fuzz/jvm-memory");
/// Set to rewrite the file.
const WRITE: &str = "JJLEAK_WRITE_JVM_MEMORY";

const FLAGS: u64 = HEAPS + 0x1000;
const CLASSES: u64 = HEAPS + 0x2000;
const SHIFTS: u64 = HEAPS + 0x3000;
const COUNTERS: u64 = HEAPS + 0x4000;
/// Address of the second counter, and of its parts.
const COUNTER: u64 = COUNTERS + 0x80;
/// Addresses of the colours of generational and non-generational ZGC, and of the threads.
const COLOURS: u64 = HEAPS + 0x5000;
const OLDER_COLOURS: u64 = COLOURS + 0x80;
const THREADS: u64 = COLOURS + 0x100;
/// Two threads, and the offsets of their colours.
const EACH_THREAD: [u64; 2] = [HEAPS + 0x6000, HEAPS + 0x6800];
const KEPT: u64 = 0x48;
/// Offsets of a thread's counter of allocated bytes, and of its buffer.
const ALLOCATED: u64 = 0x340;
const BUFFER: u64 = 0x348;
/// A loader: what HotSpot keeps for it, the object, and its class.
const LOADER: u64 = HEAPS + 0x7000;
/// The class of the first method.
const CLASS: u64 = METHODS + 0x300;
/// Offset of the thread pointer in the library's TLS block.
const THREAD: u64 = 0x28;

/// Flags and their values. The values share a word, so that flags that are off are mutated too.
const FLAG_VALUES: [(&str, u8); 6] = [
    ("UseCompressedOops", 0),
    ("UseCompressedClassPointers", 1),
    ("UseCompactObjectHeaders", 0),
    ("UseZGC", 1),
    ("ZGenerational", 1),
    ("UseShenandoahGC", 0),
];

/// The small JVM, with flags, virtual threads under ZGC, and a vendor.
fn whole() -> Image {
    let more = [
        ("JVMFlag", "_addr", "void*", 0),
        ("JVMFlag", "_name", "const char*", 8),
        ("JVMFlag", "_flags", "int", 16),
        ("oopDesc", "_metadata._klass", "Klass*", 8),
        ("Klass", "_super", "Klass*", 8),
        ("Klass", "_class_loader_data", "ClassLoaderData*", 16),
        ("ClassLoaderData", "_class_loader", "OopHandle", 0),
        ("ClassLoaderData", "_has_class_mirror_holder", "bool", 8),
        ("PerfDataPrologue", "entry_offset", "int", 4),
        ("PerfDataPrologue", "num_entries", "int", 8),
        ("PerfDataEntry", "entry_length", "int", 0),
        ("PerfDataEntry", "name_offset", "int", 4),
        ("PerfDataEntry", "vector_length", "int", 8),
        ("PerfDataEntry", "data_offset", "int", 12),
        ("ZGlobalsForVMStructs", "_ZPointerLoadShift", "size_t*", 0),
        ("ZGlobalsForVMStructs", "_ZPointerLoadGoodMask", "uintptr_t*", 8),
        ("ZGlobalsForVMStructs", "_ZPointerLoadBadMask", "uintptr_t*", 16),
        ("ZGlobalsForVMStructs", "_ZPointerMarkBadMask", "uintptr_t*", 24),
        ("ZGlobalsForVMStructs", "_ZPointerStoreGoodMask", "uintptr_t*", 32),
        ("ZGlobalsForVMStructs", "_ZPointerStoreBadMask", "uintptr_t*", 40),
        ("XGlobalsForVMStructs", "_XAddressWeakBadMask", "uintptr_t*", 0),
        ("XGlobalsForVMStructs", "_XAddressGoodMask", "uintptr_t*", 8),
        ("XGlobalsForVMStructs", "_XAddressOffsetMask", "uintptr_t*", 16),
        ("ThreadsList", "_length", "int", 0),
        ("ThreadsList", "_threads", "JavaThread**", 8),
        ("Thread", "_stack_base", "address", 0x330),
        ("Thread", "_stack_size", "size_t", 0x338),
        ("Thread", "_allocated_bytes", "jlong", ALLOCATED),
        ("Thread", "_tlab", "ThreadLocalAllocBuffer", BUFFER),
        ("ThreadLocalAllocBuffer", "_start", "HeapWord*", 0),
        ("ThreadLocalAllocBuffer", "_top", "HeapWord*", 8),
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
            ("PerfMemory", "_start", COUNTERS - 16),
            ("PerfMemory", "_top", COUNTERS - 8),
            ("ZGlobalsForVMStructs", "_instance_p", COLOURS),
            ("XGlobalsForVMStructs", "_instance_p", OLDER_COLOURS),
            ("ThreadsSMRSupport", "_java_thread_list", THREADS),
        ],
    );
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
    flags(&mut image);
    counters(&mut image);
    colours(&mut image);
    loader(&mut image);
    image
}

/// The loader of a method's class, whose class has a superclass.
fn loader(image: &mut Image) {
    let (handle, object, class, superclass) = (LOADER + 0x10, LOADER + 0x20, LOADER + 0x40, LOADER + 0x60);
    image.word(CLASS + 16, LOADER);
    image.word(LOADER, handle);
    image.word(handle, object);
    image.word(object, 1);
    image.word(object + 8, class);
    image.word(class + 8, superclass);
    for (class, name, symbol) in
        [(class, "a/Plugin", LOADER + 0x80), (superclass, "java/lang/ClassLoader", LOADER + 0xc0)]
    {
        image.word(class, symbol);
        image.half(symbol, u16::try_from(name.len()).unwrap());
        image.put(symbol + 2, name.as_bytes());
    }
}

/// Address of a flag's value.
fn flag(name: &str) -> u64 {
    FLAGS + 0x10 + FLAG_VALUES.iter().position(|(flag, _)| *flag == name).unwrap() as u64
}

fn flags(image: &mut Image) {
    image.word(FLAGS, FLAGS + 0x20);
    image.word(FLAGS + 8, FLAG_VALUES.len() as u64);
    for (index, (name, value)) in (0..).zip(FLAG_VALUES) {
        let (at, entry) = (FLAGS + 0x10 + index, FLAGS + 0x20 + 24 * index);
        let name = image.intern(name);
        image.put(at, &[value]);
        image.word(entry, at);
        image.word(entry + 8, name);
        image.word(entry + 16, 5);
    }
}

/// ZGC's colours, and two threads that know them.
fn colours(image: &mut Image) {
    let masks = [0x1000, 0xe000, 0xeac0, 0x1510, 0xeae0];
    let of_generations = [&[13][..], &masks].concat();
    for (globals, values) in [(COLOURS, &*of_generations), (OLDER_COLOURS, &[0x30, 0x40, 0xfff])] {
        let instance = globals + 8;
        image.word(globals, instance);
        let variables = instance + 8 * values.len() as u64;
        for (offset, value) in (0..).step_by(8).zip(values) {
            image.word(instance + offset, variables + offset);
            image.word(variables + offset, *value);
        }
    }
    image.word(THREADS, THREADS + 8);
    image.int(THREADS + 8, 2);
    image.word(THREADS + 16, THREADS + 24);
    for (index, thread) in (0..).zip(EACH_THREAD) {
        image.word(THREADS + 24 + 8 * index, thread);
        for (offset, mask) in (0..).step_by(8).zip(masks) {
            image.word(thread + KEPT + offset, mask);
        }
        image.word(thread + ALLOCATED, 5000);
        image.word(thread + BUFFER, 0x10_0000);
        image.word(thread + BUFFER + 8, 0x10_0100);
    }
    image.symbol(thread_local::MODULE, 3);
    image.symbols.insert(thread_local::START.to_owned(), 0);
    image.symbols.insert(thread_local::THREAD.to_owned(), THREAD);
}

/// A number and a string with their names, as performance counters.
fn counters(image: &mut Image) {
    image.word(COUNTERS - 16, COUNTERS);
    image.word(COUNTERS - 8, COUNTER + 0x80);
    image.int(COUNTERS + 4, 0x40);
    image.int(COUNTERS + 8, 2);
    let entries = [(COUNTERS + 0x40, 0x40, "a.number", 0, ""), (COUNTER, 0x80, VENDOR, 16, "Somebody")];
    for (at, length, name, value_length, value) in entries {
        for (field, number) in [(0, length), (4, 16), (8, value_length), (12, length - 16)] {
            image.int(at + field, number);
        }
        image.put(at + 16, name.as_bytes());
        image.put(at + u64::from(length - 16), value.as_bytes());
    }
}

fn described(image: &Image) -> Description<Image> {
    Description::described(image.clone(), |name| image.symbols.get(name).copied()).unwrap()
}

/// The symbols' addresses, and the words that are not 0.
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
    let known = described(&image);
    for (flag, value) in FLAG_VALUES {
        assert_eq!(known.is_on(flag), Some(value != 0), "{flag}");
    }
    assert_eq!(known.vendor(), "Somebody");
    let text = text(&image);
    let jvm = open(image);
    assert_eq!((jvm.version(), jvm.lacks()), (17, None));
    assert_eq!(names(&jvm, CODE + 0x20).len(), 2);
    let virtual_threads = jvm.continuations().unwrap();
    assert_eq!(virtual_threads.barrier, barrier::SHIFTED);
    let known = virtual_threads.colours;
    assert_eq!(
        (known.module, u64::from(known.thread), u64::from(known.thread_stale)),
        (48, THREAD, KEPT + 8)
    );
    let allocated = jvm.allocated_by_threads().unwrap();
    assert_eq!(allocated, EACH_THREAD.map(|thread| (thread, 5256)).into());
    let layout = jvm.heap_layout().unwrap();
    assert_eq!((u64::from(layout.allocated), u64::from(layout.buffer_top)), (ALLOCATED, BUFFER + 8));
    assert_eq!(jvm.loader_name(CLASS), format!("a.Plugin @{LOADER:x}"));
    if env::var_os(WRITE).is_some() {
        fs::write(FILE, &text).unwrap();
    }
    let kept = fs::read_to_string(FILE).unwrap_or_default();
    assert!(kept == text, "{FILE} is another one: {WRITE}=1 writes it anew");
}

#[test]
fn the_jvm_that_is_fuzzed_has_the_colours_of_zgc_without_generations_too() {
    let mut image = whole();
    image.put(flag("ZGenerational"), &[0]);
    let known = open(image).continuations().unwrap();
    assert_eq!((known.barrier, known.reference_mask), (barrier::COLOURED, 0xfff));
    let (stale, change) = (OLDER_COLOURS + 0x20, OLDER_COLOURS + 0x28);
    assert_eq!(known.colours, Colours { stale, change, ..Colours::default() });
}

#[test]
fn a_loader_is_named_by_what_it_is() {
    let object = LOADER + 0x20;
    let changed = |changes: &[(u64, u64)]| {
        let mut image = whole();
        for (at, word) in changes {
            image.word(*at, *word);
        }
        open(image).loader_name(CLASS)
    };
    assert_eq!(changed(&[(LOADER, 0)]), "boot");
    assert_eq!(changed(&[(LOADER + 8, 1)]), "a.Plugin", "the data of a single class");
    // It has moved, and its reference has a colour of ZGC: the address is shifted by 13 bits.
    let copy = HEAPS + 0x7800;
    let moved = [(object, copy | 3), (copy, 1), (copy + 8, LOADER + 0x40), (object + 8, 0)];
    assert_eq!(changed(&moved), format!("a.Plugin @{LOADER:x}"));
    assert_eq!(changed(&[(LOADER + 0x10, object << 13 | 0x1000)]), format!("a.Plugin @{LOADER:x}"));
    // No loader: what is there is something else meanwhile.
    assert_eq!(changed(&[(LOADER + 0x48, 0)]), "");
    assert_eq!(changed(&[(LOADER + 0x48, LOADER + 0x40)]), "", "its own superclass");
    assert_eq!(changed(&[(LOADER + 0x10, 1 << 50)]), "");
    assert_eq!(changed(&[(CLASS + 16, 1 << 50)]), "");
}

#[test]
fn unsupported_generational_zgc_is_reported() {
    let lacks =
        |image: Image| (open(image.clone()).lacks_continuations(), open(image).continuations().is_some());
    assert_eq!(lacks(whole()), (None, true));
    for (symbol, what) in [(thread_local::MODULE, "R_X86_64_DTPMOD64"), (thread_local::THREAD, "symbol")] {
        let mut image = whole();
        image.symbols.remove(symbol);
        let (reason, is_known) = lacks(image);
        assert!(reason.is_some_and(|reason| reason.contains(what)) && !is_known, "{reason:?}");
    }
    let mut older = whole();
    older.symbols.remove(thread_local::MODULE);
    older.put(flag("ZGenerational"), &[0]);
    assert_eq!(lacks(older), (None, true));
}

#[test]
fn a_jvm_with_damaged_counters_has_no_vendor() {
    let damages = [
        ("more entries lie before the first", COUNTERS + 4, u32::MAX),
        ("there are none", COUNTERS + 8, 0),
        ("one has no length", COUNTERS + 0x40, 0),
        ("one is longer than all", COUNTERS + 0x40, u32::MAX),
        ("the name is outside", COUNTER + 4, 0x81),
        ("the value is outside", COUNTER + 12, u32::MAX),
        ("the value is too long", COUNTER + 8, 17),
        ("all of it is elsewhere", COUNTERS - 16, u32::MAX),
        ("the end is before the start", COUNTERS - 8, 1),
    ];
    for (what, at, number) in damages {
        let mut image = whole();
        image.int(at, number);
        assert_eq!(described(&image).vendor(), "", "{what}");
    }
}

#[test]
fn a_library_that_puts_its_classes_at_the_end_of_all_addresses_does_no_harm() {
    let mut image = whole();
    image.symbols.insert(variable::CLASSES.to_owned(), u64::MAX - 7);
    assert_eq!(open(image).continuations(), None);
}
