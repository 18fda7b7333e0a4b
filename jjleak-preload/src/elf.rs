//! Functions of the libraries that are loaded behind this one, from their symbol tables. `dlsym` would not do: before glibc 2.34 it is in a
//! library that a program may not have, and it allocates.

#![expect(clippy::cast_possible_truncation, reason = "addresses and sizes in this process")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use libc::dl_phdr_info;

const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_VERSYM: u64 = 0x6fff_fff0;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Bit of a `DT_VERSYM` entry: an old version, which names without a version do not mean.
const VERSYM_HIDDEN: u16 = 1 << 15;
const SHN_UNDEF: u16 = 0;
const STT_GNU_IFUNC: u8 = 10;

/// Entry of a dynamic section (`Elf64_Dyn`).
#[repr(C)]
struct Dynamic {
    tag: u64,
    value: usize,
}

/// Entry of a symbol table (`Elf64_Sym`).
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

/// Search for a function in the loaded libraries.
struct Search<'a> {
    name: &'a CStr,
    /// True behind this library.
    is_behind: bool,
    found: *mut c_void,
}

/// First function of a name behind this library; null if there is none.
#[cold]
pub(crate) fn next(name: &CStr) -> *mut c_void {
    let mut search = Search { name, is_behind: false, found: ptr::null_mut() };
    // SAFETY: the search outlives the call, and nobody else has it.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Visits a library; they come in the order of their loading. Returns 1 to end the search.
unsafe extern "C" fn visit(library: *mut dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    static OWN: u8 = 0;
    // SAFETY: a library that stays loaded during the call, and the search of `next`.
    unsafe {
        let (library, search) = (&*library, &mut *search.cast::<Search>());
        if search.is_behind {
            search.found = Tables::of(library).map_or(ptr::null_mut(), |tables| tables.function(search.name));
        } else {
            search.is_behind = has(library, (&raw const OWN).addr());
        }
        c_int::from(!search.found.is_null())
    }
}

/// Returns true if an address is in a library.
///
/// # Safety
/// The library must be loaded.
unsafe fn has(library: &dl_phdr_info, address: usize) -> bool {
    // SAFETY: as promised by the caller.
    let mut segments = unsafe { segments(library, libc::PT_LOAD) };
    segments.any(|(begin, bytes)| address.wrapping_sub(begin) < bytes)
}

/// Addresses and sizes of a library's segments of a type.
///
/// # Safety
/// The library must be loaded.
unsafe fn segments(library: &dl_phdr_info, kind: u32) -> impl Iterator<Item = (usize, usize)> {
    let base = library.dlpi_addr as usize;
    (0..usize::from(library.dlpi_phnum)).filter_map(move |index| {
        // SAFETY: one of as many headers.
        let header = unsafe { &*library.dlpi_phdr.add(index) };
        (header.p_type == kind).then(|| (base.wrapping_add(header.p_vaddr as usize), header.p_memsz as usize))
    })
}

/// Symbol table of a library, with what finds a name in it.
struct Tables {
    base: usize,
    symbols: *const Symbol,
    names: *const c_char,
    /// Null without versions.
    versions: *const u16,
    /// Either can be null.
    gnu_hash: *const u32,
    hash: *const u32,
}

impl Tables {
    /// # Safety
    /// The library must be loaded.
    unsafe fn of(library: &dl_phdr_info) -> Option<Self> {
        let base = library.dlpi_addr as usize;
        // SAFETY: as promised by the caller.
        let (dynamic, _) = unsafe { segments(library, libc::PT_DYNAMIC) }.next()?;
        let mut tables = Self {
            base,
            symbols: ptr::null(),
            names: ptr::null(),
            versions: ptr::null(),
            gnu_hash: ptr::null(),
            hash: ptr::null(),
        };
        let mut entry = dynamic as *const Dynamic;
        // SAFETY: entries up to the one that ends them.
        while let Dynamic { tag, value } = unsafe { &*entry }
            && *tag != DT_NULL
        {
            // glibc has made addresses of the offsets, except in the kernel's library (vdso); musl leaves them.
            let place = if *value < base { base + *value } else { *value };
            match *tag {
                DT_SYMTAB => tables.symbols = place as *const Symbol,
                DT_STRTAB => tables.names = place as *const c_char,
                DT_VERSYM => tables.versions = place as *const u16,
                DT_GNU_HASH => tables.gnu_hash = place as *const u32,
                DT_HASH => tables.hash = place as *const u32,
                _ => {}
            }
            // SAFETY: the one that ends them was not seen.
            entry = unsafe { entry.add(1) };
        }
        (!tables.symbols.is_null() && !tables.names.is_null()).then_some(tables)
    }

    /// A function that the library defines; null if it does not.
    ///
    /// # Safety
    /// The library must be loaded.
    unsafe fn function(&self, name: &CStr) -> *mut c_void {
        // SAFETY: as promised by the caller.
        unsafe {
            if !self.gnu_hash.is_null() {
                self.by_gnu_hash(name)
            } else if !self.hash.is_null() {
                self.by_hash(name)
            } else {
                ptr::null_mut()
            }
        }
    }

    /// Looks a name up in a table of `DT_GNU_HASH`, without its filter: numbers of buckets and of words of the filter, and index of the first
    /// symbol; the filter; the buckets; and a chain of hashes, whose lowest bit ends a bucket.
    unsafe fn by_gnu_hash(&self, name: &CStr) -> *mut c_void {
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: a table as the linker wrote it.
        unsafe {
            let [buckets, first, words] = [0, 1, 2].map(|index| *self.gnu_hash.add(index) as usize);
            if buckets == 0 {
                return ptr::null_mut();
            }
            let bucket = self.gnu_hash.add(4 + words * 2);
            let chain = bucket.add(buckets);
            let mut index = *bucket.add(hash as usize % buckets) as usize;
            // 0 is an empty bucket.
            while index >= first.max(1) {
                let of_symbol = *chain.add(index - first);
                if of_symbol | 1 == hash | 1 && self.is_named(index, name) {
                    return self.address(index);
                }
                if of_symbol & 1 == 1 {
                    break;
                }
                index += 1;
            }
        }
        ptr::null_mut()
    }

    /// Looks a name up in a table of `DT_HASH`: numbers of buckets and of symbols, the buckets, and for each symbol the next one of its bucket.
    unsafe fn by_hash(&self, name: &CStr) -> *mut c_void {
        let hash = name.to_bytes().iter().fold(0u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(u32::from(*byte));
            (hash ^ (hash >> 24 & 0xf0)) & 0x0fff_ffff
        });
        // SAFETY: a table as the linker wrote it.
        unsafe {
            let buckets = *self.hash as usize;
            if buckets == 0 {
                return ptr::null_mut();
            }
            let bucket = self.hash.add(2);
            let chain = bucket.add(buckets);
            let mut index = *bucket.add(hash as usize % buckets) as usize;
            while index != 0 {
                if self.is_named(index, name) {
                    return self.address(index);
                }
                index = *chain.add(index) as usize;
            }
        }
        ptr::null_mut()
    }

    /// Returns true if a symbol is defined under a name.
    unsafe fn is_named(&self, index: usize, name: &CStr) -> bool {
        // SAFETY: a symbol of the table, its version, and its name, which is terminated.
        unsafe {
            let symbol = &*self.symbols.add(index);
            symbol.section != SHN_UNDEF
                && (self.versions.is_null() || *self.versions.add(index) & VERSYM_HIDDEN == 0)
                && CStr::from_ptr(self.names.add(symbol.name as usize)) == name
        }
    }

    /// Address of a symbol.
    unsafe fn address(&self, index: usize) -> *mut c_void {
        // SAFETY: a symbol of the table.
        let symbol = unsafe { &*self.symbols.add(index) };
        let address = (self.base + symbol.value) as *mut c_void;
        if symbol.info & 0xf == STT_GNU_IFUNC {
            // SAFETY: the symbol is a function that returns the address of the one to call.
            let choose: extern "C" fn() -> *mut c_void = unsafe { std::mem::transmute(address) };
            return choose();
        }
        address
    }
}
