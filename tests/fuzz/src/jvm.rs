//! The memory of a malicious JVM: a small valid one, which the input changes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use jjleak::jvm::{Description, Jvm, KnownMethods, Memory};
use jjleak_common::jvm::barrier;

/// A valid JVM, written by jjleak's own tests: lines `SYMBOL ADDRESS`, and `ADDRESS WORD` for words other than 0.
const SMALL: &str = include_str!("../jvm-memory");

/// Address of its first method, and the distance between methods in bytes.
const METHODS: u64 = 0x30_0000;
const METHOD_BYTES: u64 = 0x1000;
/// Offset of a method's class.
const CLASS: u64 = 0x300;

/// Size of a change in bytes: the word, the kind of change, and a number.
const CHANGE_BYTES: usize = 11;

/// Distance between blobs in bytes, their number, and the offset of their code.
const BLOB_BYTES: u64 = 0x1000;
const BLOBS: u64 = 16;
const CODE: u64 = 0x90;
/// Offsets in a blob's code to look up: those that a method describes, and others.
const PLACES: [u64; 5] = [1, 0x20, 0x21, 0x40, 0x100];

/// Result for the unchanged JVM: one method is inlined into another, and the collector is generational ZGC.
const ALL: Reached = Reached { methods: 2, barrier: Some(barrier::SHIFTED), threads: 2, has_loader: true };

/// Extent to which the JVM could be read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reached {
    /// Maximum number of methods found at an address.
    methods: usize,
    /// Method by which references to frames of virtual threads are kept valid.
    barrier: Option<u32>,
    /// Number of threads whose allocated bytes are known.
    threads: usize,
    /// True if the loader of the first method's class is known.
    has_loader: bool,
}

struct Small {
    bytes: Vec<u8>,
    symbols: HashMap<String, u64>,
    /// Addresses of words with a meaning.
    words: Vec<u64>,
    /// Content of all other memory, repeated; if empty, that memory is not mapped.
    elsewhere: Vec<u8>,
}

/// One memory, shared by all its readers.
#[derive(Clone)]
struct Shared(Rc<RefCell<Small>>);

impl Memory for Shared {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let small = self.0.borrow();
        let at = usize::try_from(address).unwrap_or(usize::MAX);
        let here = small.bytes.get(at..).unwrap_or_default();
        let (begin, rest) = into.split_at_mut(here.len().min(into.len()));
        begin.copy_from_slice(&here[..begin.len()]);
        if small.elsewhere.is_empty() {
            return begin.len();
        }
        rest.chunks_mut(small.elsewhere.len())
            .for_each(|chunk| chunk.copy_from_slice(&small.elsewhere[..chunk.len()]));
        into.len()
    }
}

impl Small {
    fn new() -> Self {
        let mut small = Self {
            bytes: vec![0; (METHODS + 2 * METHOD_BYTES) as usize],
            symbols: HashMap::new(),
            words: Vec::new(),
            elsewhere: Vec::new(),
        };
        for line in SMALL.lines() {
            let (key, value) = line.split_once(' ').expect("a line has two words");
            let value = u64::from_str_radix(value, 16).expect("the second one is a number");
            if let Ok(address) = u64::from_str_radix(key, 16) {
                small.set(address, value);
                small.words.push(address);
            } else {
                small.symbols.insert(key.to_owned(), value);
            }
        }
        small
    }

    fn word(&mut self, address: u64) -> &mut [u8] {
        &mut self.bytes[address as usize..address as usize + 8]
    }

    fn set(&mut self, address: u64, word: u64) {
        self.word(address).copy_from_slice(&word.to_le_bytes());
    }

    fn get(&mut self, address: u64) -> u64 {
        u64::from_le_bytes(self.word(address).try_into().expect("it has 8 bytes"))
    }

    /// Applies the changes of the input, and returns the previous words.
    fn change(&mut self, changes: &[u8]) -> Vec<(u64, u64)> {
        let mut before = Vec::new();
        for change in changes.chunks_exact(CHANGE_BYTES) {
            let number = u64::from_le_bytes(change[3..].try_into().expect("it has 8 bytes"));
            let address =
                self.words[usize::from(u16::from_le_bytes([change[0], change[1]])) % self.words.len()];
            let other = self.words[number as usize % self.words.len()];
            let (kind, byte) = (change[2] % 4, usize::from(change[2] / 4 % 8));
            let old = self.get(address);
            before.push((address, old));
            match kind {
                0 => self.set(address, number),
                1 => self.set(address, other),
                2 => {
                    let word = self.get(other);
                    self.set(address, word);
                }
                _ => self.word(address)[byte] = number as u8,
            }
        }
        before
    }
}

/// Reads everything that can be read of a JVM.
pub(crate) fn structures(data: &[u8]) {
    thread_local!(static SMALL: Shared = {
        let small = Shared(Rc::new(RefCell::new(Small::new())));
        assert_eq!(exhaust(&small), ALL, "not all of the JVM is looked at");
        small
    });
    let memory = SMALL.with(Shared::clone);
    let Some((first, changes)) = data.split_first() else { return };
    memory.0.borrow_mut().elsewhere = if first % 2 == 1 { changes.to_vec() } else { Vec::new() };
    let before = memory.0.borrow_mut().change(changes);
    exhaust(&memory);
    let mut small = memory.0.borrow_mut();
    before.into_iter().rev().for_each(|(address, word)| small.set(address, word));
}

fn exhaust(memory: &Shared) -> Reached {
    let mut reached = Reached::default();
    let symbols = memory.0.borrow().symbols.clone();
    let symbol = |name: &str| symbols.get(name).copied();
    if let Ok(described) = Description::described(memory.clone(), symbol) {
        let _ = (described.version(), described.release(), described.build(), described.vendor());
        for flag in ["UseCompressedOops", "UseG1GC", "UseZGC"] {
            let _ = (described.is_on(flag), described.number(flag));
            let _ = (described.text(flag), described.origin(flag));
        }
    }
    let Ok(jvm) = Jvm::described(memory.clone(), symbol) else { return reached };
    let _ = jvm.lacks();
    let _ = jvm.heap_layout();
    reached.threads = jvm.allocated_by_threads().map_or(0, |threads| threads.len());
    for class in memory.0.borrow().words.iter().step_by(16) {
        let _ = jvm.class_name(*class, class.wrapping_add(8));
    }
    reached.has_loader = !jvm.loader_name(METHODS + CLASS).is_empty();
    reached.barrier = jvm.continuations().map(|known| known.barrier);
    let mut known = KnownMethods::default();
    for method in [METHODS, METHODS + METHOD_BYTES] {
        for bytecode in 0x120..0x130 {
            jvm.methods(&mut known).interpreted(method, bytecode);
        }
    }
    let Ok(heaps) = jvm.heaps() else { return reached };
    let _ = jvm.code_cache(&heaps);
    for heap in heaps.iter().take(2) {
        let ends = [heap.begin, heap.end, heap.end.wrapping_sub(1)];
        let code = (0..BLOBS).map(|blob| heap.begin.wrapping_add(blob * BLOB_BYTES + CODE));
        let inside = code.flat_map(|code| PLACES.map(|place| code.wrapping_add(place)));
        for address in inside.chain(ends) {
            if let Some(blob) = jvm.find(&heaps, address) {
                let methods = jvm.methods(&mut known).compiled(&blob, address).len();
                reached.methods = reached.methods.max(methods);
            }
        }
    }
    reached
}
