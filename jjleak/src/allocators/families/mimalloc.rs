//! Functions of mimalloc besides the C functions (mimalloc.h).
//!
//! `mi_strdup` and its variants, `mi_new_realloc`, `mi_reallocarr` and `mi_dupenv_s` have no row: they call functions that have
//! one. Functions named `mi_heap_...` take the heap as their first argument.

use jjleak_common::cookie::{ARG0, ARG1, ARG2, ARG3, Signature};

use super::functions::{
    BLOCK_FIRST, BLOCK_THEN_SIZE, COUNT_THEN_SIZE, Function, NOTHING, SIZE_FIRST, SIZE_SECOND,
};
use crate::allocators::site::Role;

const BLOCK_COUNT_SIZE: Signature =
    Signature { pointer: Some(ARG0), count: Some(ARG1), size: Some(ARG2), ..NOTHING };
const HEAP_COUNT_SIZE: Signature = Signature { count: Some(ARG1), size: Some(ARG2), ..NOTHING };
const HEAP_BLOCK_SIZE: Signature = Signature { pointer: Some(ARG1), size: Some(ARG2), ..NOTHING };
const HEAP_BLOCK_COUNT_SIZE: Signature =
    Signature { pointer: Some(ARG1), count: Some(ARG2), size: Some(ARG3), ..NOTHING };

/// Functions with names of their own.
pub(super) const MIMALLOC: &[Function] = &[
    Function::new(
        &[
            "mi_zalloc",
            "mi_malloc_small",
            "mi_zalloc_small",
            "mi_malloc_aligned",
            "mi_malloc_aligned_at",
            "mi_zalloc_aligned",
            "mi_zalloc_aligned_at",
        ],
        Role::Allocate,
        SIZE_FIRST,
    ),
    Function::new(
        &[
            "mi_heap_malloc",
            "mi_heap_malloc_small",
            "mi_heap_zalloc",
            "mi_heap_malloc_aligned",
            "mi_heap_malloc_aligned_at",
            "mi_heap_zalloc_aligned",
            "mi_heap_zalloc_aligned_at",
        ],
        Role::Allocate,
        SIZE_SECOND,
    ),
    Function::new(
        &["mi_mallocn", "mi_calloc_aligned", "mi_calloc_aligned_at"],
        Role::Allocate,
        COUNT_THEN_SIZE,
    ),
    Function::new(
        &["mi_heap_mallocn", "mi_heap_calloc", "mi_heap_calloc_aligned", "mi_heap_calloc_aligned_at"],
        Role::Allocate,
        HEAP_COUNT_SIZE,
    ),
    // On failure, mi_reallocf frees the block with mi_free, which is probed; mi_expand never moves a block.
    Function::new(
        &[
            "mi_rezalloc",
            "mi_reallocf",
            "mi_expand",
            "mi_realloc_aligned",
            "mi_realloc_aligned_at",
            "mi_rezalloc_aligned",
            "mi_rezalloc_aligned_at",
        ],
        Role::Resize,
        BLOCK_THEN_SIZE,
    ),
    Function::new(
        &[
            "mi_heap_realloc",
            "mi_heap_rezalloc",
            "mi_heap_reallocf",
            "mi_heap_realloc_aligned",
            "mi_heap_realloc_aligned_at",
            "mi_heap_rezalloc_aligned",
            "mi_heap_rezalloc_aligned_at",
        ],
        Role::Resize,
        HEAP_BLOCK_SIZE,
    ),
    Function::new(
        &["mi_reallocn", "mi_recalloc", "mi_recalloc_aligned", "mi_recalloc_aligned_at"],
        Role::Resize,
        BLOCK_COUNT_SIZE,
    ),
    Function::new(
        &["mi_heap_reallocn", "mi_heap_recalloc", "mi_heap_recalloc_aligned", "mi_heap_recalloc_aligned_at"],
        Role::Resize,
        HEAP_BLOCK_COUNT_SIZE,
    ),
    Function::wrapper(
        &["mi_free_size", "mi_free_size_aligned", "mi_free_aligned", "mi_cfree"],
        Role::Free,
        BLOCK_FIRST,
    ),
    Function::new(&["mi_heap_destroy"], Role::UnseenFree, NOTHING),
    Function::new(
        &["mi_new", "mi_new_nothrow", "mi_new_aligned", "mi_new_aligned_nothrow"],
        Role::AllocateOrThrow,
        SIZE_FIRST,
    ),
    Function::new(&["mi_heap_alloc_new"], Role::AllocateOrThrow, SIZE_SECOND),
    Function::new(&["mi_new_n"], Role::AllocateOrThrow, COUNT_THEN_SIZE),
    Function::new(&["mi_heap_alloc_new_n"], Role::AllocateOrThrow, HEAP_COUNT_SIZE),
];
