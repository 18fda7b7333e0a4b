//! The allocation functions of each family, one row each. Rows record the observed behaviour of a call with size 0, which resizes
//! or frees, under the versions listed in `docs/accuracy.md`.

use jjleak_common::cookie::{ARG0, ARG1, ARG2, ResultIn, Signature};

use crate::allocators::site::Role;

/// A row: functions with the same effect on the accounting.
#[derive(Debug)]
pub(in crate::allocators) struct Function {
    /// Names: the usual one first, then aliases and variants that need not exist.
    pub(in crate::allocators) names: &'static [&'static str],
    /// Effect of a call on the accounting.
    pub(in crate::allocators) role: Role,
    /// Meaning of the arguments.
    pub(in crate::allocators) signature: Signature,
    /// True if the function may only call another function that frees the block. It is then left out, to avoid counting the free
    /// twice.
    pub(in crate::allocators) may_pass_on: bool,
}

impl Function {
    pub(super) const fn new(names: &'static [&'static str], role: Role, signature: Signature) -> Self {
        Self { names, role, signature, may_pass_on: false }
    }

    /// A function that may only call another function of the table.
    pub(super) const fn wrapper(names: &'static [&'static str], role: Role, signature: Signature) -> Self {
        Self { may_pass_on: true, ..Self::new(names, role, signature) }
    }
}

/// A signature without arguments, as a base for others.
pub(in crate::allocators) const NOTHING: Signature = Signature::NOTHING;

/// Signature of functions whose first argument is the size.
pub(in crate::allocators) const SIZE_FIRST: Signature = Signature { size: Some(ARG0), ..NOTHING };

/// Signature of functions that take an alignment, then the size.
pub(super) const SIZE_SECOND: Signature = Signature { size: Some(ARG1), ..NOTHING };

/// Signature of functions that take a number of elements, then their size.
pub(super) const COUNT_THEN_SIZE: Signature = Signature { count: Some(ARG0), size: Some(ARG1), ..NOTHING };

/// Signature of functions that take a block, then its new size.
pub(super) const BLOCK_THEN_SIZE: Signature = Signature { pointer: Some(ARG0), size: Some(ARG1), ..NOTHING };

/// Signature of functions that take a block as the only relevant argument.
pub(super) const BLOCK_FIRST: Signature = Signature { pointer: Some(ARG0), ..NOTHING };

/// Functions of allocators whose `realloc(p, 0)` frees `p` and returns null: glibc, tcmalloc, and jemalloc unless its option
/// `zero_realloc` changes that. If the call returns a block nevertheless, the block is accounted.
pub(in crate::allocators) const ZERO_FREES: &[Function] = &c_functions(true);

/// Functions of allocators whose `realloc(p, 0)` returns a block of 0 bytes: musl and mimalloc.
pub(super) const ZERO_RESIZES: &[Function] = &c_functions(false);

/// Source: `malloc(3)`, `posix_memalign(3)` and the GNU C Library manual, "Unconstrained Allocation".
const fn c_functions(zero_frees: bool) -> [Function; 11] {
    let realloc = Signature { zero_frees, ..BLOCK_THEN_SIZE };
    let reallocarray =
        Signature { pointer: Some(ARG0), count: Some(ARG1), size: Some(ARG2), zero_frees, ..NOTHING };
    let posix_memalign =
        Signature { pointer: Some(ARG0), size: Some(ARG2), result: ResultIn::Pointee, ..NOTHING };
    [
        Function::new(&["malloc"], Role::Allocate, SIZE_FIRST),
        Function::new(&["calloc"], Role::Allocate, COUNT_THEN_SIZE),
        Function::new(&["realloc"], Role::Resize, realloc),
        // Multiplies, then calls realloc.
        Function::new(&["reallocarray"], Role::Resize, reallocarray),
        Function::new(&["posix_memalign"], Role::Allocate, posix_memalign),
        Function::new(&["aligned_alloc"], Role::Allocate, SIZE_SECOND),
        Function::new(&["memalign"], Role::Allocate, SIZE_SECOND),
        Function::new(&["valloc"], Role::Allocate, SIZE_FIRST),
        // Rounds the size up to whole pages; the accounting uses the requested size.
        Function::new(&["pvalloc"], Role::Allocate, SIZE_FIRST),
        Function::new(&["free"], Role::Free, BLOCK_FIRST),
        // glibc 2.26 removed cfree; old programs still bind to it. The sized variants are from C23.
        Function::wrapper(&["cfree", "free_sized", "free_aligned_sized"], Role::Free, BLOCK_FIRST),
    ]
}

/// A function that allocates a block of a size that is not among its arguments.
pub(super) const STRDUP: Function = Function::new(&["strdup", "__strdup"], Role::UnseenAllocation, NOTHING);

/// C++'s replaceable allocation functions ([new.delete]). Exceptions pass through their frames, even for those that the standard
/// declares non-throwing, because a new handler may throw.
pub(super) const OPERATORS: &[Function] = &[
    Function::new(
        &[
            "_Znwm",
            "_ZnwmSt11align_val_t",
            "_ZnwmRKSt9nothrow_t",
            "_ZnwmSt11align_val_tRKSt9nothrow_t",
            "_Znam",
            "_ZnamSt11align_val_t",
            "_ZnamRKSt9nothrow_t",
            "_ZnamSt11align_val_tRKSt9nothrow_t",
        ],
        Role::AllocateOrThrow,
        SIZE_FIRST,
    ),
    Function::wrapper(
        &[
            "_ZdlPv",
            "_ZdlPvm",
            "_ZdlPvSt11align_val_t",
            "_ZdlPvmSt11align_val_t",
            "_ZdlPvRKSt9nothrow_t",
            "_ZdlPvSt11align_val_tRKSt9nothrow_t",
            "_ZdaPv",
            "_ZdaPvm",
            "_ZdaPvSt11align_val_t",
            "_ZdaPvmSt11align_val_t",
            "_ZdaPvRKSt9nothrow_t",
            "_ZdaPvSt11align_val_tRKSt9nothrow_t",
        ],
        Role::Free,
        BLOCK_FIRST,
    ),
];

/// jemalloc(3), "Non-standard API", which leaves sizes of 0 undefined.
pub(super) const JEMALLOC: &[Function] = &[
    Function::new(&["mallocx"], Role::Allocate, SIZE_FIRST),
    Function::new(&["rallocx"], Role::Resize, BLOCK_THEN_SIZE),
    Function::new(&["dallocx", "sdallocx"], Role::Free, BLOCK_FIRST),
    Function::new(&["xallocx"], Role::ResizeInPlace, Signature { extra: Some(ARG2), ..BLOCK_THEN_SIZE }),
];

/// Functions of gperftools' tcmalloc besides the C functions (gperftools/tcmalloc.h).
pub(super) const TCMALLOC: &[Function] = &[
    Function::new(&["tc_malloc_skip_new_handler"], Role::Allocate, SIZE_FIRST),
    Function::new(
        &[
            "tc_new",
            "tc_new_aligned",
            "tc_new_nothrow",
            "tc_new_aligned_nothrow",
            "tc_newarray",
            "tc_newarray_aligned",
            "tc_newarray_nothrow",
            "tc_newarray_aligned_nothrow",
        ],
        Role::AllocateOrThrow,
        SIZE_FIRST,
    ),
    Function::wrapper(
        &[
            "tc_delete",
            "tc_delete_sized",
            "tc_delete_aligned",
            "tc_delete_sized_aligned",
            "tc_delete_nothrow",
            "tc_delete_aligned_nothrow",
            "tc_deletearray",
            "tc_deletearray_sized",
            "tc_deletearray_aligned",
            "tc_deletearray_sized_aligned",
            "tc_deletearray_nothrow",
            "tc_deletearray_aligned_nothrow",
        ],
        Role::Free,
        BLOCK_FIRST,
    ),
];

/// Functions of Google's newer tcmalloc besides the C functions (`tcmalloc/libc_override_gcc_and_weak.h`).
pub(super) const GOOGLE_TCMALLOC: &[Function] = &[
    Function::new(
        &[
            "TCMallocInternalNew",
            "TCMallocInternalNewAligned",
            "TCMallocInternalNewNothrow",
            "TCMallocInternalNewAlignedNothrow",
            "TCMallocInternalNewArray",
            "TCMallocInternalNewArrayAligned",
            "TCMallocInternalNewArrayNothrow",
            "TCMallocInternalNewArrayAlignedNothrow",
        ],
        Role::AllocateOrThrow,
        SIZE_FIRST,
    ),
    Function::wrapper(
        &[
            "TCMallocInternalDelete",
            "TCMallocInternalDeleteSized",
            "TCMallocInternalDeleteAligned",
            "TCMallocInternalDeleteSizedAligned",
            "TCMallocInternalDeleteNothrow",
            "TCMallocInternalDeleteAlignedNothrow",
            "TCMallocInternalDeleteArray",
            "TCMallocInternalDeleteArraySized",
            "TCMallocInternalDeleteArrayAligned",
            "TCMallocInternalDeleteArraySizedAligned",
            "TCMallocInternalDeleteArrayNothrow",
            "TCMallocInternalDeleteArrayAlignedNothrow",
            "TCMallocInternalSdallocx",
        ],
        Role::Free,
        BLOCK_FIRST,
    ),
];
