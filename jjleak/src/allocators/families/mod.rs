//! Table of the known allocator families.
//!
//! In: the symbols that a file *defines*, never its name: allocators are linked into executables, renamed and preloaded. Out: the
//! families in the file, and the names of their functions there. To support another function of a family, add a row in
//! `functions`.

mod functions;
mod mimalloc;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use functions::SIZE_FIRST;
pub(super) use functions::{Function, NOTHING, ZERO_FREES as C_FUNCTIONS};

use std::{collections::BTreeSet, slice};

use super::symbols::{Image, Prefixes};
use functions::{GOOGLE_TCMALLOC, JEMALLOC, OPERATORS, STRDUP, TCMALLOC, ZERO_FREES, ZERO_RESIZES};
use mimalloc::MIMALLOC;

/// Allocators from the same project, with the same function names.
#[derive(Debug)]
pub(super) struct Family {
    /// The name that users know it by.
    pub(super) name: &'static str,
    evidence: Evidence,
    /// Functions with the family's prefix, or with none.
    prefixed: &'static [&'static [Function]],
    /// Functions with names of their own.
    own: &'static [Function],
    /// The C++ operators that it replaces together with `malloc`.
    operators: &'static [Function],
}

/// Evidence that a file contains a family, which determines the prefixes of its functions.
#[derive(Debug)]
enum Evidence {
    /// By any of these symbols, together with a `malloc`; its functions have no prefix.
    Marks(&'static [&'static str]),
    /// By this `malloc` with a prefix. Functions without the prefix belong to the family if `malloc` is the same code.
    Malloc { name: &'static str, prefix: &'static str },
    /// By these functions of its own, with any prefix set at build time.
    AnyPrefix(&'static [&'static str]),
}

/// A family in a file.
pub(super) struct Held {
    pub(super) family: &'static Family,
    /// The name that users know the allocator by.
    pub(super) name: &'static str,
    /// Prefixes of its functions.
    prefixes: Vec<String>,
}

/// The symbol that makes a file the owner of a process's `malloc`.
pub(super) const MALLOC: &str = "malloc";

/// The function whose name reveals the prefix of jemalloc's functions.
pub(super) const MALLOCX: &str = "mallocx";

/// Functions of jemalloc in its private namespace. The first is in all versions since 3.0; the second is in builds without a
/// namespace in which the compiler has inlined the first.
pub(super) const JEMALLOC_INTERNALS: &[&str] = &["je_arena_boot", "arena_malloc_hard"];

/// Functions that a complete jemalloc defines under one prefix, in all versions since 3.5. A wrapper around `mallocx` may be
/// named `my_mallocx`, but has no reason to wrap all of these.
const JEMALLOC_MARKS: &[&str] = &[MALLOCX, "nallocx", "mallctl", "mallctlnametomib", "mallctlbymib"];

/// A symbol of glibc's dynamic linker. Up to glibc 2.30 the linker defines a malloc for its own start-up; the malloc of libc
/// replaces it before `main`.
const DYNAMIC_LINKER: &str = "_rtld_global";

/// The functions that form a complete allocator. A function that other files cannot see may be named `malloc` and be something
/// else; all four together are an allocator.
const COMPLETE: &[&str] = &[MALLOC, "calloc", "realloc", "free"];

/// Functions whose absence makes the figures of an allocator wrong.
pub(super) const ESSENTIAL: &[&str] = &[
    MALLOC,
    "calloc",
    "realloc",
    "reallocarray",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "free",
];

/// The `strdup` of `AddressSanitizer` allocates internally, and no argument contains the size.
static ADDRESS_SANITIZER: Family = standard("AddressSanitizer", &[STRDUP]);

/// Names of allocators outside the families, by a symbol that only they define.
const MAKERS: &[(&str, &str)] = &[
    ("__asan_init", "AddressSanitizer"),
    ("__hwasan_init", "HWAddressSanitizer"),
    ("__tsan_init", "ThreadSanitizer"),
    ("__msan_init", "MemorySanitizer"),
    ("__lsan_init", "LeakSanitizer"),
    ("__scudo_get_region_info_addr", "scudo"),
    ("_ZN8snmalloc5errorEPKc", "snmalloc"),
    ("rpmalloc_initialize", "rpmalloc"),
    ("moz_arena_malloc", "mozjemalloc"),
];

/// Name of an unidentified allocator.
pub(super) const UNKNOWN: &str = "an unknown allocator";

/// An allocator outside the families, with the function names of the C and C++ standards.
static STANDARD: Family = standard(UNKNOWN, &[]);

const fn standard(name: &'static str, own: &'static [Function]) -> Family {
    Family { name, evidence: Evidence::Marks(&[]), prefixed: &[ZERO_FREES], own, operators: OPERATORS }
}

/// All families, in the order in which they are tried: a function belongs to the first family that claims it; the C library keeps
/// the rest.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "jemalloc",
        evidence: Evidence::AnyPrefix(JEMALLOC_MARKS),
        prefixed: &[ZERO_FREES, JEMALLOC],
        own: &[],
        operators: OPERATORS,
    },
    Family {
        // gperftools.
        name: "tcmalloc",
        evidence: Evidence::Malloc { name: "tc_malloc", prefix: "tc_" },
        prefixed: &[ZERO_FREES],
        own: TCMALLOC,
        operators: OPERATORS,
    },
    Family {
        // Google's newer one, which shares no code with gperftools.
        name: "tcmalloc",
        evidence: Evidence::Malloc { name: "TCMallocInternalMalloc", prefix: "TCMallocInternal" },
        prefixed: &[ZERO_FREES],
        own: GOOGLE_TCMALLOC,
        operators: OPERATORS,
    },
    Family {
        name: "mimalloc",
        evidence: Evidence::Malloc { name: "mi_malloc", prefix: "mi_" },
        prefixed: &[ZERO_RESIZES],
        own: MIMALLOC,
        operators: OPERATORS,
    },
    Family {
        name: "musl",
        // The shared library (ldso/dlstart.c), then static programs (src/malloc: mallocng, oldmalloc).
        evidence: Evidence::Marks(&["_dlstart", "__libc_malloc_impl", "__bin_chunk"]),
        prefixed: &[ZERO_RESIZES],
        own: &[],
        operators: &[],
    },
    Family {
        name: "glibc",
        evidence: Evidence::Marks(&["__libc_mallopt", "gnu_get_libc_version"]),
        prefixed: &[ZERO_FREES],
        own: &[],
        operators: &[],
    },
];

/// Returns true if the family is a C library's own allocator.
pub(super) fn is_c_library(family: &str) -> bool {
    ["musl", "glibc"].contains(&family)
}

/// The families in a file. A `malloc` outside all of them is an allocator of another maker.
pub(super) fn held(image: &Image<'_>) -> Vec<Held> {
    if image.defines(DYNAMIC_LINKER) {
        return Vec::new();
    }
    let held = |family: &'static Family| {
        let prefixes = family.evidence.prefixes(image);
        (!prefixes.is_empty()).then_some(Held { family, name: family.name, prefixes })
    };
    let mut held: Vec<_> = FAMILIES.iter().filter_map(held).collect();
    if !held.iter().any(Held::owns_malloc) && has_malloc(image) {
        let maker = MAKERS.iter().find(|(mark, _)| image.defines(mark));
        let name = maker.map_or(UNKNOWN, |(_, name)| name);
        let family = if name == ADDRESS_SANITIZER.name { &ADDRESS_SANITIZER } else { &STANDARD };
        held.push(Held { family, name, prefixes: vec![String::new()] });
    }
    held
}

/// Returns true if the file has a `malloc` as defined by the C standard: other files can bind to it by name, or all functions of
/// a complete allocator are present, as in an executable or in a library that does not export them.
fn has_malloc(image: &Image<'_>) -> bool {
    image.exports(MALLOC) || COMPLETE.iter().all(|name| image.defines(name))
}

/// All symbol names needed to recognize or probe a family, given the possible prefixes of jemalloc.
pub(super) fn all_names(jemalloc_prefixes: &[String]) -> Vec<String> {
    let marks = FAMILIES.iter().flat_map(|family| match &family.evidence {
        Evidence::Marks(marks) => marks,
        Evidence::Malloc { name, .. } => slice::from_ref(name),
        Evidence::AnyPrefix(_) => &[],
    });
    let makers = MAKERS.iter().map(|(mark, _)| mark);
    let marks = marks.chain(makers).chain([&DYNAMIC_LINKER]).map(|&name| name.to_owned());
    let standard = Held { family: &ADDRESS_SANITIZER, name: UNKNOWN, prefixes: vec![String::new()] };
    let standard: Vec<_> = standard.functions().flat_map(|(_, names)| names).collect();
    let functions = FAMILIES.iter().flat_map(|family| {
        let prefixes = match family.evidence {
            Evidence::Marks(_) => vec![String::new()],
            Evidence::Malloc { prefix, .. } => vec![String::new(), prefix.to_owned()],
            Evidence::AnyPrefix(_) => jemalloc_prefixes.to_vec(),
        };
        let held = Held { family, name: family.name, prefixes };
        let functions = held.functions().flat_map(|(_, names)| names);
        functions.chain(held.marks()).collect::<Vec<_>>()
    });
    marks.chain(standard).chain(functions).collect()
}

impl Evidence {
    /// Prefixes of the family's functions in this file; empty if the file does not contain the family.
    fn prefixes(&self, image: &Image<'_>) -> Vec<String> {
        match *self {
            Self::Marks(marks) => {
                let is_here = image.defines(MALLOC) && marks.iter().any(|mark| image.defines(mark));
                if is_here { vec![String::new()] } else { Vec::new() }
            }
            Self::Malloc { name, prefix } => {
                let prefixes = [(MALLOC, ""), (name, prefix)];
                let is_own = |&(malloc, _): &(&str, &str)| image.same_code(malloc, name);
                prefixes.into_iter().filter(is_own).map(|(_, prefix)| prefix.to_owned()).collect()
            }
            Self::AnyPrefix(marks) => {
                let Prefixes { of_api, of_internals } = image.prefixes();
                let is_held = |prefix: &&String| {
                    marks.iter().all(|mark| image.defines(&format!("{prefix}{mark}")))
                        || has_internals(prefix, of_internals)
                };
                let whole = of_api.iter().filter(is_held);
                let reduced = prefixes_behind(of_internals).into_iter().filter(|prefix| {
                    [MALLOC, "free"].iter().all(|name| image.defines(&format!("{prefix}{name}")))
                });
                let all: BTreeSet<_> = whole.cloned().chain(reduced).collect();
                all.into_iter().collect()
            }
        }
    }
}

/// Returns true if jemalloc's internal functions in one of these namespaces belong to the public functions with this prefix.
/// Linkers drop functions that an executable does not call, and thereby most of the marks.
fn has_internals(prefix: &str, namespaces: &[String]) -> bool {
    // jemalloc's configure takes a namespace and a prefix. "je_" is a usual prefix, and always part of the namespace.
    let without = |name: &str| name.strip_suffix("je_").unwrap_or(name).to_owned();
    prefix.is_empty() && !namespaces.is_empty()
        || namespaces.iter().any(|known| without(known) == without(prefix))
}

/// Possible prefixes of jemalloc's public functions, given the namespaces of its internal ones, if `mallocx` was dropped. The
/// empty prefix is excluded: the namespace does not show which allocator owns `malloc`.
pub(super) fn prefixes_behind(namespaces: &[String]) -> Vec<String> {
    let bare = namespaces.iter().map(|namespace| namespace.strip_suffix("je_").unwrap_or(namespace));
    let prefixes: BTreeSet<_> = bare.flat_map(|bare| [bare.to_owned(), format!("{bare}je_")]).collect();
    prefixes.into_iter().filter(|prefix| !prefix.is_empty()).collect()
}

impl Held {
    /// Returns true if it is in no family: its functions may be those of a wrapper.
    pub(super) const fn is_unknown(&self) -> bool {
        matches!(self.family.evidence, Evidence::Marks(&[]))
    }

    /// Returns true if functions without a prefix belong to it.
    fn owns_malloc(&self) -> bool {
        self.prefixes.iter().any(String::is_empty)
    }

    /// The symbols that identify the family under its prefixes.
    fn marks(&self) -> impl Iterator<Item = String> {
        let marks = match self.family.evidence {
            Evidence::AnyPrefix(marks) => marks,
            Evidence::Marks(_) | Evidence::Malloc { .. } => &[],
        };
        self.prefixes.iter().flat_map(|prefix| marks.iter().map(move |mark| format!("{prefix}{mark}")))
    }

    /// The family's rows, each with the possible names of its functions in the file.
    pub(super) fn functions(&self) -> impl Iterator<Item = (&'static Function, Vec<String>)> {
        let prefixed = self.family.prefixed.iter().copied().flatten().map(|row| {
            let names = self
                .prefixes
                .iter()
                .flat_map(|prefix| row.names.iter().map(move |name| format!("{prefix}{name}")));
            (row, names.collect())
        });
        let operators = if self.owns_malloc() { self.family.operators } else { &[] };
        // Operators first: users know the functions by these names.
        let own = operators.iter().chain(self.family.own);
        prefixed.chain(own.map(|row| (row, row.names.iter().map(|&name| name.to_owned()).collect())))
    }
}
