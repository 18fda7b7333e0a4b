//! The Java code of a HotSpot JVM, read from outside: which machine code is whose, how its frames are laid out, and which
//! methods a return address stands for.
//!
//! In: the mapped `libjvm.so` and the process's memory. Out: where the code is, for the kernel side, which unwinds through
//! it as it finds it, and [`Methods`] for addresses. HotSpot describes its own structures in tables that it exports for
//! debuggers (`vmStructs`, `src/hotspot/share/runtime/vmStructs.hpp` in the JDK), so that nothing has to run in the JVM,
//! which is neither stopped nor asked for anything. Nothing that is read is trusted: it changes while it is read, and it is
//! the target's.

mod codecache;
mod continuations;
mod counters;
mod description;
mod library;
mod lines;
mod memory;
mod methods;
mod names;
mod scopes;
mod structs;
#[cfg(test)]
pub(crate) mod tests;
mod unsigned5;
mod zgc;

use std::collections::HashMap;

use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget};

use codecache::CodeCacheLayout;
use continuations::{ContinuationLayout, variable};
use jjleak_common::jvm::{CodeCache, CodeHeap, Continuations};
use memory::Paged;
use methods::MethodLayout;
use scopes::ScopeLayout;
use structs::Structs;

pub use codecache::{Blob, BlobKind};
pub use description::{Description, Origin};
pub use library::{describes_itself, has_name, is_library, library};
pub use memory::{Memory, ProcessMemory};
pub use methods::{JavaFrame, KnownMethods, Methods};

/// The file that HotSpot is in, unless somebody has put it elsewhere.
pub(crate) const LIBRARY: &str = "libjvm.so";

/// The variable that leads to what HotSpot tells of its structures.
const STRUCTS: &str = "gHotSpotVMStructs";

/// Why a JVM's code cannot be told apart.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library is no ELF file, or exports no `vmStructs`: it is another JVM's.
    #[error("it exports no description of its structures (gHotSpotVMStructs)")]
    NoStructs,
    /// What was to be read is not there: the JVM has not come so far yet, or is gone.
    #[error("cannot read {0}")]
    Unreadable(&'static str),
    /// The description says nothing of a structure that is needed: an unknown version.
    #[error("it describes no {0}")]
    Unknown(String),
}

/// A HotSpot JVM whose structures are known.
#[derive(Debug)]
pub struct Jvm<M> {
    memory: M,
    code_cache: CodeCacheLayout,
    methods: MethodLayout,
    /// `None` where the structures of inlining are not described as they are known.
    scopes: Option<ScopeLayout>,
    /// `None` where there are no virtual threads, or nothing is known of their frames.
    continuations: Option<ContinuationLayout>,
    version: u64,
}

impl<M: Memory> Jvm<M> {
    /// Reads what the JVM says of itself: `library` is the content of the file that it is in, which is mapped `bias` bytes
    /// above the addresses in it.
    pub fn open(memory: M, library: &[u8], bias: u64) -> Result<Self, Error> {
        Self::described(memory, Symbols::of(library)?.above(bias))
    }

    /// The same where the library is not at hand: `symbol` tells where exported variables are.
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
            version,
            memory,
        })
    }

    /// Its major version, of the JDK.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Whether inlined methods and lines can be told for this version.
    const fn knows_inlining(&self) -> bool {
        self.scopes.is_some()
    }

    /// What of its names cannot be told for this version, if anything.
    #[must_use]
    pub const fn lacks(&self) -> Option<&'static str> {
        match (self.knows_inlining(), self.methods.knows_bytecode()) {
            (true, true) => None,
            (true, false) => Some("lines of interpreted methods"),
            (false, _) => Some("inlined methods and lines"),
        }
    }

    /// Where code is and can come to be, once all of it is settled: from before the JVM runs the first Java method on.
    pub fn heaps(&self) -> Result<Vec<CodeHeap>, Error> {
        codecache::heaps(&self.memory, &self.code_cache)
    }

    /// What the kernel side has to know of these heaps to unwind through code in them.
    pub fn code_cache(&self, heaps: &[CodeHeap]) -> Result<CodeCache, Error> {
        let unknown = || Error::Unknown("code that is laid out as is known".to_owned());
        self.code_cache.for_kernel(heaps).ok_or_else(unknown)
    }

    /// Where frames of virtual threads are that are on no stack; `None` before the JVM knows, where it does not tell, and where its
    /// collector does not allow to look.
    #[must_use]
    pub fn continuations(&self) -> Option<Continuations> {
        let class_name = |class| self.methods.class_name(&self.memory, class);
        self.continuations.as_ref()?.read(&self.memory, class_name)
    }

    /// Why there will be no [`Self::continuations`] with this JVM's collector, if that is so. To be asked once its flags are settled, as
    /// they are when it has [heaps](Self::heaps).
    #[must_use]
    pub fn lacks_continuations(&self) -> Option<&'static str> {
        self.continuations.as_ref()?.lacks(&self.memory)
    }

    /// The code that there is in front of a return address now.
    #[must_use]
    pub fn find(&self, heaps: &[CodeHeap], return_address: u64) -> Option<Blob> {
        self.code_cache.find(&self.memory, heaps, return_address, |at| self.memory.text(at))
    }

    /// Names methods.
    #[must_use]
    pub fn methods<'a>(&'a self, known: &'a mut KnownMethods) -> Methods<'a, M> {
        Methods::new(&self.memory, &self.methods, &self.code_cache, self.scopes.as_ref(), known)
    }
}

/// Where the variables are by which HotSpot describes itself, and those that it does not describe: addresses in the library that
/// it is in.
#[derive(Debug)]
pub struct Symbols(HashMap<String, u64>);

impl Symbols {
    /// Looks them up in the content of a library.
    pub fn of(library: &[u8]) -> Result<Self, Error> {
        let elf = ElfFile::<FileHeader64<Endianness>>::parse(library).map_err(|_| Error::NoStructs)?;
        let exported = elf
            .dynamic_symbols()
            .filter(|symbol| symbol.name_bytes().is_ok_and(|name| name.starts_with(b"gHotSpotVM")));
        let known = || variable::ALL.into_iter().chain([zgc::variable::THREAD]);
        let hidden = elf.symbols().filter(|symbol| {
            symbol.name_bytes().is_ok_and(|name| known().any(|known| known.as_bytes() == name))
        });
        let module = module_of(&elf);
        let mut symbols: HashMap<_, _> = exported
            .chain(hidden)
            .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())))
            .collect();
        if symbols.is_empty() {
            return Err(Error::NoStructs);
        }
        symbols.insert(zgc::variable::START.to_owned(), 0);
        symbols.extend(module.map(|at| (zgc::variable::MODULE.to_owned(), at)));
        Ok(Self(symbols))
    }

    /// Where they are in a process that maps the library `bias` bytes above the addresses in it.
    pub fn above(&self, bias: u64) -> impl Fn(&str) -> Option<u64> {
        move |name: &str| Some(self.0.get(name)?.wrapping_add(bias))
    }
}

/// Where the loader puts the number by which the library's thread-local variables are found (System V ABI, x86-64), if it does.
fn module_of(elf: &ElfFile<'_, FileHeader64<Endianness>>) -> Option<u64> {
    let is_own = |target| match target {
        RelocationTarget::Absolute => true,
        RelocationTarget::Symbol(index) => elf
            .dynamic_symbol_table()
            .and_then(|table| table.symbol_by_index(index).ok())
            .is_some_and(|symbol| symbol.is_local() && !symbol.is_undefined()),
        _ => false,
    };
    let is_module =
        |flags| matches!(flags, RelocationFlags::Elf { r_type } if r_type == object::elf::R_X86_64_DTPMOD64);
    let mut relocations =
        elf.dynamic_relocations().filter(|_| elf.architecture() == object::Architecture::X86_64)?;
    let found =
        relocations.find(|(_, relocation)| is_module(relocation.flags()) && is_own(relocation.target()));
    found.map(|(at, _)| at)
}
