//! Finds the allocator functions in a file and the instructions to probe in each.
//!
//! In: the bytes of an ELF file that a process maps. Out: which allocator it holds, and for a family that
//! jjleak profiles the [`ProbeSite`]s. Pure: no process and no kernel is asked.

mod families;
mod placement;
mod site;
mod symbols;
#[cfg(test)]
mod test_elf;

pub use site::{Placement, ProbeSite, Role, Stepping};

use self::{
    families::{FAMILIES, Held},
    symbols::{Function, Image},
};
use jjleak_common::cookie::Signature;
use std::ops::Range;

/// The functions by which a program maps memory itself.
const MAPPING_FUNCTIONS: &[&str] = &["mmap", "mmap64", "mremap", "sbrk", "brk"];

/// Why a file's allocator could not be looked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is no 64-bit little-endian ELF file, or a broken one.
    #[error("cannot parse it as a 64-bit ELF file")]
    Parse(#[source] object::Error),
    /// Its code is for another processor; the number is ELF's `e_machine`.
    #[error("its code is for ELF machine {0}, not x86-64")]
    Machine(u16),
    /// Its executable segments hold more bytes than the file.
    #[error("its executable segments overlap")]
    OverlappingCode,
}

/// The allocators that a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleAllocators {
    /// Those of known families.
    pub profiled: Vec<ProfiledAllocator>,
    /// Whether the file defines a `malloc` that belongs to no known family: a preloaded wrapper, say.
    pub unknown_malloc: bool,
}

/// An allocator with its probe sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfiledAllocator {
    /// The name users know it by.
    pub family: &'static str,
    /// One site a function; aliases share theirs.
    pub sites: Vec<ProbeSite>,
    /// The family's functions that cannot be probed in this file.
    pub missing: Vec<MissingFunction>,
    /// Offsets of the functions by which a program itself maps memory, where the file has them: tcmalloc takes the place of
    /// the C library's.
    pub mapping_functions: Vec<Range<u64>>,
}

impl ProfiledAllocator {
    /// Whether the code at an offset of the file is the allocator's: in one of its functions, or, where the file is a
    /// library that is there for nothing else, anywhere but in the functions by which a program itself maps memory. The
    /// allocator's functions jump to others that have no names.
    #[must_use]
    pub fn holds(&self, offset: u64, is_library: bool) -> bool {
        let distance = |site: &ProbeSite| offset.checked_sub(site.function_offset);
        let in_function = |site| distance(site).is_some_and(|distance| distance < site.function_length);
        let is_mapping = || self.mapping_functions.iter().any(|function| function.contains(&offset));
        self.sites.iter().any(in_function)
            || is_library && !families::is_c_library(self.family) && !is_mapping()
    }
}

/// A function of a family that cannot be probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingFunction {
    /// Its usual name.
    pub name: &'static str,
    /// Why not.
    pub reason: MissingReason,
}

/// Why a function cannot be probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MissingReason {
    /// No symbol has its name: older versions lack some functions.
    #[error("the file does not define it")]
    Undefined,
    /// Its symbol is an IFUNC: the code that runs is chosen at start-up and has no name.
    #[error("its symbol is resolved at run time (IFUNC)")]
    Indirect,
    /// Its symbol is data or has no type.
    #[error("its symbol is no function")]
    NoFunction,
    /// Its symbol points outside of the file's executable segments.
    #[error("its symbol points outside of the file's code")]
    OutsideCode,
    /// It shares its code with a function of another meaning.
    #[error("its code is also another function's")]
    Shared,
}

/// Finds the allocators in an ELF file, and where to probe them.
pub fn find_sites(elf: &[u8]) -> Result<ModuleAllocators, Error> {
    let names = |prefixes: &[String]| {
        let mapping = MAPPING_FUNCTIONS.iter().map(|name| (*name).to_owned());
        families::all_names(prefixes).into_iter().chain(mapping).collect()
    };
    let image = Image::parse(elf, families::MALLOCX, names)?;
    let mut located = Vec::new();
    let mut found = Vec::new();
    for held in families::held(&image) {
        let first = located.len();
        let missing = locate(&image, &held, &mut located);
        found.push((held.family.name, first..located.len(), missing));
    }
    // What is known of one allocator's code helps to prove the sites of all.
    let ranges: Vec<_> = located.iter().map(|located| located.function.range()).collect();
    let sealed = placement::sealed_against(image.code(), &ranges);
    let mapping_functions = mapping_functions(&image);
    let mut sites = located.into_iter().zip(sealed).map(|(found, sealed)| found.place(sealed));
    let profiled = found.into_iter().map(|(family, located, missing)| ProfiledAllocator {
        family,
        sites: sites.by_ref().take(located.len()).collect(),
        missing,
        mapping_functions: mapping_functions.clone(),
    });
    let profiled: Vec<_> = profiled.filter(|allocator| !allocator.sites.is_empty()).collect();
    let unknown_malloc = profiled.is_empty() && families::replaces_malloc(&image);
    Ok(ModuleAllocators { profiled, unknown_malloc })
}

/// The names of all families that [`find_sites`] knows.
pub fn profiled_families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// Where the functions are by which a program maps memory.
fn mapping_functions(image: &Image<'_>) -> Vec<Range<u64>> {
    let definitions = MAPPING_FUNCTIONS.iter().flat_map(|name| image.definitions(name));
    let functions = definitions.filter_map(|definition| image.function(*definition).ok());
    functions.map(|function| function.offset..function.offset + function.body.bytes().len() as u64).collect()
}

/// A function with all its names, before its probe site is chosen.
struct Located<'data> {
    names: Vec<String>,
    role: Role,
    signature: Signature,
    function: Function<'data>,
}

/// Adds the functions of a family to `located`, but for those that another one has claimed. Returns what cannot be
/// probed.
fn locate<'data>(
    image: &Image<'data>,
    held: &Held,
    located: &mut Vec<Located<'data>>,
) -> Vec<MissingFunction> {
    let mut missing = Vec::new();
    for (row, names) in held.functions() {
        if let Err(reason) = locate_row(image, row, &names, located) {
            missing.push(MissingFunction { name: row.names[0], reason });
        }
    }
    missing
}

impl Located<'_> {
    fn place(self, sealed: u64) -> ProbeSite {
        let Self { names, role, signature, function } = self;
        let function_length = function.body.bytes().len() as u64;
        let placement = placement::place(function.body, role, signature, sealed);
        ProbeSite { names, role, signature, placement, function_offset: function.offset, function_length }
    }
}

/// Adds the row's functions to `located`, or its names to the ones that are there at the same address.
/// Fails when not one of its names can be probed.
fn locate_row<'data>(
    image: &Image<'data>,
    row: &families::Function,
    names: &[String],
    located: &mut Vec<Located<'data>>,
) -> Result<(), MissingReason> {
    let mut added = false;
    let mut reason = MissingReason::Undefined;
    for name in names {
        for &symbol in image.definitions(name) {
            match image.function(symbol).and_then(|function| add(function, name, row, located)) {
                Ok(()) => added = true,
                Err(why_not) => reason = why_not,
            }
        }
    }
    if added { Ok(()) } else { Err(reason) }
}

fn add<'data>(
    function: Function<'data>,
    name: &str,
    row: &families::Function,
    located: &mut Vec<Located<'data>>,
) -> Result<(), MissingReason> {
    let &families::Function { role, signature, .. } = row;
    let Some(known) = located.iter_mut().find(|known| known.function.address == function.address) else {
        located.push(Located { names: vec![name.to_owned()], role, signature, function });
        return Ok(());
    };
    if (known.role, known.signature) != (role, signature) {
        return Err(MissingReason::Shared);
    }
    if !known.names.iter().any(|known| known == name) {
        known.names.push(name.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
