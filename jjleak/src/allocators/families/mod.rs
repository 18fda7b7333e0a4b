//! The allocator families jjleak knows, as a table.
//!
//! In: the symbols a file *defines*, never its name, for allocators get linked into executables, renamed and
//! preloaded. Out: the families in it, and the names that their functions have there. Teaching jjleak another
//! function of a family is another row in `functions`.

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

/// Allocators that come from the same project and share its function names.
#[derive(Debug)]
pub(super) struct Family {
    /// The name users know it by.
    pub(super) name: &'static str,
    told: Told,
    /// Functions that have the family's prefix, or none, in front of their names.
    prefixed: &'static [&'static [Function]],
    /// Functions with names of their own.
    own: &'static [Function],
    /// The C++ operators that it takes the place of together with `malloc`.
    operators: &'static [Function],
}

/// How a family is told, and so which prefixes its functions have.
#[derive(Debug)]
enum Told {
    /// By any of these symbols, besides a `malloc`; its functions have no prefix.
    Marks(&'static [&'static str]),
    /// By this `malloc` with a prefix. Functions without it are the family's where `malloc` is the same code.
    Malloc { name: &'static str, prefix: &'static str },
    /// By these functions of its own, with whatever prefix it was built with.
    AnyPrefix(&'static [&'static str]),
}

/// A family that a file holds.
pub(super) struct Held {
    pub(super) family: &'static Family,
    /// The name users know the allocator by.
    pub(super) name: &'static str,
    /// What stands before the names of its functions.
    prefixes: Vec<String>,
}

/// The symbol that makes a file the owner of a process's `malloc`.
pub(super) const MALLOC: &str = "malloc";

/// The name that jemalloc's functions' prefix is read from.
pub(super) const MALLOCX: &str = "mallocx";

/// Functions inside of jemalloc behind its private namespace: of all versions since 3.0, and of builds that have none and
/// whose compiler has inlined the other one.
pub(super) const JEMALLOC_INTERNALS: &[&str] = &["je_arena_boot", "arena_malloc_hard"];

/// What a file with all of jemalloc in it defines under one prefix, in all versions since 3.5. A wrapper around `mallocx` may
/// be called `my_mallocx`; it has no reason to wrap these all.
const JEMALLOC_MARKS: &[&str] = &[MALLOCX, "nallocx", "mallctl", "mallctlnametomib", "mallctlbymib"];

/// glibc's dynamic linker. Up to glibc 2.30 it defines a malloc for its own start-up; libc's takes over before `main`.
const DYNAMIC_LINKER: &str = "_rtld_global";

/// The functions that make an allocator together. A function that other files cannot see may be called `malloc` and be
/// something else; four of them are not.
const COMPLETE: &[&str] = &[MALLOC, "calloc", "realloc", "free"];

/// The functions without which an allocator's figures are wrong.
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

/// Its `strdup` takes a block from within, and how large that is, no argument says.
static ADDRESS_SANITIZER: Family = standard("AddressSanitizer", &[STRDUP]);

/// Who has written an allocator that is in no family, by what only it defines.
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

/// What an allocator of no known maker is called.
pub(super) const UNKNOWN: &str = "an unknown allocator";

/// An allocator that is in no family: its functions are known by the names that the C and C++ standards give them.
static STANDARD: Family = standard(UNKNOWN, &[]);

const fn standard(name: &'static str, own: &'static [Function]) -> Family {
    Family { name, told: Told::Marks(&[]), prefixed: &[ZERO_FREES], own, operators: OPERATORS }
}

/// Every family, in the order in which they are tried: a function belongs to the first that claims it, and what is
/// left of a C library's stays its own.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "jemalloc",
        told: Told::AnyPrefix(JEMALLOC_MARKS),
        prefixed: &[ZERO_FREES, JEMALLOC],
        own: &[],
        operators: OPERATORS,
    },
    Family {
        // gperftools.
        name: "tcmalloc",
        told: Told::Malloc { name: "tc_malloc", prefix: "tc_" },
        prefixed: &[ZERO_FREES],
        own: TCMALLOC,
        operators: OPERATORS,
    },
    Family {
        // Google's newer one, which shares no code with it.
        name: "tcmalloc",
        told: Told::Malloc { name: "TCMallocInternalMalloc", prefix: "TCMallocInternal" },
        prefixed: &[ZERO_FREES],
        own: GOOGLE_TCMALLOC,
        operators: OPERATORS,
    },
    Family {
        name: "mimalloc",
        told: Told::Malloc { name: "mi_malloc", prefix: "mi_" },
        prefixed: &[ZERO_RESIZES],
        own: MIMALLOC,
        operators: OPERATORS,
    },
    Family {
        name: "musl",
        // The shared library (ldso/dlstart.c), then static programs (src/malloc: mallocng, oldmalloc).
        told: Told::Marks(&["_dlstart", "__libc_malloc_impl", "__bin_chunk"]),
        prefixed: &[ZERO_RESIZES],
        own: &[],
        operators: &[],
    },
    Family {
        name: "glibc",
        told: Told::Marks(&["__libc_mallopt", "gnu_get_libc_version"]),
        prefixed: &[ZERO_FREES],
        own: &[],
        operators: &[],
    },
];

/// Whether a family is a C library's own allocator.
pub(super) fn is_c_library(family: &str) -> bool {
    ["musl", "glibc"].contains(&family)
}

/// The families that a file holds. A `malloc` that none of them owns is an allocator's, whoever wrote it.
pub(super) fn held(image: &Image<'_>) -> Vec<Held> {
    if image.defines(DYNAMIC_LINKER) {
        return Vec::new();
    }
    let held = |family: &'static Family| {
        let prefixes = family.told.prefixes(image);
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

/// Whether a file has a `malloc` with the meaning that the C standard gives it. Others can bind to it by that name, or it
/// comes with all that belongs to it, as in an executable or a library that keeps its own to itself.
fn has_malloc(image: &Image<'_>) -> bool {
    image.exports(MALLOC) || COMPLETE.iter().all(|name| image.defines(name))
}

/// Every symbol name that recognizing or probing any family looks at, when jemalloc may have these prefixes.
pub(super) fn all_names(jemalloc_prefixes: &[String]) -> Vec<String> {
    let marks = FAMILIES.iter().flat_map(|family| match &family.told {
        Told::Marks(marks) => marks,
        Told::Malloc { name, .. } => slice::from_ref(name),
        Told::AnyPrefix(_) => &[],
    });
    let makers = MAKERS.iter().map(|(mark, _)| mark);
    let marks = marks.chain(makers).chain([&DYNAMIC_LINKER]).map(|&name| name.to_owned());
    let standard = Held { family: &ADDRESS_SANITIZER, name: UNKNOWN, prefixes: vec![String::new()] };
    let standard: Vec<_> = standard.functions().flat_map(|(_, names)| names).collect();
    let functions = FAMILIES.iter().flat_map(|family| {
        let prefixes = match family.told {
            Told::Marks(_) => vec![String::new()],
            Told::Malloc { prefix, .. } => vec![String::new(), prefix.to_owned()],
            Told::AnyPrefix(_) => jemalloc_prefixes.to_vec(),
        };
        let held = Held { family, name: family.name, prefixes };
        let functions = held.functions().flat_map(|(_, names)| names);
        functions.chain(held.marks()).collect::<Vec<_>>()
    });
    marks.chain(standard).chain(functions).collect()
}

impl Told {
    /// The prefixes that the family's functions have in this file; none when the file does not hold it.
    fn prefixes(&self, image: &Image<'_>) -> Vec<String> {
        match *self {
            Self::Marks(marks) => {
                let told = image.defines(MALLOC) && marks.iter().any(|mark| image.defines(mark));
                if told { vec![String::new()] } else { Vec::new() }
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

/// Whether jemalloc's internal functions, behind one of these namespaces, are those of the public functions with this
/// prefix. Linkers leave out of an executable what it does not call, and so most of the marks.
fn has_internals(prefix: &str, namespaces: &[String]) -> bool {
    // jemalloc's configure takes a namespace and a prefix. "je_" is a usual prefix, and always part of the namespace.
    let without = |name: &str| name.strip_suffix("je_").unwrap_or(name).to_owned();
    prefix.is_empty() && !namespaces.is_empty()
        || namespaces.iter().any(|known| without(known) == without(prefix))
}

/// The prefixes that jemalloc's public functions can have where its internal ones have these namespaces, when `mallocx` was
/// left out. None is none of them: whose `malloc` that is, the namespace does not say.
pub(super) fn prefixes_behind(namespaces: &[String]) -> Vec<String> {
    let bare = namespaces.iter().map(|namespace| namespace.strip_suffix("je_").unwrap_or(namespace));
    let prefixes: BTreeSet<_> = bare.flat_map(|bare| [bare.to_owned(), format!("{bare}je_")]).collect();
    prefixes.into_iter().filter(|prefix| !prefix.is_empty()).collect()
}

impl Held {
    /// Whether it is in no family, so that its functions may be those of a wrapper.
    pub(super) const fn is_unknown(&self) -> bool {
        matches!(self.family.told, Told::Marks(&[]))
    }

    /// Whether functions without a prefix are its own.
    fn owns_malloc(&self) -> bool {
        self.prefixes.iter().any(String::is_empty)
    }

    /// The symbols that give the family away under its prefixes.
    fn marks(&self) -> impl Iterator<Item = String> {
        let marks = match self.family.told {
            Told::AnyPrefix(marks) => marks,
            Told::Marks(_) | Told::Malloc { .. } => &[],
        };
        self.prefixes.iter().flat_map(|prefix| marks.iter().map(move |mark| format!("{prefix}{mark}")))
    }

    /// The family's rows, with the names that their functions may have in the file.
    pub(super) fn functions(&self) -> impl Iterator<Item = (&'static Function, Vec<String>)> {
        let prefixed = self.family.prefixed.iter().copied().flatten().map(|row| {
            let names = self
                .prefixes
                .iter()
                .flat_map(|prefix| row.names.iter().map(move |name| format!("{prefix}{name}")));
            (row, names.collect())
        });
        let operators = if self.owns_malloc() { self.family.operators } else { &[] };
        // Operators first: they are what people know them by.
        let own = operators.iter().chain(self.family.own);
        prefixed.chain(own.map(|row| (row, row.names.iter().map(|&name| name.to_owned()).collect())))
    }
}
