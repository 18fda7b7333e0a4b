//! Finds the allocator functions in a file and the instructions to probe in each.
//!
//! In: the bytes of an ELF file that a process maps. Out: the allocators in the file, with [`ProbeSite`]s for the families that
//! jjleak profiles. Pure: reads neither the process nor the kernel.

mod cut;
mod exits;
mod families;
mod hidden;
mod inside;
mod located;
mod mini_debug;
mod named;
mod placement;
mod samples;
mod site;
mod symbol_table;
mod symbols;
#[cfg(test)]
mod test_elf;

pub use exits::Unproven;
pub use named::{
    JAVA_HEAP, NamedAllocator, NamedFunction, OLDEST_JDK_WITH_HEAP, Place, TableError, is_file,
    java_heap_sites,
};
pub use samples::sample_sites;
pub use site::{Placement, ProbePoint, ProbeSite, Role, SampleProbe, Stepping};

use self::{
    exits::{Follower, FunctionExits, NO_RETURN},
    families::FAMILIES,
    hidden::hidden,
    inside::probe_inside,
    located::{Located, locate, locate_named},
    symbols::{Described, Function, Image, Prefixes},
};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::{self, Display, Formatter};
use std::ops::Range;

use crate::file_content::{Content, TooCostly};

/// Functions with which a program maps memory directly.
const MAPPING_FUNCTIONS: &[&str] = &["mmap", "mmap64", "mremap", "sbrk", "brk"];

/// A file that cannot be searched for allocators.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not 64-bit little-endian ELF, or is broken.
    #[error("cannot parse it as a 64-bit ELF file")]
    Parse(#[source] object::Error),
    /// The code is for another processor; the number is ELF's `e_machine`.
    #[error("its code is for ELF machine {0}, not x86-64")]
    Machine(u16),
    /// The executable segments hold more bytes than the file.
    #[error("its executable segments overlap")]
    OverlappingCode,
    /// The file has more executable segments than linkers create.
    #[error("it has too many executable segments")]
    ManySegments,
    /// The file takes more memory or time than any program.
    #[error(transparent)]
    TooCostly(#[from] TooCostly),
}

/// The allocators in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleAllocators {
    /// Allocators that can be followed.
    pub profiled: Vec<ProfiledAllocator>,
    /// Allocators and functions that cannot be followed: their allocations are missing.
    pub unfollowed: Vec<Unfollowed>,
    /// True if the file is an executable without a symbol table: a debug file can supply one.
    pub stripped: bool,
}

/// Input about a file besides its content.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hints<'a> {
    /// Allocators named by the user that the file may contain.
    pub named: &'a [&'a NamedAllocator],
    /// Content of the separate debug file.
    pub debug_file: Option<Content<'a>>,
    /// Method of following calls of the functions.
    pub following: CallFollowing,
}

/// Method of following calls of allocation functions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CallFollowing {
    /// With single probes inside a function where they provably see every call; elsewhere with entry and return probes.
    #[default]
    Inside,
    /// With entry and return probes on every function.
    EntryAndReturn,
}

/// An allocator with its probe sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfiledAllocator {
    /// The name that users know it by.
    pub family: String,
    /// One site per function; aliases share theirs. Sites at which functions return come first.
    pub sites: Vec<ProbeSite>,
    /// Functions of the family that cannot be probed in this file.
    pub missing: Vec<MissingFunction>,
    /// Offsets of the functions with which a program maps memory directly, if the file defines them: tcmalloc replaces those of
    /// the C library.
    pub mapping_functions: Vec<Range<u64>>,
}

impl ProfiledAllocator {
    /// Returns true if the code at a file offset belongs to the allocator: code of its known functions; in a library that serves
    /// no other purpose, all code except the functions with which a program maps memory directly. Known functions jump to others
    /// without names.
    #[must_use]
    pub fn holds(&self, offset: u64, is_library: bool) -> bool {
        let distance = |site: &ProbeSite| offset.checked_sub(site.function_offset);
        let in_function =
            |site: &ProbeSite| distance(site).is_some_and(|distance| distance < site.function_length);
        let is_mapping = || self.mapping_functions.iter().any(|function| function.contains(&offset));
        self.sites.iter().any(in_function)
            || is_library && !families::is_c_library(&self.family) && !is_mapping()
    }
}

impl ProfiledAllocator {
    /// Returns true if this is the C library's allocator: the blocks that its own code frees are blocks that it kept for itself.
    #[must_use]
    pub fn is_c_library(&self) -> bool {
        families::is_c_library(&self.family)
    }

    /// One site of each function.
    pub fn functions(&self) -> impl Iterator<Item = &ProbeSite> {
        let mut seen = HashSet::new();
        self.sites
            .iter()
            .filter(move |site| site.point != ProbePoint::Exit && seen.insert(site.function_offset))
    }
}

/// A function of a family that cannot be probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingFunction {
    /// The usual name.
    pub name: String,
    /// The reason.
    pub reason: MissingReason,
}

/// An allocator that cannot be followed, or a single such function that any program may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfollowed {
    /// A function with an unusable symbol.
    Function(MissingFunction),
    /// A whole allocator: the file contains its messages, but no symbols for its functions.
    Hidden(&'static str),
}

impl Display for Unfollowed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(MissingFunction { name, reason }) => write!(f, "{name}: {reason}"),
            Self::Hidden(family) => write!(f, "{family}: the file has no symbols for its functions"),
        }
    }
}

/// Reason why a function cannot be probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MissingReason {
    /// No symbol has this name: older versions lack some functions.
    #[error("the file does not define it")]
    Undefined,
    /// The symbol is an IFUNC: the code that runs is selected at start-up and has no name.
    #[error("its symbol is resolved at run time (IFUNC)")]
    Indirect,
    /// The symbol is data or has no type.
    #[error("its symbol is not a function")]
    NoFunction,
    /// The symbol points outside the file's executable segments.
    #[error("its symbol points outside the file's code")]
    OutsideCode,
    /// The function shares its code with a function of another meaning.
    #[error("it shares its code with another function")]
    Shared,
    /// The arguments of a probe have operands that jjleak cannot read.
    #[error("its arguments are described by operands that jjleak cannot read")]
    Descriptor,
    /// The probe is of another version of the contract.
    #[error("jjleak knows the probes alloc and free only")]
    OtherContract,
    /// A sampler has probes of allocations only.
    #[error("the sampler announces no frees: all that it samples counts as live")]
    NoFrees,
    /// The probe's semaphore is in no loaded segment.
    #[error("its semaphore is outside the file's data")]
    Semaphore,
    /// The file has more probes of this kind than any sampler.
    #[error("the file has too many of them")]
    ManyProbes,
    /// The exits of the function are unknown: its calls are counted, its blocks are not.
    #[error("its calls are not followed: {0}")]
    Unproven(Unproven),
}

/// Finds the allocators in an ELF file and their probe sites: first those named by the user, then the known families.
pub fn find_sites<'data>(
    elf: impl Into<Content<'data>>,
    hints: Hints<'_>,
) -> Result<ModuleAllocators, Error> {
    let Hints { named, debug_file, following } = hints;
    let elf = elf.into();
    let is_affordable = || elf.check().and_then(|()| debug_file.map_or(Ok(()), Content::check));
    let names = |prefixes: &Prefixes| {
        let no_return = NO_RETURN.iter().map(|&name| name.to_owned());
        let named = named.iter().flat_map(|allocator| &allocator.functions);
        let named = named.flat_map(|function| function.names().iter().cloned());
        let mapping = MAPPING_FUNCTIONS.iter().map(|&name| name.to_owned());
        let prefixes: Vec<_> = prefixes
            .of_api
            .iter()
            .cloned()
            .chain(families::prefixes_behind(&prefixes.of_internals))
            .collect();
        families::all_names(&prefixes).into_iter().chain(no_return).chain(mapping).chain(named).collect()
    };
    let image = Image::parse(elf, debug_file, families::MALLOCX, families::JEMALLOC_INTERNALS, names);
    // A file that can no longer be read looks damaged, or as if it had fewer symbols.
    is_affordable()?;
    let image = image?;
    let mapping_functions = mapping_functions(&image);
    let mut located = Vec::new();
    let mut found = Vec::new();
    for allocator in named {
        let missing = locate_named(&image, allocator, found.len(), &mut located);
        found.push(ProfiledAllocator {
            family: allocator.name.clone(),
            sites: Vec::new(),
            missing,
            mapping_functions: mapping_functions.clone(),
        });
    }
    let mut unfollowed = Vec::new();
    for held in families::held(&image) {
        let missing = locate(&image, &held, found.len(), &mut located);
        unfollowed
            .extend(missing.iter().filter(|function| is_loss(function)).cloned().map(Unfollowed::Function));
        found.push(ProfiledAllocator {
            family: held.name.to_owned(),
            sites: Vec::new(),
            missing,
            mapping_functions: mapping_functions.clone(),
        });
    }
    let exits = resolve_ends(&image, &mut located, &mut found);
    for (allocator, site) in exits {
        found[allocator].sites.push(site);
    }
    if following == CallFollowing::Inside {
        probe_inside(&image, &mut located, &mut found);
    }
    // The known code of each allocator helps to prove the sites of all.
    let ranges: Vec<_> = located.iter().map(|located| located.function.range()).collect();
    let mut sealed = placement::Sealed::new(&ranges);
    // Most files contain no allocator, and some of them much code.
    let is_known = ranges.is_empty() || image.visit_code(|address, code| sealed.restrict(address, code));
    let sealed = if is_known { sealed.lengths } else { vec![0; ranges.len()] };
    for (located, sealed) in located.into_iter().zip(sealed) {
        found[located.allocator].sites.push(located.place(sealed));
    }
    found.retain(|allocator| !allocator.sites.is_empty());
    let families: Vec<_> = found.iter().map(|allocator| allocator.family.as_str()).collect();
    unfollowed.extend(hidden(&image, &families));
    is_affordable()?;
    Ok(ModuleAllocators { profiled: found, unfollowed, stripped: image.is_stripped_executable() })
}

/// Returns true if allocations or frees are missing when the function cannot be probed: the file defines it, other files can call
/// it, and no other function of the table does the same.
fn is_loss(function: &MissingFunction) -> bool {
    let is_there = !matches!(function.reason, MissingReason::Undefined | MissingReason::Shared);
    is_there && families::ESSENTIAL.contains(&function.name.as_str())
}

/// Finds the exits of functions that may throw, and drops functions that only call another. Returns the exits, each with the
/// index of its allocator.
fn resolve_ends(
    image: &Image<'_>,
    located: &mut Vec<Located<'_>>,
    found: &mut [ProfiledAllocator],
) -> Vec<(usize, ProbeSite)> {
    if !located.iter().any(|it| it.may_pass_on || it.role == Role::AllocateOrThrow) {
        return Vec::new();
    }
    let follower = Follower::new(image);
    merge_aliases(&follower, located);
    let entries = |located: &[Located<'_>], wanted: fn(Role) -> bool| -> HashSet<u64> {
        located.iter().filter(|it| wanted(it.role)).map(|it| it.function.address).collect()
    };
    let frees = entries(located, |role| role == Role::Free);
    located.retain(|it| {
        let passes_on = |exits: FunctionExits| !exits.known.is_empty() || exits.leaves_file;
        !it.may_pass_on || !follower.exits(it.function.address, &frees).is_ok_and(passes_on)
    });
    let accounted = entries(located, Role::accounts_allocation);
    let mut returns: BTreeMap<u64, (usize, Vec<String>)> = BTreeMap::new();
    let mut described = None;
    for it in located.iter_mut().filter(|it| it.role == Role::AllocateOrThrow) {
        match follower.exits(it.function.address, &accounted) {
            Ok(exits) if !exits.leaves_file => {
                for at in exits.returns {
                    let (_, names) = returns.entry(at).or_insert_with(|| (it.allocator, Vec::new()));
                    names.extend(it.names.iter().cloned());
                }
            }
            _ if it.promises_not_to_throw()
                && !is_described(
                    described.get_or_insert_with(|| image.described()).as_deref(),
                    &it.function,
                ) =>
            {
                it.role = Role::Allocate;
            }
            unproven => {
                it.role = Role::UnseenAllocation;
                let reason = MissingReason::Unproven(unproven.err().unwrap_or(Unproven::LeavesFile));
                found[it.allocator].missing.push(MissingFunction { name: it.names[0].clone(), reason });
            }
        }
    }
    let site = |(at, (allocator, names))| Some((allocator, exit_site(image, at, names)?));
    returns.into_iter().filter_map(site).collect()
}

/// Returns true if call frame information covers the function: exceptions cannot unwind through a function without it. True if it
/// is unknown.
fn is_described(described: Option<&[Described]>, function: &Function<'_>) -> bool {
    described.is_none_or(|all| all.iter().any(|known| known.addresses.contains(&function.address)))
}

/// The probe site of a return instruction.
fn exit_site(image: &Image<'_>, address: u64, names: Vec<String>) -> Option<ProbeSite> {
    Some(ProbeSite {
        names,
        point: ProbePoint::Exit,
        signature: families::NOTHING,
        placement: Placement { delta: 0, cfa_words: 1, stepping: Stepping::SingleStep, inside: None },
        function_offset: image.offset_of(address)?,
        function_length: 1,
        sample: None,
    })
}

/// Merges each function that consists of a jump to another of the same meaning into its target.
fn merge_aliases(follower: &Follower<'_, '_>, located: &mut Vec<Located<'_>>) {
    let mut index = 0;
    while index < located.len() {
        let it = &located[index];
        let target = follower.alias_of(it.function.address).filter(|target| *target != it.function.address);
        let same = |other: &Located<'_>| {
            target == Some(other.function.address) && (other.role, other.signature) == (it.role, it.signature)
        };
        let Some(target) = located.iter().position(same) else {
            index += 1;
            continue;
        };
        let names = located[index].names.clone();
        let known: BTreeSet<_> = located[target].names.iter().cloned().collect();
        located[target].names.extend(names.into_iter().filter(|name| !known.contains(name)));
        located.remove(index);
    }
}

/// Names of all families that [`find_sites`] knows.
pub fn profiled_families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// File ranges of the functions with which a program maps memory directly.
fn mapping_functions(image: &Image<'_>) -> Vec<Range<u64>> {
    let definitions = MAPPING_FUNCTIONS.iter().flat_map(|name| image.definitions(name));
    let functions = definitions.filter_map(|definition| image.function(*definition).ok());
    functions.map(|function| function.offset..function.offset + function.body.bytes().len() as u64).collect()
}

#[cfg(test)]
mod tests;
