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
    families::{FAMILIES, Support},
    symbols::{Function, Image},
};
use jjleak_common::cookie::Signature;

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

/// The allocator that a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModuleAllocator {
    /// A family that jjleak profiles.
    Profiled(ProfiledAllocator),
    /// A family that jjleak knows by name only.
    Unsupported {
        /// The name users know it by.
        family: &'static str,
        /// Whether it takes the place of the C library's `malloc`, or stands beside it under own names.
        replaces_malloc: bool,
    },
    /// The file defines `malloc` and `free`, but belongs to no known family: a preloaded wrapper, say.
    Unknown,
    /// The file holds no allocator.
    Absent,
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

/// Finds the allocator in an ELF file, and where to probe it.
pub fn find_sites(elf: &[u8]) -> Result<ModuleAllocator, Error> {
    let image = Image::parse(elf, families::all_names())?;
    let defines_malloc = families::MALLOC.iter().all(|name| image.defines(name));
    let Some(family) = families::recognize(|name| image.defines(name)) else {
        return Ok(if defines_malloc { ModuleAllocator::Unknown } else { ModuleAllocator::Absent });
    };
    Ok(match family.support {
        Support::Profiled(functions) => {
            ModuleAllocator::Profiled(ProfiledAllocator::locate(&image, family.name, functions))
        }
        Support::Unsupported => {
            ModuleAllocator::Unsupported { family: family.name, replaces_malloc: defines_malloc }
        }
        Support::Ignored => ModuleAllocator::Absent,
    })
}

/// The names of all families that [`find_sites`] can profile.
pub fn profiled_families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().filter(|family| matches!(family.support, Support::Profiled(_))).map(|family| family.name)
}

/// A function with all its names, before its probe site is chosen.
struct Located<'data> {
    names: Vec<String>,
    role: Role,
    signature: Signature,
    function: Function<'data>,
}

impl ProfiledAllocator {
    fn locate(image: &Image<'_>, family: &'static str, functions: &[families::Function]) -> Self {
        let mut located = Vec::new();
        let mut missing = Vec::new();
        for row in functions {
            if let Err(reason) = locate_row(image, row, &mut located) {
                missing.push(MissingFunction { name: row.names[0], reason });
            }
        }
        let ranges: Vec<_> = located.iter().map(|found| found.function.range()).collect();
        let sealed = placement::sealed_against(image.code(), &ranges);
        let sites = located.into_iter().zip(sealed).map(|(found, sealed)| found.place(sealed)).collect();
        Self { family, sites, missing }
    }
}

impl Located<'_> {
    fn place(self, sealed: u64) -> ProbeSite {
        let Self { names, role, signature, function } = self;
        let placement = placement::place(function.body, role, signature, sealed);
        ProbeSite { names, role, signature, placement, function_offset: function.offset }
    }
}

/// Adds the row's functions to `located`, or its names to the ones that are there at the same address.
/// Fails when not one of its names can be probed.
fn locate_row<'data>(
    image: &Image<'data>,
    row: &families::Function,
    located: &mut Vec<Located<'data>>,
) -> Result<(), MissingReason> {
    let mut added = false;
    let mut reason = MissingReason::Undefined;
    for name in row.names {
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
