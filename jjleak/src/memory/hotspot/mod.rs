//! Memory of a HotSpot JVM, read from outside.
//!
//! In: a JVM's memory, its library's symbols, and its mappings. Out: [`JvmMemory`]. Nothing runs in the JVM, and it is not
//! stopped. A value that cannot be read, or is implausible, is unknown; none is estimated.

mod classes;
mod direct;
mod heap;
mod metaspace;
mod nmt;
mod present;
mod structures;
mod tables;

use std::ops::Range;

use super::Kind;
use crate::jvm::structs::Structs;
use crate::jvm::{Error, Memory, Paged, Variable, counters};
use crate::processes::Mapping;

pub use nmt::NativeCategory;
pub use present::PresentMemory;
pub use tables::{TableSize, Tables};

/// Reason why a value is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unknown {
    /// HotSpot does not describe it in this version, and the library has no symbol for it.
    #[error("HotSpot does not describe it")]
    Undescribed,
    /// Its memory is not mapped, not resident, or changes too fast.
    #[error("its memory cannot be read")]
    Unreadable,
    /// It contradicts another value.
    #[error("its value is implausible")]
    Implausible,
}

/// A value, or the reason why it is unknown.
pub type Reading<T> = Result<T, Unknown>;

/// Java heap, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JavaHeap {
    /// Name of the collector.
    pub collector: Reading<&'static str>,
    /// Reserved addresses; several for a collector that maps the heap more than once.
    pub reserved: Reading<Vec<Range<u64>>>,
    /// Used by objects, garbage included.
    pub used: Reading<u64>,
    /// Committed.
    pub committed: Reading<u64>,
    /// Used after the last collection, according to the JVM's counters.
    pub used_after_collection: Reading<u64>,
}

/// Metadata of classes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Used by metadata.
    pub used: u64,
    /// Committed.
    pub committed: u64,
    /// True if the values are those of the last collection.
    pub is_of_last_collection: bool,
}

/// Metaspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metaspace {
    /// All of it, class space included.
    pub all: Reading<Space>,
    /// Class space.
    pub class_space: Reading<Space>,
    /// Reserved addresses of class space.
    pub class_range: Reading<Range<u64>>,
    /// Reserved addresses of the rest.
    pub ranges: Reading<Vec<Range<u64>>>,
}

/// Classes since the JVM's start, and their loaders now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    /// Loaded, archived ones included.
    pub loaded: Reading<u64>,
    /// Unloaded.
    pub unloaded: Reading<u64>,
    /// Class loader data: loaders, and hidden classes with data of their own.
    pub loaders: Reading<u64>,
}

/// Buffers of native memory that Java code allocates; part of malloc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectBuffers {
    /// Bytes that `java.nio.Bits` has reserved for them.
    pub reserved: u64,
    /// Bytes that Java code can use.
    pub capacity: u64,
    /// Number.
    pub count: u64,
    /// Maximum capacity: `-XX:MaxDirectMemorySize`, otherwise the maximum of the Java heap.
    pub most: u64,
    /// Bytes that Netty has allocated without `java.nio.Bits`.
    pub netty: Reading<u64>,
}

/// A code heap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeHeapMemory {
    /// Name, such as `CodeHeap 'profiled nmethods'`.
    pub name: Reading<String>,
    /// Reserved addresses.
    pub reserved: Range<u64>,
    /// Reserved addresses of its segment map.
    pub segment_map: Range<u64>,
    /// Committed bytes.
    pub committed: u64,
    /// Bytes in use.
    pub used: Reading<u64>,
}

/// A thread known to the JVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JavaThread {
    /// Stack.
    pub stack: Range<u64>,
    /// Thread id in the process's PID namespace.
    pub tid: Reading<u32>,
}

/// Memory of a JVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JvmMemory {
    /// Java heap.
    pub heap: JavaHeap,
    /// Metaspace.
    pub metaspace: Metaspace,
    /// Classes.
    pub classes: Classes,
    /// Code heaps.
    pub code: Reading<Vec<CodeHeapMemory>>,
    /// Java threads, those of compilers included.
    pub threads: Reading<Vec<JavaThread>>,
    /// Number of threads that Java code can see.
    pub visible_threads: Reading<u64>,
    /// Card table; some collectors have none.
    pub card_table: Reading<Range<u64>>,
    /// Mapped regions of the archive of class data sharing.
    pub cds: Reading<Vec<Range<u64>>>,
    /// Direct buffers.
    pub direct: Reading<DirectBuffers>,
    /// Tables of names and of interned strings.
    pub tables: Reading<Tables>,
    /// Native memory by category; `None` if the JVM does not count it.
    pub native: Reading<Option<Vec<NativeCategory>>>,
}

impl JvmMemory {
    /// Reads the memory of a JVM. `variable` finds the library's variables by name.
    ///
    /// `described` reads the library itself; `memory` must refuse pages that are not resident ([`PresentMemory`]).
    pub fn read(
        described: &impl Memory,
        memory: &impl Memory,
        variable: impl Fn(&str) -> Option<Variable>,
        mappings: &[Mapping],
    ) -> Result<Self, Error> {
        let symbol = |name: &str| Some(variable(name)?.address);
        let structs = Structs::read(&Paged::new(described), symbol)?;
        let reader = Reader { memory, structs: &structs, mappings };
        let numbers = counters::numbers(memory, &structs);
        let number = |name: &str| {
            let numbers = numbers.as_ref().ok_or(Unknown::Unreadable)?;
            numbers.get(name).copied().ok_or(Unknown::Undescribed)
        };
        Ok(Self {
            heap: heap::read(&reader, &number),
            metaspace: metaspace::read(&reader, &symbol, &number),
            classes: Classes {
                loaded: sum(&number, "java.cls.loadedClasses", "java.cls.sharedLoadedClasses"),
                unloaded: sum(&number, "java.cls.unloadedClasses", "java.cls.sharedUnloadedClasses"),
                loaders: structures::loaders(&reader).map(|loaders| loaders.len() as u64),
            },
            code: structures::code(&reader),
            threads: structures::threads(&reader),
            visible_threads: number("java.threads.live"),
            card_table: structures::card_table(&reader),
            cds: structures::cds(&reader),
            direct: direct::read(&reader),
            tables: tables::read(&reader, &symbol),
            native: nmt::read(&reader, &variable),
        })
    }

    /// Address ranges with their kinds and names. Ranges of different kinds do not overlap in an intact JVM.
    #[must_use]
    pub fn ranges(&self) -> Vec<(Range<u64>, Kind, String)> {
        let mut ranges = Vec::new();
        let mut add =
            |range: &Range<u64>, kind, name: &str| ranges.push((range.clone(), kind, name.to_owned()));
        let heap = self.heap.reserved.iter().flatten();
        heap.for_each(|range| add(range, Kind::JavaHeap, "Java heap"));
        self.metaspace.class_range.iter().for_each(|range| add(range, Kind::ClassSpace, "class space"));
        self.metaspace.ranges.iter().flatten().for_each(|range| add(range, Kind::Metaspace, "metaspace"));
        for heap in self.code.iter().flatten() {
            let name = heap.name.as_deref().unwrap_or("code heap");
            add(&heap.reserved, Kind::Code, name);
            add(&heap.segment_map, Kind::Code, &format!("segment map of {name}"));
        }
        self.card_table.iter().for_each(|range| add(range, Kind::Gc, "card table"));
        self.cds.iter().flatten().for_each(|range| add(range, Kind::Cds, "CDS archive"));
        for thread in self.threads.iter().flatten() {
            let name = thread.tid.map_or("thread".to_owned(), |tid| format!("thread {tid}"));
            add(&thread.stack, Kind::ThreadStacks, &name);
        }
        ranges
    }
}

fn sum(number: &impl Fn(&str) -> Reading<u64>, one: &str, other: &str) -> Reading<u64> {
    number(one)?.checked_add(number(other)?).ok_or(Unknown::Implausible)
}

/// Access to a JVM's structures.
struct Reader<'a, M> {
    memory: &'a M,
    structs: &'a Structs,
    mappings: &'a [Mapping],
}

impl<M: Memory> Reader<'_, M> {
    /// Value of a field of the structure at `base`.
    fn field(&self, base: u64, names: &[(&str, &str)]) -> Reading<u64> {
        let field = self.structs.field(names).map_err(|_| Unknown::Undescribed)?;
        field.read(self.memory, base).ok_or(Unknown::Unreadable)
    }

    /// Address of a structure within the structure at `base`.
    fn inner(&self, base: u64, names: &[(&str, &str)]) -> Reading<u64> {
        let field = self.structs.field(names).map_err(|_| Unknown::Undescribed)?;
        Ok(base.wrapping_add(field.offset))
    }

    /// The pointer in a static field; not null.
    fn fixed(&self, names: &[(&str, &str)]) -> Reading<u64> {
        let at = self.structs.address(names).map_err(|_| Unknown::Undescribed)?;
        self.memory.pointer(at).filter(|at| *at != 0).ok_or(Unknown::Unreadable)
    }

    fn word(&self, at: u64) -> Reading<u64> {
        self.number(at, 8)
    }

    /// The number of `width` bytes at an address.
    fn number(&self, at: u64, width: usize) -> Reading<u64> {
        self.memory.number(at, width).ok_or(Unknown::Unreadable)
    }

    /// Fails unless a range begins in a mapping and is not empty.
    fn mapped(&self, range: Range<u64>) -> Reading<Range<u64>> {
        let is_mapped = |mapping: &Mapping| mapping.addresses.contains(&range.start);
        let is_plausible = range.start < range.end && self.mappings.iter().any(is_mapped);
        is_plausible.then_some(range).ok_or(Unknown::Implausible)
    }
}
