//! The next library's functions, by `dlsym(RTLD_NEXT)`: those of the C library, or of an allocator that was preloaded after this one.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

thread_local! {
    /// True while this thread looks functions up. Has no destructor, so that its first use allocates nothing.
    static IS_FINDING: Cell<bool> = const { Cell::new(false) };
}

/// A function, looked up once.
struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null while it is being looked up, and if there is none.
    #[inline]
    fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // `dlsym` may allocate.
        if IS_FINDING.replace(true) {
            return std::ptr::null_mut();
        }
        // SAFETY: this thread's own variable, and a terminated name.
        let found = unsafe {
            let errno = *libc::__errno_location();
            let found = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
            *libc::__errno_location() = errno;
            found
        };
        self.address.store(found, Ordering::Relaxed);
        IS_FINDING.set(false);
        found
    }
}

/// Defines a function that returns the next library's.
macro_rules! functions {
    ($($function:ident, $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[inline]
            pub(crate) fn $function() -> Option<unsafe extern "C" fn($($argument),*) $(-> $result)?> {
                static NEXT: Function = Function::new($symbol);
                let address = NEXT.get();
                // SAFETY: null is `None`, and anything else is a function of this type by its name.
                unsafe { std::mem::transmute(address) }
            }
        )*

        /// Looks all functions up.
        pub(crate) fn find() {
            $(let _ = $function();)*
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
