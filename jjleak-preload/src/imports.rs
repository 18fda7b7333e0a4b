//! What the loaded libraries import: places that the loader has filled with the addresses of functions. Those of malloc's functions get this
//! library's instead.
//!
//! A place is one word, written at once: another thread calls the old function or the new one. Nothing is taken back, because blocks that
//! were sampled would not be announced as freed.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use libc::{PROT_READ, PROT_WRITE, dl_phdr_info};

use crate::elf::{self, Import, Tables};
use crate::next;

const PAGE: usize = 4096;
/// Functions of this library: 9 of malloc, and 20 operators.
const MAX_FUNCTIONS: usize = 32;

/// Numbers of places that call this library's functions, and of those of the same names that call others: a library has its own, or is
/// bound to another's.
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
    redirected: u32,
    left: u32,
}

/// Redirects the imports of all loaded libraries.
pub(crate) fn redirect() {
    let none = Function { name: c"", own: 0, next: 0 };
    let mut all = Redirection { functions: [none; MAX_FUNCTIONS], count: 0, redirected: 0, left: 0 };
    next::each(&mut |name, own, next| {
        if let Some(free) = all.functions.get_mut(all.count).filter(|_| !next.is_null()) {
            *free = Function { name, own: own.addr(), next: next.addr() };
            all.count += 1;
        }
    });
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
        if elf::is_own(library) || is_loader(library) {
            return 0;
        }
        let Some(tables) = Tables::of(library) else { return 0 };
        for import in tables.imports() {
            let mut functions = all.functions.iter().take(all.count);
            if let Some(function) = functions.find(|function| function.name == import.name) {
                if set(library, &import, *function) {
                    all.redirected += 1;
                } else {
                    all.left += 1;
                }
            }
        }
    }
    0
}

/// The loader itself calls malloc for the thread-local memory of this library, which must not ask for it again.
///
/// # Safety
/// The library must be loaded.
unsafe fn is_loader(library: &dl_phdr_info) -> bool {
    if library.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: a terminated name.
    let path = unsafe { CStr::from_ptr(library.dlpi_name) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"ld-") || name.starts_with(b"ld.")
}

/// Redirects a place that has the address of the function that this library's calls, or that the loader fills at the first call. Returns
/// false for a place that has something else.
///
/// # Safety
/// The library must be loaded.
unsafe fn set(library: &dl_phdr_info, import: &Import<'_>, function: Function) -> bool {
    // SAFETY: a place that the loader writes to, in a library that is loaded.
    unsafe {
        let place = &*(import.place as *const AtomicUsize);
        let now = place.load(Ordering::Relaxed);
        if now == function.own {
            return true;
        }
        // A place that was not called through yet leads back into the library.
        if now != function.next && (import.is_defined || !elf::has(library, now)) {
            return false;
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
