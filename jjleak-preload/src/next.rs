//! The next library's functions: those of the C library, or of an allocator that was preloaded behind this one.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::elf;

/// True once the functions were looked up. What is loaded later is not used: it can be unloaded.
static IS_FOUND: AtomicBool = AtomicBool::new(false);

/// True in a program that loaded this library while it ran: then all other libraries count, and not those behind this one alone.
static IS_LATE: AtomicBool = AtomicBool::new(false);

/// A function, looked up once.
pub(crate) struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null if there is none.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() && !IS_FOUND.load(Ordering::Relaxed) { self.find() } else { known }
    }

    pub(crate) const fn name(&self) -> &'static CStr {
        self.name
    }

    /// Looks it up.
    #[cold]
    pub(crate) fn find(&self) -> *mut c_void {
        let found = if is_late() { elf::first(self.name) } else { elf::next(self.name) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines functions that return the next library's.
macro_rules! functions {
    ($($function:ident, $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[inline]
            pub(crate) fn $function() -> Option<unsafe extern "C" fn($($argument),*) $(-> $result)?> {
                // SAFETY: null is `None`, and anything else is a function of this type by its name.
                unsafe { std::mem::transmute(next::$function.get()) }
            }
        )*

        #[expect(non_upper_case_globals, reason = "named after the functions")]
        mod next {
            use super::Function;

            $(pub(super) static $function: Function = Function::new($symbol);)*
        }

        /// Looks the functions up.
        fn find_all() {
            $(next::$function.find();)*
        }
    };
}

functions! {
    malloc, c"malloc": fn(usize) -> *mut c_void;
    calloc, c"calloc": fn(usize, usize) -> *mut c_void;
    realloc, c"realloc": fn(*mut c_void, usize) -> *mut c_void;
    free, c"free": fn(*mut c_void);
    posix_memalign, c"posix_memalign": fn(*mut *mut c_void, usize, usize) -> c_int;
    aligned_alloc, c"aligned_alloc": fn(usize, usize) -> *mut c_void;
    memalign, c"memalign": fn(usize, usize) -> *mut c_void;
    valloc, c"valloc": fn(usize) -> *mut c_void;
    pvalloc, c"pvalloc": fn(usize) -> *mut c_void;
    usable_size, c"malloc_usable_size": fn(*mut c_void) -> usize;
}

/// Looks all functions up, and takes those that there are from then on.
pub(crate) fn find() {
    find_all();
    crate::operators::find();
    IS_FOUND.store(true, Ordering::Relaxed);
}

/// Returns true once [`find_late`] was called.
pub(crate) fn is_late() -> bool {
    IS_LATE.load(Ordering::Relaxed)
}

/// Looks all functions up in a program that has loaded this library while it ran. Nobody may have called one of this library's yet.
pub(crate) fn find_late() {
    IS_LATE.store(true, Ordering::Relaxed);
    find();
}

/// Calls `visit` with each function of this library, and the one that it calls: its name, and the addresses of both.
pub(crate) fn each(visit: &mut Visit<'_>) {
    macro_rules! visit {
        ($($function:ident)*) => {
            $(visit(next::$function.name(), crate::$function as *mut c_void, next::$function.get());)*
        };
    }
    visit!(malloc calloc realloc free posix_memalign aligned_alloc memalign valloc pvalloc);
    crate::operators::each(visit);
}

/// Gets the name of a function, and the addresses of this library's and of the next one.
pub(crate) type Visit<'a> = dyn FnMut(&'static CStr, *mut c_void, *mut c_void) + 'a;
