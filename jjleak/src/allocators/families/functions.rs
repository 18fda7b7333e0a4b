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
    /// Whether it may only pass the block on to another function that takes it back. It is then left out: no block
    /// is freed twice.
    pub(in crate::allocators) may_pass_on: bool,
}

impl Function {
    pub(super) const fn new(names: &'static [&'static str], role: Role, signature: Signature) -> Self {
        Self { names, role, signature, may_pass_on: false }
    }

    /// A function that may do no more than call another one of the table.
    pub(super) const fn wrapper(names: &'static [&'static str], role: Role, signature: Signature) -> Self {
        Self { may_pass_on: true, ..Self::new(names, role, signature) }
    }
}

/// A signature without any argument, to start from.
pub(in crate::allocators) const NOTHING: Signature = Signature {
    size: None,
    count: None,
    pointer: None,
    extra: None,
    result: ResultIn::Return,
    zero_frees: false,
};

/// A function that takes the size first.
pub(in crate::allocators) const SIZE_FIRST: Signature = Signature { size: Some(ARG0), ..NOTHING };

/// A function that takes an alignment and then the size.
pub(super) const SIZE_SECOND: Signature = Signature { size: Some(ARG1), ..NOTHING };

/// A function that takes a number of elements and their size.
pub(super) const COUNT_THEN_SIZE: Signature = Signature { count: Some(ARG0), size: Some(ARG1), ..NOTHING };

/// A function that takes a block and its new size.
pub(super) const BLOCK_THEN_SIZE: Signature = Signature { pointer: Some(ARG0), size: Some(ARG1), ..NOTHING };

/// A function that takes a block first, and nothing else that matters.
pub(super) const BLOCK_FIRST: Signature = Signature { pointer: Some(ARG0), ..NOTHING };

/// The functions of allocators whose `realloc(p, 0)` frees `p` and returns null: glibc, tcmalloc, and jemalloc
/// unless its option `zero_realloc` says otherwise. When a block comes back all the same, it is booked.
pub(in crate::allocators) const ZERO_FREES: &[Function] = &c_functions(true);

/// The functions of allocators whose `realloc(p, 0)` gives a block of no bytes: musl and mimalloc.
pub(super) const ZERO_RESIZES: &[Function] = &c_functions(false);

/// `malloc(3)`, `posix_memalign(3)` and the GNU C Library manual, "Unconstrained Allocation".
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
        // Rounds the size up to whole pages; the books hold what was asked for.
        Function::new(&["pvalloc"], Role::Allocate, SIZE_FIRST),
        Function::new(&["free"], Role::Free, BLOCK_FIRST),
        // cfree went with glibc 2.26; old programs still bind to it. The sized ones are C23's.
        Function::wrapper(&["cfree", "free_sized", "free_aligned_sized"], Role::Free, BLOCK_FIRST),
    ]
}

/// A function that gives a block of a size that is not among its arguments.
pub(super) const STRDUP: Function = Function::new(&["strdup", "__strdup"], Role::UnseenAllocation, NOTHING);

/// C++'s replaceable allocation functions ([new.delete]). They throw through their own frames: also the ones of which
/// the standard says that they do not, since a new handler may.
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

/// jemalloc(3), "Non-standard API". Sizes of 0 are undefined there.
pub(super) const JEMALLOC: &[Function] = &[
    Function::new(&["mallocx"], Role::Allocate, SIZE_FIRST),
    Function::new(&["rallocx"], Role::Resize, BLOCK_THEN_SIZE),
    Function::new(&["dallocx", "sdallocx"], Role::Free, BLOCK_FIRST),
    Function::new(&["xallocx"], Role::ResizeInPlace, Signature { extra: Some(ARG2), ..BLOCK_THEN_SIZE }),
];

/// What gperftools' tcmalloc offers beside the C functions (gperftools/tcmalloc.h).
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

/// The same in Google's newer tcmalloc (`tcmalloc/libc_override_gcc_and_weak.h`).
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
