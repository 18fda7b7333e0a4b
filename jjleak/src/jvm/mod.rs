//! Java code of HotSpot JVMs, read from outside: the owners of machine code, the layout of frames, and the
//! methods at return addresses.
//!
//! In: the mapped `libjvm.so` and the process's memory. Out: the location of code, for the kernel side's
//! unwinder, and [`Methods`], which names addresses. HotSpot describes its structures in tables that it
//! exports for debuggers (`vmStructs`, `src/hotspot/share/runtime/vmStructs.hpp` in the JDK). Nothing runs in
//! the JVM, and it is not stopped. Nothing that is read is trusted: it changes meanwhile, and the target
//! controls it.

mod allocation;
mod blob;
mod codecache;
mod continuations;
pub(crate) mod counters;
pub(crate) mod description;
mod library;
mod lines;
mod loaders;
mod memory;
mod methods;
mod names;
pub(crate) mod objects;
mod scopes;
pub(crate) mod shifted;
pub(crate) mod structs;
mod symbols;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod unsigned5;
mod zgc;

use std::collections::HashMap;

use allocation::AllocationLayout;
use codecache::CodeCacheLayout;
use continuations::ContinuationLayout;
use jjleak_common::java_heap::HeapLayout;
use jjleak_common::jvm::{CodeCache, CodeHeap, Continuations};
use loaders::LoaderLayout;
use methods::MethodLayout;
use scopes::ScopeLayout;
use structs::Structs;

use crate::file_content::{Content, TooCostly};

pub use blob::{Blob, BlobKind, JavaCode};
pub use description::{Description, Origin};
pub use library::{describes_itself, has_name, is_library, library};
pub(crate) use memory::Paged;
pub use memory::{Memory, ProcessMemory};
pub use methods::{JavaFrame, KnownMethods, Methods};
pub use names::class as class_in_source;
pub(crate) use symbols::{METASPACE_VARIABLES, NMT_VARIABLES, TABLE_VARIABLES, Table};
pub use symbols::{Symbols, Variable};

/// File name of HotSpot's library, unless it was renamed.
pub(crate) const LIBRARY: &str = "libjvm.so";

/// Variable that points to HotSpot's structure descriptions.
const STRUCTS: &str = "gHotSpotVMStructs";

/// Reason why a JVM's code cannot be identified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library is no ELF file, or exports no `vmStructs`: it is another JVM's.
    #[error("the library exports no structure descriptions (gHotSpotVMStructs)")]
    NoStructs,
    /// The library takes more memory or time than any JVM's.
    #[error("cannot read the library's symbols: {0}")]
    TooCostly(TooCostly),
    /// The memory cannot be read: the JVM has not come so far yet, or is gone.
    #[error("cannot read the JVM's {0}")]
    Unreadable(&'static str),
    /// The description lacks a structure that is needed: an unknown version.
    #[error("HotSpot describes no {0}")]
    Unknown(String),
}

/// A HotSpot JVM with known structures.
#[derive(Debug)]
pub struct Jvm<M> {
    memory: M,
    code_cache: CodeCacheLayout,
    methods: MethodLayout,
    /// `None` if the structures of inlining differ from the known ones.
    scopes: Option<ScopeLayout>,
    /// `None` without virtual threads, or if the layout of their frames is unknown.
    continuations: Option<ContinuationLayout>,
    /// `None` if what threads allocate cannot be read in this version.
    allocation: Option<AllocationLayout>,
    /// `None` if the loader of a class cannot be read in this version.
    loaders: Option<LoaderLayout>,
    version: u64,
}

impl<M: Memory> Jvm<M> {
    /// Reads the JVM's description. `library` is the content of its file, mapped with this load bias.
    pub fn open<'data>(memory: M, library: impl Into<Content<'data>>, bias: u64) -> Result<Self, Error> {
        Self::described(memory, Symbols::of(library)?.above(bias))
    }

    /// Reads the description without the library file: `symbol` returns the addresses of exported variables.
    pub fn described(memory: M, symbol: impl Fn(&str) -> Option<u64>) -> Result<Self, Error> {
        let paged = Paged::new(&memory);
        let structs = Structs::read(&paged, &symbol)?;
        let version = structs.version(&memory);
        let continuations = ContinuationLayout::of(&paged, &structs, symbol);
        Ok(Self {
            code_cache: CodeCacheLayout::of(&structs)?,
            methods: MethodLayout::of(&structs, version)?,
            scopes: ScopeLayout::of(&structs, version).ok(),
            continuations,
            allocation: AllocationLayout::of(&structs),
            loaders: LoaderLayout::of(&paged, &structs),
            version,
            memory,
        })
    }

    /// Offsets that the kernel side needs to read what threads allocate; `None` if this version does not describe them.
    #[must_use]
    pub fn heap_layout(&self) -> Option<HeapLayout> {
        self.allocation.as_ref()?.for_kernel()
    }

    /// Bytes that each thread has allocated in the Java heap since its start, by the address of its structure.
    #[must_use]
    pub fn allocated_by_threads(&self) -> Option<HashMap<u64, u64>> {
        self.allocation.as_ref()?.by_threads(&self.memory)
    }

    /// Name of a class in source notation. `name` is the symbol that was its name; `None` if it is not any more, because the class was
    /// unloaded.
    #[must_use]
    pub fn class_name(&self, class: u64, name: u64) -> Option<String> {
        let is_current = || self.methods.class_symbol(&self.memory, class) == Some(name);
        let text = self.methods.symbol(&self.memory, name).filter(|_| is_current())?;
        Some(names::class(&text))
    }

    /// Name of the loader of a class: `app`, `org.example.Plugin @7f12a4003c10`; empty if it cannot be read.
    #[must_use]
    pub fn loader_name(&self, class: u64) -> String {
        let loader = self.loaders.as_ref().and_then(|it| it.name(&self.memory, &self.methods, class));
        loader.unwrap_or_default()
    }

    /// The JDK's major version.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Returns whether inlined methods and lines can be named for this version.
    const fn knows_inlining(&self) -> bool {
        self.scopes.is_some()
    }

    /// Details that names lack for this version, if any.
    #[must_use]
    pub const fn lacks(&self) -> Option<&'static str> {
        match (self.knows_inlining(), self.methods.knows_bytecode()) {
            (true, true) => None,
            (true, false) => Some("line numbers of interpreted methods"),
            (false, _) => Some("inlined methods and line numbers"),
        }
    }

    /// The code heaps, once all exist: from before the first Java method runs.
    pub fn heaps(&self) -> Result<Vec<CodeHeap>, Error> {
        codecache::heaps(&self.memory, &self.code_cache)
    }

    /// The data that the kernel side needs to unwind through code in these heaps.
    pub fn code_cache(&self, heaps: &[CodeHeap]) -> Result<CodeCache, Error> {
        let unknown = || Error::Unknown("known layout of code".to_owned());
        self.code_cache.for_kernel(heaps).ok_or_else(unknown)
    }

    /// Location of unmounted virtual threads' frames; `None` before the JVM has set it, if it does not expose
    /// it, or under an unsupported collector.
    #[must_use]
    pub fn continuations(&self) -> Option<Continuations> {
        let class_name = |class| self.methods.class_name(&self.memory, class);
        self.continuations.as_ref()?.read(&self.memory, class_name)
    }

    /// The reason why there will be no [`Self::continuations`] under this JVM's collector, if any. Valid once
    /// the flags are final, which they are when it has [heaps](Self::heaps).
    #[must_use]
    pub fn lacks_continuations(&self) -> Option<&'static str> {
        self.continuations.as_ref()?.lacks(&self.memory)
    }

    /// The code before a return address now.
    #[must_use]
    pub fn find(&self, heaps: &[CodeHeap], return_address: u64) -> Option<Blob> {
        self.code_cache.find(&self.memory, heaps, return_address, |at| self.memory.text(at))
    }

    /// The interpreter and the stub by which the JVM calls Java. They stay where they are until the JVM ends.
    #[must_use]
    pub fn lasting(&self, heaps: &[CodeHeap]) -> Vec<Blob> {
        let places = self.code_cache.lasting(&self.memory);
        places.filter_map(|return_address| self.find(heaps, return_address)).collect()
    }

    /// Returns a resolver of method names.
    #[must_use]
    pub fn methods<'a>(&'a self, known: &'a mut KnownMethods) -> Methods<'a, M> {
        Methods::new(&self.memory, &self.methods, &self.code_cache, self.scopes.as_ref(), known)
    }
}
