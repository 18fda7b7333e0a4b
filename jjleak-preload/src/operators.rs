//! C++'s `operator new` and `delete`. Those of libstdc++ and libc++ call malloc, so that their blocks are sampled there. Those of jemalloc,
//! tcmalloc and mimalloc do not.
//!
//! Libraries that a program loads later find these operators instead of their own C++ library's, which is not behind this one. They get the
//! blocks of malloc then, as they would have.

use std::ffi::{CStr, c_void};
use std::ptr;

use jjleak_sampler::hooks;

use crate::next::{Function, Visit};
use crate::{aligned_alloc, elf, free, malloc, sampled};

/// `const std::nothrow_t &`, which says that null is returned if there is no memory.
type Nothrow = *const c_void;

/// Samples the block of an `operator new`, unless a function of malloc that it called has.
#[inline]
fn call_new(size: usize, new: impl FnOnce() -> *mut c_void) -> *mut c_void {
    if !hooks::are_consumed() {
        return new();
    }
    let (block, is_sampled) = hooks::allocates(new);
    if is_sampled { block } else { sampled(block, size) }
}

/// A block is about to be freed by an `operator delete`.
#[inline]
fn freed(block: *mut c_void) {
    if hooks::are_any() {
        hooks::freed(block.cast());
    }
}

/// A block of malloc for an `operator new` of C++.
#[cold]
fn plain(size: usize, alignment: usize) -> *mut c_void {
    // No block has no bytes, and `aligned_alloc` wants whole alignments.
    let size = size.max(1);
    // SAFETY: any size can be asked for.
    unsafe {
        match size.checked_next_multiple_of(alignment.max(1)) {
            _ if alignment == 0 => malloc(size),
            Some(size) => aligned_alloc(alignment, size),
            None => ptr::null_mut(),
        }
    }
}

/// Name of a function for the search.
const fn name(terminated: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(terminated.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// Defines the operators; `$none` is called if no library behind this one has an `operator new`, and malloc has no memory.
macro_rules! operators {
    (
        new { $($new:ident $new_symbol:literal ($($argument:ident: $type:ty),*) $alignment:expr, $none:ident;)* }
        delete { $($delete:ident $delete_symbol:literal ($($rest:ident: $rest_type:ty),*);)* }
    ) => {
        #[expect(non_upper_case_globals, reason = "named after the operators")]
        mod functions {
            use super::*;

            $(pub(super) static $new: Function = Function::new(name(concat!($new_symbol, "\0")));)*
            $(pub(super) static $delete: Function = Function::new(name(concat!($delete_symbol, "\0")));)*
        }

        /// Looks all operators up.
        pub(crate) fn find() {
            $(functions::$new.find();)*
            $(functions::$delete.find();)*
        }

        /// Calls `visit` with each operator of this library, and the one that it calls.
        pub(crate) fn each(visit: &mut Visit<'_>) {
            $(visit(functions::$new.name(), $new as *mut c_void, functions::$new.get());)*
            $(visit(functions::$delete.name(), $delete as *mut c_void, functions::$delete.get());)*
        }

        $(
            /// # Safety
            /// As for C++'s operator.
            #[unsafe(export_name = $new_symbol)]
            pub(crate) unsafe extern "C-unwind" fn $new(size: usize, $($argument: $type),*) -> *mut c_void {
                type New = unsafe extern "C-unwind" fn(usize, $($type),*) -> *mut c_void;
                // SAFETY: null, or a function of this type by its name.
                let new = |address: *mut c_void| unsafe { std::mem::transmute::<*mut c_void, Option<New>>(address) };
                call_new(size, || match new(functions::$new.get()) {
                    // SAFETY: as promised by the caller.
                    Some(new) => unsafe { new(size, $($argument),*) },
                    None => {
                        let block = plain(size, $alignment);
                        if !block.is_null() {
                            return block;
                        }
                        // The caller's C++ library, if it is loaded, does what is to be done without memory.
                        match new(elf::next(functions::$new.name())) {
                            // SAFETY: as promised by the caller.
                            Some(new) => unsafe { new(size, $($argument),*) },
                            None => $none(),
                        }
                    }
                })
            }
        )*

        $(
            /// # Safety
            /// As for C++'s operator.
            #[unsafe(export_name = $delete_symbol)]
            pub(crate) unsafe extern "C" fn $delete(block: *mut c_void, $($rest: $rest_type),*) {
                type Delete = unsafe extern "C" fn(*mut c_void, $($rest_type),*);
                freed(block);
                // SAFETY: null, or a function of this type by its name; called as promised by the caller.
                unsafe {
                    match std::mem::transmute::<*mut c_void, Option<Delete>>(functions::$delete.get()) {
                        Some(delete) => delete(block, $($rest),*),
                        None => free(block),
                    }
                }
            }
        )*
    };
}

/// There is no memory, and nobody who could throw an exception.
#[cold]
fn abort() -> *mut c_void {
    // SAFETY: always allowed.
    unsafe { libc::abort() }
}

const fn null() -> *mut c_void {
    ptr::null_mut()
}

// The names are those of the Itanium C++ ABI for 64 bits: <https://itanium-cxx-abi.github.io/cxx-abi/abi.html>.
operators! {
    new {
        new "_Znwm" () 0, abort;
        new_array "_Znam" () 0, abort;
        new_nothrow "_ZnwmRKSt9nothrow_t" (nothrow: Nothrow) 0, null;
        new_array_nothrow "_ZnamRKSt9nothrow_t" (nothrow: Nothrow) 0, null;
        new_aligned "_ZnwmSt11align_val_t" (alignment: usize) alignment, abort;
        new_array_aligned "_ZnamSt11align_val_t" (alignment: usize) alignment, abort;
        new_aligned_nothrow "_ZnwmSt11align_val_tRKSt9nothrow_t" (alignment: usize, nothrow: Nothrow) alignment, null;
        new_array_aligned_nothrow "_ZnamSt11align_val_tRKSt9nothrow_t" (alignment: usize, nothrow: Nothrow) alignment, null;
    }
    delete {
        delete "_ZdlPv" ();
        delete_array "_ZdaPv" ();
        delete_nothrow "_ZdlPvRKSt9nothrow_t" (nothrow: Nothrow);
        delete_array_nothrow "_ZdaPvRKSt9nothrow_t" (nothrow: Nothrow);
        delete_sized "_ZdlPvm" (size: usize);
        delete_array_sized "_ZdaPvm" (size: usize);
        delete_aligned "_ZdlPvSt11align_val_t" (alignment: usize);
        delete_array_aligned "_ZdaPvSt11align_val_t" (alignment: usize);
        delete_aligned_nothrow "_ZdlPvSt11align_val_tRKSt9nothrow_t" (alignment: usize, nothrow: Nothrow);
        delete_array_aligned_nothrow "_ZdaPvSt11align_val_tRKSt9nothrow_t" (alignment: usize, nothrow: Nothrow);
        delete_aligned_sized "_ZdlPvmSt11align_val_t" (size: usize, alignment: usize);
        delete_array_aligned_sized "_ZdaPvmSt11align_val_t" (size: usize, alignment: usize);
    }
}
