//! Variables of HotSpot's library.

use std::collections::HashMap;

use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{
    Endianness, Object, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget, SymbolKind,
};

use super::continuations::variable;
use super::{Error, zgc};
use crate::file_content::Content;

/// Maximum number of the library's variables: HotSpot exports 30.
const MAX_SYMBOLS: usize = 1024;

/// Variables with the sizes of metaspace: contexts of JDK 17 and later, counters of JDK 17 to 21, and
/// counters and lists of JDK 11.
pub(crate) const METASPACE_VARIABLES: [&str; 7] = [
    "_ZN9metaspace16MetaspaceContext20_class_space_contextE",
    "_ZN9metaspace16MetaspaceContext23_nonclass_space_contextE",
    "_ZN9metaspace15RunningCounters19_used_class_counterE",
    "_ZN9metaspace15RunningCounters22_used_nonclass_counterE",
    "_ZN14MetaspaceUtils11_used_wordsE",
    "_ZN9Metaspace17_class_space_listE",
    "_ZN9Metaspace11_space_listE",
];

/// Variables of Native Memory Tracking: its level, its sums of malloc and of mappings, and the names of categories until JDK 17
/// and later.
pub(crate) const NMT_VARIABLES: [&str; 5] = [
    "_ZN10MemTracker15_tracking_levelE",
    "_ZN19MallocMemorySummary9_snapshotE",
    "_ZN20VirtualMemorySummary9_snapshotE",
    "_ZN7NMTUtil18_memory_type_namesE",
    "_ZN7NMTUtil8_stringsE",
];

/// Variables with the tables of symbols and of strings in JDK 11.
pub(crate) const TABLE_VARIABLES: [&str; 2] =
    ["_ZN11SymbolTable10_the_tableE", "_ZN11StringTable10_the_tableE"];

/// The function that frees code: `CodeHeap::deallocate(void*)`.
const FREES_CODE: &str = "_ZN8CodeHeap10deallocateEPv";

/// Table of a JVM whose number of items is in a variable that other source files have, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// Names in classes.
    Symbols,
    /// Interned strings.
    Strings,
}

impl Table {
    const ALL: [Self; 2] = [Self::Symbols, Self::Strings];

    /// Name of the variable with the number of items, as [`Symbols`] knows it.
    pub(crate) const fn items(self) -> &'static str {
        match self {
            Self::Symbols => "SymbolTable: _items_count",
            Self::Strings => "StringTable: _items_count",
        }
    }

    /// Returns whether a variable is the class's own, or one of its functions'.
    fn has(self, name: &[u8]) -> bool {
        let class: &[u8] = match self {
            Self::Symbols => b"N11SymbolTable",
            Self::Strings => b"N11StringTable",
        };
        // The last one guards the variable of a function.
        let prefixes: [&[u8]; 3] = [b"_Z", b"_ZZ", b"_ZGVZ"];
        prefixes.iter().any(|prefix| name.strip_prefix(*prefix).is_some_and(|name| name.starts_with(class)))
    }
}

/// Variables of the tables' source files: a number of items, and behind it, in the next word, a number of buckets.
const ITEMS: &[u8] = b"_ZL12_items_count";
const BUCKETS: &[u8] = b"_ZL13_current_size";
/// Maximum distance of a source file's own variables from those of its class; they are 0.2 KiB apart.
const MAX_DISTANCE: u64 = 512;

type Elf<'data> = ElfFile<'data, FileHeader64<Endianness>, Content<'data>>;

/// A variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// Address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

/// Variables, at addresses within the library, with HotSpot's description, and further ones that it does not describe.
#[derive(Debug)]
pub struct Symbols(HashMap<String, Variable>);

impl Symbols {
    /// Finds the symbols in the content of a library.
    pub fn of<'data>(library: impl Into<Content<'data>>) -> Result<Self, Error> {
        let library = library.into();
        let elf = Elf::parse(library).map_err(|_| Error::NoStructs)?;
        let exported = elf
            .dynamic_symbols()
            .filter(|symbol| symbol.name_bytes().is_ok_and(|name| name.starts_with(b"gHotSpotVM")));
        let known = || {
            let names = variable::ALL.into_iter().chain([zgc::variable::THREAD]).chain(METASPACE_VARIABLES);
            names.chain(NMT_VARIABLES).chain(TABLE_VARIABLES).chain([FREES_CODE])
        };
        let hidden = elf.symbols().filter(|symbol| {
            symbol.name_bytes().is_ok_and(|name| known().any(|known| known.as_bytes() == name))
        });
        let module = module_of(&elf);
        let mut symbols: HashMap<_, _> = exported
            .chain(hidden)
            .filter_map(|symbol| {
                let variable = Variable { address: symbol.address(), size: symbol.size() };
                Some((symbol.name().ok()?.to_owned(), variable))
            })
            .take(MAX_SYMBOLS)
            .collect();
        let tables = tables(&elf);
        library.check().map_err(Error::TooCostly)?;
        if symbols.is_empty() {
            return Err(Error::NoStructs);
        }
        let mut add = |name: &str, address| {
            symbols.insert(name.to_owned(), Variable { address, size: 8 });
        };
        for (table, at) in tables {
            add(table.items(), at);
        }
        add(zgc::variable::START, 0);
        if let Some(at) = module {
            add(zgc::variable::MODULE, at);
        }
        Ok(Self(symbols))
    }

    /// The addresses in a process that maps the library with this load bias.
    pub fn above(&self, bias: u64) -> impl Fn(&str) -> Option<u64> {
        move |name: &str| Some(self.0.get(name)?.address.wrapping_add(bias))
    }

    /// Address in the library of the function that frees code; `None` if the library has no symbol for it.
    #[must_use]
    pub fn frees_code(&self) -> Option<u64> {
        Some(self.0.get(FREES_CODE)?.address)
    }

    /// The variables in a process that maps the library with this load bias.
    pub fn variables_above(&self, bias: u64) -> impl Fn(&str) -> Option<Variable> {
        move |name: &str| {
            let variable = self.0.get(name)?;
            Some(Variable { address: variable.address.wrapping_add(bias), ..*variable })
        }
    }
}

/// Addresses of the tables' numbers of items, since JDK 17. Variables of a source file lie together: the number of a table is the
/// only one behind its class's own variables that a number of buckets follows.
fn tables(elf: &Elf<'_>) -> Vec<(Table, u64)> {
    let (mut items, mut buckets) = (Vec::new(), Vec::new());
    let mut own: [Vec<u64>; 2] = Default::default();
    for symbol in elf.symbols().filter(|symbol| symbol.kind() == SymbolKind::Data) {
        let Ok(name) = symbol.name_bytes() else { continue };
        match name {
            ITEMS => items.push(symbol.address()),
            BUCKETS => buckets.push(symbol.address()),
            _ => {
                if let Some(table) = Table::ALL.iter().position(|table| table.has(name)) {
                    own[table].push(symbol.address());
                }
            }
        }
    }
    items.truncate(MAX_SYMBOLS);
    buckets.truncate(MAX_SYMBOLS);
    items.retain(|at| buckets.contains(&at.wrapping_add(8)));
    let found = Table::ALL.iter().zip(own).filter_map(|(table, own)| {
        let last = own.into_iter().max()?;
        let mut near = items.iter().filter(|at| (1..=MAX_DISTANCE).contains(&at.wrapping_sub(last)));
        let only = near.next()?;
        near.next().is_none().then_some((*table, *only))
    });
    found.collect()
}

/// Address of the relocation that holds the library's TLS module number (System V ABI, x86-64), if there is
/// one.
fn module_of(elf: &Elf<'_>) -> Option<u64> {
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
