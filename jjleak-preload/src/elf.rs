//! Symbol tables of the loaded libraries: functions, and imports. `dlsym` would not do: before glibc 2.34 it is in a
//! library that a program may not have, and it allocates.

#![expect(clippy::cast_possible_truncation, reason = "addresses and sizes in this process")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use libc::dl_phdr_info;
use object::elf::{
    DT_GNU_HASH, DT_HASH, DT_JMPREL, DT_NULL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_STRTAB, DT_SYMTAB,
    DT_VERSYM, Dyn64, GnuHashHeader, HashHeader, R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT, Rela64,
    SHN_UNDEF, STT_GNU_IFUNC, Sym64, VERSYM_HIDDEN, gnu_hash, hash,
};
use object::{LittleEndian, U32};

type Symbol = Sym64<LittleEndian>;
type Relocation = Rela64<LittleEndian>;

/// Search for a function in the loaded libraries.
struct Search<'a> {
    name: &'a CStr,
    /// True where libraries count: behind this one, or all others.
    counts: bool,
    found: *mut c_void,
}

/// First function of a name behind this library; null if there is none.
#[cold]
pub(crate) fn next(name: &CStr) -> *mut c_void {
    search(Search { name, counts: false, found: ptr::null_mut() })
}

/// First function of a name in another library than this one: what the program finds, unless a library has its own; null if there is
/// none.
#[cold]
pub(crate) fn first(name: &CStr) -> *mut c_void {
    search(Search { name, counts: true, found: ptr::null_mut() })
}

fn search(mut search: Search<'_>) -> *mut c_void {
    // SAFETY: the search outlives the call, and nobody else has it.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Visits a library; they come in the order of their loading. Returns 1 to end the search.
unsafe extern "C" fn visit(library: *mut dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: a library that stays loaded during the call, and the search of `search`.
    unsafe {
        let (library, search) = (&*library, &mut *search.cast::<Search>());
        if is_own(library) {
            search.counts = true;
        } else if search.counts {
            search.found = Tables::of(library).map_or(ptr::null_mut(), |tables| tables.function(search.name));
        }
        c_int::from(!search.found.is_null())
    }
}

/// Returns true for this library.
///
/// # Safety
/// The library must be loaded.
pub(crate) unsafe fn is_own(library: &dl_phdr_info) -> bool {
    static OWN: u8 = 0;
    // SAFETY: as promised by the caller.
    unsafe { has(library, (&raw const OWN).addr()) }
}

/// Returns true for the loader.
///
/// # Safety
/// The library must be loaded.
pub(crate) unsafe fn is_loader(library: &dl_phdr_info) -> bool {
    // SAFETY: as promised by the caller.
    unsafe { is_named(library, &[b"ld-", b"ld."]) }
}

/// Returns true if the name of a library's file begins like one of these.
///
/// # Safety
/// The library must be loaded.
unsafe fn is_named(library: &dl_phdr_info, starts: &[&[u8]]) -> bool {
    if library.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: a terminated name.
    let path = unsafe { CStr::from_ptr(library.dlpi_name) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    starts.iter().any(|start| name.starts_with(start))
}

/// Returns true if one library has both addresses.
pub(crate) fn are_in_one_library(one: usize, other: usize) -> bool {
    unsafe extern "C" fn visit(library: *mut dl_phdr_info, _: usize, both: *mut c_void) -> c_int {
        // SAFETY: a library that stays loaded during the call, and the addresses of `are_in_one_library`.
        unsafe {
            let [one, other] = *both.cast::<[usize; 2]>();
            c_int::from(has(&*library, one) && has(&*library, other))
        }
    }
    let mut both = [one, other];
    // SAFETY: the addresses outlive the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut both).cast()) != 0 }
}

/// Returns true if a library defines malloc that neither has this one nor is the C library or the loader.
pub(crate) fn has_other_malloc(malloc: usize) -> bool {
    unsafe extern "C" fn visit(library: *mut dl_phdr_info, _: usize, malloc: *mut c_void) -> c_int {
        // SAFETY: a library that stays loaded during the call, and the address of `has_other_malloc`.
        unsafe {
            let (library, malloc) = (&*library, *malloc.cast::<usize>());
            let is_known = is_own(library)
                || is_loader(library)
                || has(library, malloc)
                || is_named(library, &[b"libc.so", b"libc-2.", b"libc.musl"]);
            let defines = || Tables::of(library).is_some_and(|it| !it.function(c"malloc").is_null());
            c_int::from(!is_known && defines())
        }
    }
    let mut malloc = malloc;
    // SAFETY: the address outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut malloc).cast()) != 0 }
}

/// Returns true if an address is in a library.
///
/// # Safety
/// The library must be loaded.
pub(crate) unsafe fn has(library: &dl_phdr_info, address: usize) -> bool {
    // SAFETY: as promised by the caller.
    let mut segments = unsafe { segments(library, libc::PT_LOAD) };
    segments.any(|(begin, bytes)| address.wrapping_sub(begin) < bytes)
}

/// Addresses and sizes of a library's segments of a type.
///
/// # Safety
/// The library must be loaded.
pub(crate) unsafe fn segments(library: &dl_phdr_info, kind: u32) -> impl Iterator<Item = (usize, usize)> {
    let base = library.dlpi_addr as usize;
    (0..usize::from(library.dlpi_phnum)).filter_map(move |index| {
        // SAFETY: one of as many headers.
        let header = unsafe { &*library.dlpi_phdr.add(index) };
        (header.p_type == kind).then(|| (base.wrapping_add(header.p_vaddr as usize), header.p_memsz as usize))
    })
}

/// Place that the loader fills with the address of a symbol.
pub(crate) struct Import<'a> {
    pub(crate) name: &'a CStr,
    pub(crate) place: usize,
    /// True if the library defines the symbol itself.
    pub(crate) is_defined: bool,
}

/// Tables that a library is linked by; null for those that it lacks.
pub(crate) struct Tables {
    base: usize,
    symbols: *const Symbol,
    names: *const c_char,
    versions: *const u16,
    gnu_hash: *const GnuHashHeader<LittleEndian>,
    hash: *const HashHeader<LittleEndian>,
    /// Relocations: those of the procedure linkage table, and the others, with their sizes in bytes.
    calls: (*const Relocation, usize),
    others: (*const Relocation, usize),
}

impl Tables {
    /// # Safety
    /// The library must be loaded.
    pub(crate) unsafe fn of(library: &dl_phdr_info) -> Option<Self> {
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
            calls: (ptr::null(), 0),
            others: (ptr::null(), 0),
        };
        let mut entry = dynamic as *const Dyn64<LittleEndian>;
        loop {
            // SAFETY: the entry that ends the table was not passed.
            let (tag, value) =
                unsafe { ((*entry).d_tag.get(LittleEndian), (*entry).d_val.get(LittleEndian) as usize) };
            // glibc has made addresses of the offsets, except in the kernel's library (vdso); musl leaves them.
            let place = if value < base { base + value } else { value };
            match tag {
                DT_NULL => break,
                DT_SYMTAB => tables.symbols = place as *const _,
                DT_STRTAB => tables.names = place as *const _,
                DT_VERSYM => tables.versions = place as *const _,
                DT_GNU_HASH => tables.gnu_hash = place as *const _,
                DT_HASH => tables.hash = place as *const _,
                DT_JMPREL => tables.calls.0 = place as *const _,
                DT_PLTRELSZ => tables.calls.1 = value,
                DT_RELA => tables.others.0 = place as *const _,
                DT_RELASZ => tables.others.1 = value,
                _ => {}
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
        (!tables.symbols.is_null() && !tables.names.is_null()).then_some(tables)
    }

    /// Relocations with the value of a symbol.
    ///
    /// # Safety
    /// The library must stay loaded.
    pub(crate) unsafe fn imports(&self) -> impl Iterator<Item = Import<'_>> {
        let all = [self.calls, self.others].into_iter().filter(|(first, _)| !first.is_null());
        let all = all.flat_map(|(first, bytes)| {
            // SAFETY: as many relocations as the linker says.
            (0..bytes / size_of::<Relocation>()).map(move |index| unsafe { &*first.add(index) })
        });
        all.filter_map(|relocation| {
            let symbol = relocation.r_sym(LittleEndian, false) as usize;
            let is_value = [R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT]
                .contains(&relocation.r_type(LittleEndian, false));
            if symbol == 0 || !is_value || relocation.r_addend.get(LittleEndian) != 0 {
                return None;
            }
            // SAFETY: a symbol of the table, and its name, which is terminated.
            let (symbol, name) = unsafe {
                let symbol = &*self.symbols.add(symbol);
                (symbol, CStr::from_ptr(self.names.add(symbol.st_name.get(LittleEndian) as usize)))
            };
            let place = self.base.wrapping_add(relocation.r_offset.get(LittleEndian) as usize);
            Some(Import { name, place, is_defined: symbol.st_shndx.get(LittleEndian) != SHN_UNDEF })
        })
    }

    /// A function that the library defines; null if it does not.
    ///
    /// # Safety
    /// The library must be loaded.
    unsafe fn function(&self, name: &CStr) -> *mut c_void {
        // SAFETY: as promised by the caller.
        let found = unsafe { self.by_gnu_hash(name).or_else(|| self.by_hash(name)) };
        // SAFETY: a symbol of the table.
        found.map_or(ptr::null_mut(), |index| unsafe { self.address(index) })
    }

    /// Index of a symbol by the table of `DT_GNU_HASH`: a filter, which is left out; the first symbol of each bucket; and for each symbol its
    /// hash, whose lowest bit ends a bucket.
    unsafe fn by_gnu_hash(&self, name: &CStr) -> Option<usize> {
        // SAFETY: null, or a table as the linker wrote it.
        unsafe {
            let header = self.gnu_hash.as_ref()?;
            let [buckets, first, words] = [header.bucket_count, header.symbol_base, header.bloom_count]
                .map(|number| number.get(LittleEndian) as usize);
            let hash = gnu_hash(name.to_bytes());
            let filter = self.gnu_hash.add(1).cast::<U32<LittleEndian>>();
            let bucket = filter.add(words * 2);
            let chain = bucket.add(buckets);
            let mut index = (*bucket.add((hash as usize).checked_rem(buckets)?)).get(LittleEndian) as usize;
            // An empty bucket has 0.
            while index >= first.max(1) {
                let of_symbol = (*chain.add(index - first)).get(LittleEndian);
                if of_symbol | 1 == hash | 1 && self.is_named(index, name) {
                    return Some(index);
                }
                if of_symbol & 1 == 1 {
                    break;
                }
                index += 1;
            }
        }
        None
    }

    /// Index of a symbol by the table of `DT_HASH`: the first symbol of each bucket, and for each symbol the next one of its bucket.
    unsafe fn by_hash(&self, name: &CStr) -> Option<usize> {
        // SAFETY: null, or a table as the linker wrote it.
        unsafe {
            let buckets = self.hash.as_ref()?.bucket_count.get(LittleEndian) as usize;
            let bucket = self.hash.add(1).cast::<U32<LittleEndian>>();
            let chain = bucket.add(buckets);
            let mut index = (*bucket.add((hash(name.to_bytes()) as usize).checked_rem(buckets)?))
                .get(LittleEndian) as usize;
            while index != 0 {
                if self.is_named(index, name) {
                    return Some(index);
                }
                index = (*chain.add(index)).get(LittleEndian) as usize;
            }
        }
        None
    }

    /// Returns true if a symbol is defined under a name. Old versions of symbols are hidden: a name without a version does not mean them.
    unsafe fn is_named(&self, index: usize, name: &CStr) -> bool {
        // SAFETY: a symbol of the table, its version, and its name, which is terminated.
        unsafe {
            let symbol = &*self.symbols.add(index);
            symbol.st_shndx.get(LittleEndian) != SHN_UNDEF
                && (self.versions.is_null() || *self.versions.add(index) & VERSYM_HIDDEN.0 == 0)
                && CStr::from_ptr(self.names.add(symbol.st_name.get(LittleEndian) as usize)) == name
        }
    }

    /// Address of a symbol.
    unsafe fn address(&self, index: usize) -> *mut c_void {
        // SAFETY: a symbol of the table.
        let symbol = unsafe { &*self.symbols.add(index) };
        let address = (self.base + symbol.st_value.get(LittleEndian) as usize) as *mut c_void;
        if symbol.st_type() == STT_GNU_IFUNC {
            // SAFETY: the symbol is a function that returns the address of the one to call.
            let choose: extern "C" fn() -> *mut c_void = unsafe { std::mem::transmute(address) };
            return choose();
        }
        address
    }
}
