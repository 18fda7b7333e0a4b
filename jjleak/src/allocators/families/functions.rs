//! The allocation functions of each family, a row each. Whether a call with size 0 resizes or frees is what was
//! observed under the versions that `docs/accuracy.md` names.

use jjleak_common::cookie::{ARG0, ARG1, ARG2, ResultIn, Signature};

use crate::allocators::site::Role;

/// A row: functions that mean the same to the books.
#[derive(Debug)]
pub(in crate::allocators) struct Function {
    /// Its names. The first is the usual one; the others are aliases and variants that need not exist.
    pub(in crate::allocators) names: &'static [&'static str],
    /// What a call does to the books.
    pub(in crate::allocators) role: Role,
    /// Which argument is what.
    pub(in crate::allocators) signature: Signature,
}

/// A signature without any argument, to start from.
const NOTHING: Signature =
    Signature { size: None, count: None, pointer: None, result: ResultIn::Return, zero_frees: false };

/// A function that takes the size first.
const SIZE_FIRST: Signature = Signature { size: Some(ARG0), ..NOTHING };

/// A function that takes an alignment and then the size.
const SIZE_SECOND: Signature = Signature { size: Some(ARG1), ..NOTHING };

/// A function that takes a number of elements and their size.
const COUNT_THEN_SIZE: Signature = Signature { count: Some(ARG0), size: Some(ARG1), ..NOTHING };

/// A function that takes a block and its new size.
const BLOCK_THEN_SIZE: Signature = Signature { pointer: Some(ARG0), size: Some(ARG1), ..NOTHING };

/// A function that takes a block first, and nothing else that matters.
const BLOCK_FIRST: Signature = Signature { pointer: Some(ARG0), ..NOTHING };

/// The functions of allocators whose `realloc(p, 0)` frees `p` and returns null: glibc, tcmalloc, and jemalloc
/// unless its option `zero_realloc` says otherwise. When a block comes back all the same, it is booked.
pub(super) const ZERO_FREES: &[Function] = &c_functions(true);

/// The functions of allocators whose `realloc(p, 0)` gives a block of no bytes: musl and mimalloc.
pub(super) const ZERO_RESIZES: &[Function] = &c_functions(false);

/// `malloc(3)`, `posix_memalign(3)` and the GNU C Library manual, "Unconstrained Allocation".
const fn c_functions(zero_frees: bool) -> [Function; 10] {
    [
        Function { names: &["malloc"], role: Role::Allocate, signature: SIZE_FIRST },
        Function { names: &["calloc"], role: Role::Allocate, signature: COUNT_THEN_SIZE },
        Function {
            names: &["realloc"],
            role: Role::Resize,
            signature: Signature { zero_frees, ..BLOCK_THEN_SIZE },
        },
        Function {
            // Multiplies, then calls realloc.
            names: &["reallocarray"],
            role: Role::Resize,
            signature: Signature {
                pointer: Some(ARG0),
                count: Some(ARG1),
                size: Some(ARG2),
                zero_frees,
                ..NOTHING
            },
        },
        Function {
            names: &["posix_memalign"],
            role: Role::Allocate,
            signature: Signature {
                pointer: Some(ARG0),
                size: Some(ARG2),
                result: ResultIn::Pointee,
                ..NOTHING
            },
        },
        Function { names: &["aligned_alloc"], role: Role::Allocate, signature: SIZE_SECOND },
        Function { names: &["memalign"], role: Role::Allocate, signature: SIZE_SECOND },
        Function { names: &["valloc"], role: Role::Allocate, signature: SIZE_FIRST },
        // Rounds the size up to whole pages; the books hold what was asked for.
        Function { names: &["pvalloc"], role: Role::Allocate, signature: SIZE_FIRST },
        Function {
            // cfree went with glibc 2.26; old programs still bind to it. The sized ones are C23's.
            names: &["free", "cfree", "free_sized", "free_aligned_sized"],
            role: Role::Free,
            signature: BLOCK_FIRST,
        },
    ]
}

/// jemalloc(3), "Non-standard API". Sizes of 0 are undefined there.
pub(super) const JEMALLOC: &[Function] = &[
    Function { names: &["mallocx"], role: Role::Allocate, signature: SIZE_FIRST },
    Function { names: &["rallocx"], role: Role::Resize, signature: BLOCK_THEN_SIZE },
    Function { names: &["dallocx", "sdallocx"], role: Role::Free, signature: BLOCK_FIRST },
    // Gives the usable size, from which the requested one cannot be told.
    Function { names: &["xallocx"], role: Role::UnseenResize, signature: BLOCK_FIRST },
];

/// jemalloc's own `operator new`: up to 4 KiB it allocates without calling malloc, and beyond with a function that
/// has no name. It throws `bad_alloc` through its own frame, so that no return probe can be put on it. `new[]` jumps
/// to it; the aligned ones call jemalloc's `aligned_alloc`, which counts.
pub(super) const JEMALLOC_NEW: &[Function] = &[Function {
    names: &["_Znwm", "_ZnwmRKSt9nothrow_t"],
    role: Role::UnseenAllocation,
    signature: SIZE_FIRST,
}];

/// tcmalloc's own `operator new` and `new[]`, by the names that stand beside the mangled ones.
pub(super) const TCMALLOC_NEW: &[Function] = &[Function {
    names: &[
        "tc_new",
        "tc_newarray",
        "tc_new_nothrow",
        "tc_newarray_nothrow",
        "tc_new_aligned",
        "tc_new_aligned_nothrow",
    ],
    role: Role::UnseenAllocation,
    signature: SIZE_FIRST,
}];

/// The same in Google's newer tcmalloc.
pub(super) const GOOGLE_TCMALLOC_NEW: &[Function] = &[Function {
    names: &["TCMallocInternalNew", "TCMallocInternalNewArray", "TCMallocInternalNewNothrow"],
    role: Role::UnseenAllocation,
    signature: SIZE_FIRST,
}];

/// What mimalloc offers beside the C functions, as far as Rust's and other languages' bindings use it
/// (mimalloc.h), and its own `operator new`, whose aligned forms call `mi_malloc_aligned`.
pub(super) const MIMALLOC: &[Function] = &[
    Function { names: &["mi_zalloc"], role: Role::Allocate, signature: SIZE_FIRST },
    Function {
        names: &["mi_malloc_aligned", "mi_zalloc_aligned"],
        role: Role::Allocate,
        signature: SIZE_FIRST,
    },
    Function { names: &["mi_realloc_aligned"], role: Role::Resize, signature: BLOCK_THEN_SIZE },
    Function {
        names: &["mi_new", "mi_new_n", "mi_new_nothrow"],
        role: Role::UnseenAllocation,
        signature: SIZE_FIRST,
    },
];
