//! Robustness against any content of a JVM's memory: the memory of a real one is recorded, modified, and read again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;

use jjleak::jvm::{Description, Jvm, Memory, ProcessMemory};
use jjleak::processes::Pid;
use jjleak::symbolize::{JavaNames, KnownJava};
use jjleak_common::jvm::id_in_frame;
use jjleak_common::stack::{InterpretedFrame, StackFrame};
use jjleak_common::unwind::layer;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

use crate::support::java::{Java, jdks};
use crate::support::privilege::{is_long, require_program};

const PAGE: u64 = 4096;
const PAGE_BYTES: usize = 4096;
/// Selection of code: every 2 KiB of the heaps is an address to look up, up to this many blobs.
const STRIDE: usize = 2048;
const MAX_BLOBS: usize = 60;
/// Maximum size of a single read: the line table of the longest method, and the table of flags.
const MAX_READ: usize = 1 << 20;
/// Maximum bytes and reads in total. Without changes, about a tenth is needed.
const MAX_BYTES: u64 = 256 << 20;
const MAX_READS: u64 = 2_000_000;

/// Reads a process's memory, and records the pages and the places of reads.
struct Recorder<'a> {
    memory: ProcessMemory,
    record: &'a RefCell<Record>,
}

#[derive(Default)]
struct Record {
    pages: BTreeMap<u64, Vec<u8>>,
    /// Addresses of reads, with the number of bytes.
    read: BTreeMap<u64, usize>,
}

impl Memory for Recorder<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let mut record = self.record.borrow_mut();
        let longest = record.read.entry(address).or_default();
        *longest = into.len().max(*longest);
        for page in address / PAGE..=address.saturating_add(into.len() as u64) / PAGE {
            let mut bytes = vec![0; PAGE_BYTES];
            if self.memory.read(page * PAGE, &mut bytes) == bytes.len() {
                record.pages.entry(page).or_insert(bytes);
            }
        }
        self.memory.read(address, into)
    }
}

/// A recording with changes, and the amount read of it.
struct Replayed<'a> {
    pages: &'a BTreeMap<u64, Vec<u8>>,
    changed: BTreeMap<u64, Vec<u8>>,
    bytes: Cell<u64>,
    reads: Cell<u64>,
}

impl Memory for &Replayed<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        assert!(into.len() <= MAX_READ, "{} bytes are read at once", into.len());
        self.bytes.set(self.bytes.get() + into.len() as u64);
        self.reads.set(self.reads.get() + 1);
        assert!(self.bytes.get() < MAX_BYTES && self.reads.get() < MAX_READS, "it does not come to an end");
        let mut done = 0;
        while done < into.len() {
            let Some(at) = address.checked_add(done as u64) else { break };
            let page = self.changed.get(&(at / PAGE)).or_else(|| self.pages.get(&(at / PAGE)));
            let Some(page) = page else { break };
            let rest = &page[usize::try_from(at % PAGE).unwrap()..];
            let length = rest.len().min(into.len() - done);
            into[done..done + length].copy_from_slice(&rest[..length]);
            done += length;
        }
        done
    }
}

/// Reads all data of a JVM and of the code at these places. Returns the number of frames with names.
fn exhaust<M: Memory>(
    memory: impl Fn() -> M,
    symbol: impl Fn(&str) -> Option<u64>,
    places: &[StackFrame],
) -> usize {
    if let Ok(description) = Description::described(memory(), &symbol) {
        let _ = (
            description.is_on("UseG1GC"),
            description.text("OnOutOfMemoryError"),
            description.number("MaxHeapSize"),
        );
    }
    let Ok(jvm) = Jvm::described(memory(), &symbol) else { return 0 };
    let _ = jvm.continuations();
    let Ok(heaps) = jvm.heaps() else { return 0 };
    let _ = jvm.code_cache(&heaps);
    let mut known = KnownJava::default();
    let mut names = JavaNames::new(&jvm, &heaps, &mut known);
    places.iter().filter(|place| names.frames(**place).is_some()).count()
}

/// Places in the code of a JVM: return addresses as in stacks, and methods as in the interpreter.
fn places(jvm: &Jvm<impl Memory>) -> Vec<StackFrame> {
    let heaps = jvm.heaps().unwrap();
    let addresses =
        heaps.iter().flat_map(|heap| (heap.begin..heap.end.min(heap.begin + (4 << 20))).step_by(STRIDE));
    let blobs = addresses.filter_map(|address| jvm.find(&heaps, address)).take(MAX_BLOBS);
    let in_blob = |blob: &jjleak::jvm::Blob| {
        let layer = layer::GENERATED | id_in_frame(blob.compile_id());
        let code = blob.code.clone();
        [code.start + (code.end - code.start) / 2, code.end].map(|address| StackFrame::new(address, layer))
    };
    blobs.flat_map(|blob| in_blob(&blob)).collect()
}

/// A place that was read: index of the read, and of its 4-byte word.
type Place = (Index, Index);

/// A changed place, and its new content.
#[derive(Debug, Clone)]
enum Change {
    Word(Place, u64),
    Small(Place, u8),
    Pointer(Place, Index),
    Gone(Place),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<Place>(), any::<u64>()).prop_map(|(at, word)| Change::Word(at, word)),
        (any::<Place>(), any::<u8>()).prop_map(|(at, byte)| Change::Small(at, byte)),
        (any::<Place>(), any::<Index>()).prop_map(|(at, to)| Change::Pointer(at, to)),
        any::<Place>().prop_map(Change::Gone),
    ]
}

/// The pages that differ after these changes.
fn changed(record: &Record, changes: &[Change]) -> BTreeMap<u64, Vec<u8>> {
    let read: Vec<(u64, usize)> = record.read.iter().map(|(at, length)| (*at, *length)).collect();
    let address = |(read_at, word): &Place| {
        let (at, length) = read[read_at.index(read.len())];
        at + 4 * word.index(length.div_ceil(4).max(1)) as u64
    };
    let mut pages = BTreeMap::new();
    for change in changes {
        let (at, bytes) = match change {
            Change::Word(at, word) => (address(at), word.to_le_bytes().to_vec()),
            Change::Small(at, byte) => (address(at), vec![*byte]),
            Change::Pointer(at, to) => (address(at), read[to.index(read.len())].0.to_le_bytes().to_vec()),
            Change::Gone(at) => (address(at), Vec::new()),
        };
        let Some(page) = record.pages.get(&(at / PAGE)) else { continue };
        let page = pages.entry(at / PAGE).or_insert_with(|| page.clone());
        if bytes.is_empty() {
            page.fill(0xff);
        }
        for (place, byte) in page.iter_mut().skip(usize::try_from(at % PAGE).unwrap()).zip(bytes) {
            *place = byte;
        }
    }
    pages
}

fn assert_harmless(java: &Path) {
    println!("{}", java.display());
    let mut java = Java::start(java, &["-Xbatch"]);
    java.ask("leak 3000");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", java.pid())).unwrap();
    let line = maps.lines().find(|line| line.ends_with("/libjvm.so")).unwrap();
    let bias = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let library = std::fs::read(line.split_whitespace().last().unwrap()).unwrap();
    let symbols = jjleak::jvm::Symbols::of(&library).unwrap();
    let symbol = symbols.above(bias);
    let record = RefCell::new(Record::default());
    let recorder =
        || Recorder { memory: ProcessMemory::open(Pid::new(java.pid()).unwrap()).unwrap(), record: &record };
    let mut places = places(&Jvm::described(recorder(), &symbol).unwrap());
    let named = exhaust(recorder, &symbol, &places);
    assert!(named > MAX_BLOBS, "{named} of {} places have names", places.len());
    // Any address that was read can be claimed to be a method.
    let methods: Vec<u64> =
        record.borrow().read.keys().copied().filter(|at| InterpretedFrame::can_be(*at)).collect();
    places.extend(methods.iter().step_by(methods.len() / 100 + 1).map(|at| InterpretedFrame::pack(*at, 5)));
    exhaust(recorder, &symbol, &places);

    let record = record.into_inner();
    println!("{} pages, {} places that were read", record.pages.len(), record.read.len());
    let cases = if is_long() { 1000 } else { 20 };
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let read = |changes: &[Change]| {
        let changed = changed(&record, changes);
        let memory = Replayed { pages: &record.pages, changed, bytes: Cell::new(0), reads: Cell::new(0) };
        exhaust(|| &memory, &symbol, &places)
    };
    assert!(read(&[]) >= named, "what is replayed is not what was recorded");
    let result = runner.run(&prop::collection::vec(change(), 1..40), |changes| {
        read(&changes);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn whatever_is_in_a_jvms_memory_is_read_within_bounds() {
    require_program!("javac");
    assert_harmless(Path::new("java"));
    if is_long() {
        for jdk in jdks() {
            assert_harmless(&jdk.java());
        }
    }
}
