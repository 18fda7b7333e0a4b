//! The allocator families jjleak knows, as a table.
//!
//! A family is told by the symbols its file *defines*, never by the file's name: allocators get linked into
//! executables, renamed and preloaded. Teaching jjleak another function of a family is another row here.

use super::site::Role;
use jjleak_common::cookie::{ARG0, ARG1, ARG2, ResultIn, Signature};

/// Allocators that come from the same project and share its function names.
#[derive(Debug)]
pub(super) struct Family {
    /// The name users know it by.
    pub(super) name: &'static str,
    /// Symbols of which any one gives the family away.
    pub(super) marks: &'static [&'static str],
    /// Symbols that must be there besides a mark: a C library without `malloc` is no allocator.
    pub(super) needs: &'static [&'static str],
    /// What jjleak does about it.
    pub(super) support: Support,
}

/// What jjleak does about a family.
#[derive(Debug)]
pub(super) enum Support {
    /// Probes these functions.
    Profiled(&'static [Function]),
    /// Says that it is there and that its blocks stay unseen.
    Unsupported,
    /// Nothing: what it allocates is of no interest.
    Ignored,
}

/// A row: functions that mean the same to the books.
#[derive(Debug)]
pub(super) struct Function {
    /// Its names. The first is the usual one; the others are old aliases that need not exist.
    pub(super) names: &'static [&'static str],
    /// What a call does to the books.
    pub(super) role: Role,
    /// Which argument is what.
    pub(super) signature: Signature,
}

/// The symbols that make a file the owner of a process's `malloc`.
pub(super) const MALLOC: &[&str] = &["malloc", "free"];

/// Every family, in the order in which they are tried. tcmalloc and mimalloc also define glibc's internal
/// names (`__libc_memalign` and its like), so they come before it, and glibc is told by names they leave out.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "jemalloc",
        marks: &["mallocx", "je_mallocx", "_rjem_mallocx", "je_malloc", "_rjem_malloc"],
        needs: &[],
        support: Support::Unsupported,
    },
    Family {
        name: "tcmalloc",
        // gperftools, and Google's newer tcmalloc.
        marks: &["tc_malloc", "TCMallocInternalMalloc"],
        needs: &[],
        support: Support::Unsupported,
    },
    Family { name: "mimalloc", marks: &["mi_malloc"], needs: &[], support: Support::Unsupported },
    Family {
        // The shared library (ldso/dlstart.c), then static programs (src/malloc: mallocng, oldmalloc).
        name: "musl",
        marks: &["_dlstart", "__libc_malloc_impl", "__bin_chunk"],
        needs: MALLOC,
        support: Support::Unsupported,
    },
    Family {
        // Up to glibc 2.30 it defines a malloc for its own start-up; libc's takes over before `main`.
        name: "glibc's dynamic linker",
        marks: &["_rtld_global"],
        needs: &[],
        support: Support::Ignored,
    },
    Family {
        name: "glibc",
        marks: &["__libc_mallopt", "gnu_get_libc_version"],
        needs: MALLOC,
        support: Support::Profiled(GLIBC),
    },
];

/// The file's family: the first in [`FAMILIES`] that the defined symbols speak for.
pub(super) fn recognize(defines: impl Fn(&str) -> bool) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| {
        family.marks.iter().any(|name| defines(name)) && family.needs.iter().all(|name| defines(name))
    })
}

/// Every symbol name that recognizing or probing any family looks at.
pub(super) fn all_names() -> impl Iterator<Item = &'static str> {
    let of_family = |family: &'static Family| {
        let functions = match family.support {
            Support::Profiled(functions) => functions,
            Support::Unsupported | Support::Ignored => &[],
        };
        let probed = functions.iter().flat_map(|function| function.names);
        family.marks.iter().chain(family.needs).chain(probed).copied()
    };
    FAMILIES.iter().flat_map(of_family).chain(MALLOC.iter().copied())
}

/// A signature without any argument, to start from.
const NOTHING: Signature =
    Signature { size: None, count: None, pointer: None, result: ResultIn::Return, zero_frees: false };

/// `malloc(3)`, `posix_memalign(3)` and the GNU C Library manual, "Unconstrained Allocation".
const GLIBC: &[Function] = &[
    Function {
        names: &["malloc"],
        role: Role::Allocate,
        signature: Signature { size: Some(ARG0), ..NOTHING },
    },
    Function {
        names: &["calloc"],
        role: Role::Allocate,
        signature: Signature { count: Some(ARG0), size: Some(ARG1), ..NOTHING },
    },
    Function {
        names: &["realloc"],
        role: Role::Resize,
        signature: Signature { pointer: Some(ARG0), size: Some(ARG1), zero_frees: true, ..NOTHING },
    },
    Function {
        // Multiplies, then calls realloc.
        names: &["reallocarray"],
        role: Role::Resize,
        signature: Signature {
            pointer: Some(ARG0),
            count: Some(ARG1),
            size: Some(ARG2),
            zero_frees: true,
            ..NOTHING
        },
    },
    Function {
        names: &["posix_memalign"],
        role: Role::Allocate,
        signature: Signature { pointer: Some(ARG0), size: Some(ARG2), result: ResultIn::Pointee, ..NOTHING },
    },
    Function {
        names: &["aligned_alloc"],
        role: Role::Allocate,
        signature: Signature { size: Some(ARG1), ..NOTHING },
    },
    Function {
        names: &["memalign"],
        role: Role::Allocate,
        signature: Signature { size: Some(ARG1), ..NOTHING },
    },
    Function {
        names: &["valloc"],
        role: Role::Allocate,
        signature: Signature { size: Some(ARG0), ..NOTHING },
    },
    Function {
        // Rounds the size up to whole pages; the books hold what was asked for.
        names: &["pvalloc"],
        role: Role::Allocate,
        signature: Signature { size: Some(ARG0), ..NOTHING },
    },
    Function {
        // cfree went with glibc 2.26; old programs still bind to it.
        names: &["free", "cfree"],
        role: Role::Free,
        signature: Signature { pointer: Some(ARG0), ..NOTHING },
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn family_of(defined: &[&str]) -> Option<&'static str> {
        recognize(|name| defined.contains(&name)).map(|family| family.name)
    }

    #[test]
    fn families_are_told_by_what_they_define() {
        assert_eq!(family_of(&["malloc", "free", "gnu_get_libc_version"]), Some("glibc"));
        assert_eq!(family_of(&["malloc", "free", "__libc_mallopt"]), Some("glibc"), "a static program");
        assert_eq!(family_of(&["malloc", "free", "mallocx"]), Some("jemalloc"));
        assert_eq!(family_of(&["_rjem_mallocx"]), Some("jemalloc"), "prefixed, in a Rust program");
        assert_eq!(family_of(&["malloc", "free", "_dlstart"]), Some("musl"));
    }

    #[test]
    fn glibc_names_in_other_allocators_do_not_make_them_glibc() {
        let borrowed = ["malloc", "free", "__libc_malloc", "__libc_memalign", "__libc_free"];
        assert_eq!(family_of(&borrowed), None, "a preloaded wrapper");
        assert_eq!(family_of(&[&borrowed[..], &["tc_malloc"]].concat()), Some("tcmalloc"));
        assert_eq!(family_of(&[&borrowed[..], &["mi_malloc"]].concat()), Some("mimalloc"));
    }

    #[test]
    fn a_c_library_without_malloc_is_no_allocator() {
        assert_eq!(family_of(&["gnu_get_libc_version"]), None);
        assert_eq!(family_of(&["_dlstart", "free"]), None);
    }

    #[test]
    fn no_name_stands_in_two_rows() {
        let names: Vec<_> = GLIBC.iter().flat_map(|function| function.names).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    }
}
