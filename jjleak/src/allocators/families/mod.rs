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

use std::slice;

use super::symbols::Image;
use functions::{GOOGLE_TCMALLOC, JEMALLOC, OPERATORS, TCMALLOC, ZERO_FREES, ZERO_RESIZES};
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
    /// What stands before the names of its functions.
    prefixes: Vec<String>,
}

/// The symbol that makes a file the owner of a process's `malloc`.
pub(super) const MALLOC: &str = "malloc";

/// The name that jemalloc's functions' prefix is read from.
pub(super) const MALLOCX: &str = "mallocx";

/// A function inside of jemalloc, in all versions since 3.0, behind its private namespace.
pub(super) const JEMALLOC_INTERNAL: &str = "je_arena_boot";

/// What a file with all of jemalloc in it defines under one prefix, in all versions since 3.5. A wrapper around `mallocx` may
/// be called `my_mallocx`; it has no reason to wrap these all.
const JEMALLOC_MARKS: &[&str] = &[MALLOCX, "nallocx", "mallctl", "mallctlnametomib", "mallctlbymib"];

/// glibc's dynamic linker. Up to glibc 2.30 it defines a malloc for its own start-up; libc's takes over before `main`.
const DYNAMIC_LINKER: &str = "_rtld_global";

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

/// Whether the file's `malloc` takes the place of the C library's.
pub(super) fn replaces_malloc(image: &Image<'_>) -> bool {
    image.exports(MALLOC) && image.exports("free") && !image.defines(DYNAMIC_LINKER)
}

/// The families that a file holds.
pub(super) fn held(image: &Image<'_>) -> Vec<Held> {
    if image.defines(DYNAMIC_LINKER) {
        return Vec::new();
    }
    let held = |family: &'static Family| {
        let prefixes = family.told.prefixes(image);
        (!prefixes.is_empty()).then_some(Held { family, prefixes })
    };
    FAMILIES.iter().filter_map(held).collect()
}

/// Every symbol name that recognizing or probing any family looks at, when jemalloc may have these prefixes.
pub(super) fn all_names(jemalloc_prefixes: &[String]) -> Vec<String> {
    let marks = FAMILIES.iter().flat_map(|family| match &family.told {
        Told::Marks(marks) => marks,
        Told::Malloc { name, .. } => slice::from_ref(name),
        Told::AnyPrefix(_) => &[],
    });
    let marks = marks.chain([&DYNAMIC_LINKER, &MALLOC]).map(|&name| name.to_owned());
    let functions = FAMILIES.iter().flat_map(|family| {
        let prefixes = match family.told {
            Told::Marks(_) => vec![String::new()],
            Told::Malloc { prefix, .. } => vec![String::new(), prefix.to_owned()],
            Told::AnyPrefix(_) => jemalloc_prefixes.to_vec(),
        };
        let held = Held { family, prefixes };
        let functions = held.functions().flat_map(|(_, names)| names);
        functions.chain(held.marks()).collect::<Vec<_>>()
    });
    marks.chain(functions).collect()
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
                let is_held = |prefix: &&String| {
                    marks.iter().all(|mark| image.defines(&format!("{prefix}{mark}")))
                        || has_internals(prefix, &image.prefixes().of_internals)
                };
                image.prefixes().of_api.iter().filter(is_held).cloned().collect()
            }
        }
    }
}

/// Whether jemalloc's internal functions, behind one of these namespaces, are those of the public functions with this
/// prefix. Linkers leave out of an executable what it does not call, and so most of the marks.
fn has_internals(prefix: &str, namespaces: &[String]) -> bool {
    // jemalloc's configure takes a namespace and a prefix. "je_" is a usual prefix, and always part of the namespace.
    let namespace = prefix.strip_suffix("je_").unwrap_or(prefix);
    prefix.is_empty() && !namespaces.is_empty() || namespaces.iter().any(|known| known == namespace)
}

impl Held {
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
        let replaces_malloc = self.prefixes.iter().any(String::is_empty);
        let operators = if replaces_malloc { self.family.operators } else { &[] };
        // Operators first: they are what people know them by.
        let own = operators.iter().chain(self.family.own);
        prefixed.chain(own.map(|row| (row, row.names.iter().map(|&name| name.to_owned()).collect())))
    }
}
