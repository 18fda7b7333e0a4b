//! Redirection of imports: the places in each library that the loader has filled with the addresses of malloc's functions get those of this
//! library's functions.
//!
//! A place is one word, written at once: another thread calls the old function or the new one. Nothing is taken back, because blocks that
//! were sampled would not be announced as freed.
//!
//! A library whose blocks come from another allocator is left alone: all of its places are redirected, or none. Functions are called only
//! in the library that has the program's malloc, which is never unloaded.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use libc::{PROT_READ, PROT_WRITE, dl_phdr_info};

use crate::elf::{self, Import, Tables};
use crate::next;

const PAGE: usize = 4096;
/// Functions of this library: 9 of malloc, and 20 operators.
const MAX_FUNCTIONS: usize = 32;

/// Numbers of places that call this library's functions, and of those of the same names that are left alone.
#[unsafe(export_name = "jjleak_imports")]
static PLACES: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// A function of this library, and the one that it calls.
#[derive(Clone, Copy)]
struct Function {
    name: &'static CStr,
    own: usize,
    next: usize,
}

/// All functions, and the numbers of places.
struct Redirection {
    functions: [Function; MAX_FUNCTIONS],
    count: usize,
    /// True if places that were not called through yet can lead to another malloc than the program's.
    has_other_malloc: bool,
    redirected: u32,
    left: u32,
}

/// Redirects the imports of all loaded libraries.
pub(crate) fn redirect() {
    let none = Function { name: c"", own: 0, next: 0 };
    let mut all = Redirection {
        functions: [none; MAX_FUNCTIONS],
        count: 0,
        has_other_malloc: false,
        redirected: 0,
        left: 0,
    };
    let mut malloc = 0;
    // The operators of a C++ library call malloc by an import of its own.
    next::each(&mut |name, own, next| {
        if malloc == 0 {
            malloc = next.addr();
        }
        let is_known = !next.is_null() && elf::are_in_one_library(malloc, next.addr());
        if let Some(free) = all.functions.get_mut(all.count).filter(|_| is_known) {
            *free = Function { name, own: own.addr(), next: next.addr() };
            all.count += 1;
        }
    });
    all.has_other_malloc = elf::has_other_malloc(malloc);
    // SAFETY: the redirection outlives the call, and nobody else has it.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut all).cast()) };
    PLACES[0].store(all.redirected, Ordering::Relaxed);
    PLACES[1].store(all.left, Ordering::Relaxed);
}

/// Redirects the imports of a library. No library is unloaded meanwhile.
unsafe extern "C" fn visit(library: *mut dl_phdr_info, _: usize, all: *mut c_void) -> c_int {
    // SAFETY: a library that stays loaded during the call, and the redirection of `redirect`.
    unsafe {
        let (library, all) = (&*library, &mut *all.cast::<Redirection>());
        // The loader calls malloc for the thread-local memory of this library, which must not ask for it again.
        if elf::is_own(library) || elf::is_loader(library) {
            return 0;
        }
        let Some(tables) = Tables::of(library) else { return 0 };
        let (functions, count) = (&all.functions, all.count);
        let places = || {
            tables.imports().filter_map(|import| {
                let mut known = functions.iter().take(count);
                Some((*known.find(|function| function.name == import.name)?, import))
            })
        };
        let is_of_others = |function, import: &Import<'_>| match leads_to(library, function, import) {
            To::Own | To::Next => false,
            To::Unbound => all.has_other_malloc,
            To::Other => true,
        };
        if places().any(|(function, import)| is_of_others(function, &import)) {
            places().for_each(|_| all.left += 1);
            return 0;
        }
        for (function, import) in places() {
            if set(library, &import, function) {
                all.redirected += 1;
            } else {
                all.left += 1;
            }
        }
    }
    0
}

/// Target of a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    /// This library's function.
    Own,
    /// The function that this library's calls.
    Next,
    /// The loader, until the first call.
    Unbound,
    /// Another function.
    Other,
}

/// Target of a place, which the loader or this library has written.
///
/// # Safety
/// The library must be loaded.
unsafe fn leads_to(library: &dl_phdr_info, function: Function, import: &Import<'_>) -> To {
    // SAFETY: a place in a library that is loaded.
    let now = unsafe { (*(import.place as *const AtomicUsize)).load(Ordering::Relaxed) };
    if now == function.own {
        To::Own
    } else if now == function.next {
        To::Next
    // SAFETY: as promised by the caller.
    } else if !import.is_defined && unsafe { elf::has(library, now) } {
        // It leads back into the library, to code that asks the loader.
        To::Unbound
    } else {
        To::Other
    }
}

/// Makes a place lead to this library's function. Returns false if it cannot be written.
///
/// # Safety
/// The library must be loaded.
unsafe fn set(library: &dl_phdr_info, import: &Import<'_>, function: Function) -> bool {
    // SAFETY: a place that the loader writes to, in a library that is loaded.
    unsafe {
        let place = &*(import.place as *const AtomicUsize);
        if place.load(Ordering::Relaxed) == function.own {
            return true;
        }
        let page = (import.place & !(PAGE - 1)) as *mut c_void;
        let mut constants = elf::segments(library, libc::PT_GNU_RELRO);
        // While another thread loads the library, its constants can still be written, and must stay so.
        let is_constant = constants.any(|(begin, bytes)| import.place.wrapping_sub(begin) < bytes)
            && libc::madvise(page, PAGE, libc::MADV_POPULATE_WRITE) != 0;
        if is_constant && libc::mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0 {
            return false;
        }
        place.store(function.own, Ordering::Relaxed);
        if is_constant {
            libc::mprotect(page, PAGE, PROT_READ);
        }
        true
    }
}
