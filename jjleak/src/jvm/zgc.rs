//! Colours of ZGC's references: see [`jjleak_common::jvm::Colours`].
//!
//! HotSpot exposes to debuggers the variables that hold the current colours, but not where a thread caches
//! them. Threads cache them side by side, in an order that no JDK has changed. They are found by searching
//! the thread structures.

use jjleak_common::jvm::{Colours, barrier};

use super::Memory;
use super::structs::{Field, Structs};

/// Bytes of a thread that are searched; the collector's data are among its first fields.
const SEARCHED_BYTES: usize = 1024;
/// Maximum number of threads searched.
const MAX_THREADS: u64 = 64;
/// Size of an entry of a thread's TLS module table (glibc's `dtv_t`).
const MODULE_BYTES: u64 = 16;
/// Maximum TLS module number; no program has as many.
const MAX_MODULES: u64 = 1 << 16;
const WORD: u64 = 8;

/// Variables found by symbol or otherwise, under these names.
pub(super) mod variable {
    /// Offset of the thread-local pointer to the JVM's `Thread`, from the start of the library's TLS block.
    pub(crate) const THREAD: &str = "_ZN6Thread12_thr_currentE";
    /// The word with the library's TLS module number, which the loader relocates.
    pub(crate) const MODULE: &str = "R_X86_64_DTPMOD64";
    /// First byte of the library.
    pub(crate) const START: &str = "__ehdr_start";
}

/// Location of ZGC's colours.
#[derive(Debug, Default)]
pub(super) struct ZgcLayout {
    /// Non-generational ZGC, until JDK 23.
    coloured: Option<Globals<3>>,
    generational: Option<Generational>,
    /// The reason to report if generational ZGC is not supported.
    reason: &'static str,
}

/// Pointers to variables, in a structure that a variable points to.
#[derive(Debug)]
struct Globals<const COUNT: usize> {
    instance: u64,
    fields: [Field; COUNT],
}

#[derive(Debug)]
struct Generational {
    /// Bits of stale references, the address shift, and the threads' copies.
    globals: Globals<6>,
    threads: u64,
    count: Field,
    first: Field,
    stack_base: Field,
    stack_size: Field,
    module: u64,
    thread: u64,
}

/// The current colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownColours {
    /// Mask of a reference's address.
    pub(super) mask: u64,
    pub(super) barrier: u32,
    pub(super) colours: Colours,
}

impl<const COUNT: usize> Globals<COUNT> {
    fn of(structs: &Structs, structure: &str, names: [&str; COUNT]) -> Option<Self> {
        let fields = names.map(|name| structs.field(&[(structure, name)]).ok());
        let instance = structs.address(&[(structure, "_instance_p")]).ok()?;
        fields
            .iter()
            .all(Option::is_some)
            .then(|| Self { instance, fields: fields.map(Option::unwrap_or_default) })
    }

    /// Addresses of the variables.
    fn read(&self, memory: &impl Memory) -> Option<[u64; COUNT]> {
        let instance = memory.pointer(self.instance)?;
        let addresses = self.fields.map(|field| field.read(memory, instance).filter(|address| *address != 0));
        addresses.iter().all(Option::is_some).then(|| addresses.map(Option::unwrap_or_default))
    }
}

impl ZgcLayout {
    pub(super) fn of(structs: &Structs, symbol: impl Fn(&str) -> Option<u64>) -> Self {
        let coloured = ["_XAddressWeakBadMask", "_XAddressGoodMask", "_XAddressOffsetMask"];
        let reason = if symbol(variable::THREAD).is_none() {
            "the library has no symbol for the thread pointer"
        } else if symbol(variable::MODULE).is_none() {
            "the library has no TLS module number (no R_X86_64_DTPMOD64 relocation)"
        } else {
            "HotSpot's threads or this collector have an unknown layout"
        };
        Self {
            reason,
            coloured: Globals::of(structs, "XGlobalsForVMStructs", coloured),
            generational: Generational::of(structs, symbol),
        }
    }

    /// The reason why this collector is not supported, if any.
    pub(super) fn lacks(&self, has_generations: bool) -> Option<&'static str> {
        let is_supported = self.generational.is_some() || (self.coloured.is_some() && !has_generations);
        (!is_supported).then_some(self.reason)
    }

    /// The colours under this collector, generational or not.
    pub(super) fn read(&self, memory: &impl Memory, has_generations: bool) -> Option<KnownColours> {
        match &self.coloured {
            Some(globals) if !has_generations => {
                let [stale, change, mask] = globals.read(memory)?;
                let mask = memory.pointer(mask)?;
                let colours = Colours { stale, change, ..Colours::default() };
                Some(KnownColours { mask, barrier: barrier::COLOURED, colours })
            }
            _ => {
                let colours = self.generational.as_ref()?.read(memory)?;
                Some(KnownColours { mask: u64::MAX, barrier: barrier::SHIFTED, colours })
            }
        }
    }
}

impl Generational {
    fn of(structs: &Structs, symbol: impl Fn(&str) -> Option<u64>) -> Option<Self> {
        let names = [
            "_ZPointerLoadShift",
            "_ZPointerLoadGoodMask",
            "_ZPointerLoadBadMask",
            "_ZPointerMarkBadMask",
            "_ZPointerStoreGoodMask",
            "_ZPointerStoreBadMask",
        ];
        let of_list = |name| structs.field(&[("ThreadsList", name)]).ok();
        let of_thread = |name| structs.field(&[("JavaThread", name), ("Thread", name)]).ok();
        Some(Self {
            globals: Globals::of(structs, "ZGlobalsForVMStructs", names)?,
            threads: structs.address(&[("ThreadsSMRSupport", "_java_thread_list")]).ok()?,
            count: of_list("_length")?,
            first: of_list("_threads")?,
            stack_base: of_thread("_stack_base")?,
            stack_size: of_thread("_stack_size")?,
            module: symbol(variable::MODULE)?,
            thread: symbol(variable::THREAD)?.wrapping_sub(symbol(variable::START)?),
        })
    }

    fn read(&self, memory: &impl Memory) -> Option<Colours> {
        let addresses = self.globals.read(memory)?;
        let [change, _, stale, ..] = addresses;
        let masks = addresses.map(|address| memory.pointer(address));
        let [_, Some(load_good), Some(load_bad), Some(mark_bad), Some(store_good), Some(store_bad)] = masks
        else {
            return None;
        };
        let kept = [load_good, load_bad, mark_bad, store_good, store_bad];
        let list = memory.pointer(self.threads)?;
        let count = self.count.read(memory, list)?.min(MAX_THREADS);
        let first = self.first.read(memory, list)?;
        let threads = (0..count).filter_map(|index| memory.pointer(first.wrapping_add(WORD * index)));
        let place = place_in_all(threads.filter_map(|thread| memory.bytes(thread, SEARCHED_BYTES)), kept)?;
        let module = memory.pointer(self.module).filter(|module| (1..MAX_MODULES).contains(module))?;
        let small = |bytes: u64| u32::try_from(bytes).ok();
        Some(Colours {
            stale,
            change,
            module: small(module * MODULE_BYTES)?,
            thread: small(self.thread)?,
            // The second of those.
            thread_stale: small(place + WORD)?,
            stack_base: small(self.stack_base.offset)?,
            stack_size: small(self.stack_size.offset)?,
            reserved: 0,
        })
    }
}

/// Offset of the words, one after the other, in each of these. `None` if they are nowhere, twice in one, or
/// at different offsets. A thread that has not noticed a new phase yet has other words.
fn place_in_all<const COUNT: usize>(
    threads: impl Iterator<Item = Vec<u8>>,
    words: [u64; COUNT],
) -> Option<u64> {
    let wanted = words.map(u64::to_le_bytes);
    let mut place = None;
    for thread in threads {
        let found = thread.as_chunks().0.windows(COUNT).enumerate();
        for (index, _) in found.filter(|(_, window)| *window == wanted) {
            if place.is_some_and(|known| known != index) {
                return None;
            }
            place = Some(index);
        }
    }
    place.map(|index| WORD * index as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jvm::tests::image::Words;

    const MASKS: [u64; 5] = [0x1000, 0xe000, 0xeac0, 0x1510, 0xeae0];
    const THREADS: [usize; 3] = [200, 400, 600];

    fn at(index: usize) -> u64 {
        8 * index as u64
    }

    fn field(index: usize) -> Field {
        Field { offset: at(index), width: 8 }
    }

    /// A JVM with three threads that hold the masks at these words; its TLS module number is 3.
    fn read(places: [usize; 3]) -> Option<Colours> {
        let mut memory = vec![0; 800];
        memory[1] = at(10);
        for index in 0..6 {
            memory[10 + index] = at(20 + index);
        }
        memory[20] = 13;
        memory[21..26].copy_from_slice(&MASKS);
        memory[30] = at(31);
        memory[31..33].copy_from_slice(&[3, at(33)]);
        for (index, (thread, place)) in THREADS.into_iter().zip(places).enumerate() {
            memory[33 + index] = at(thread);
            memory[thread + place..thread + place + 5].copy_from_slice(&MASKS);
        }
        memory[40] = 3;
        let layout = Generational {
            globals: Globals { instance: at(1), fields: [0, 1, 2, 3, 4, 5].map(field) },
            threads: at(30),
            count: field(0),
            first: field(1),
            stack_base: field(102),
            stack_size: field(103),
            module: at(40),
            thread: 0x28,
        };
        layout.read(&Words(memory))
    }

    #[test]
    fn a_thread_keeps_what_it_knows_of_the_phase_in_the_same_place_as_all_others() {
        let known = read([5, 5, 5]).unwrap();
        assert_eq!((known.change, known.stale), (at(20), at(22)));
        assert_eq!((known.module, known.thread, known.thread_stale), (48, 0x28, 48));
        assert_eq!((known.stack_base, known.stack_size), (816, 824));
    }

    #[test]
    fn nothing_is_known_when_it_can_be_in_two_places() {
        assert_eq!(read([5, 5, 7]), None);
    }

    #[test]
    fn without_generations_the_variables_are_found_by_what_the_jvm_says() {
        let mut memory = vec![0; 40];
        memory[1] = at(10);
        memory[10..13].copy_from_slice(&[at(20), at(21), at(22)]);
        memory[22] = 0xfff;
        let globals = Globals { instance: at(1), fields: [0, 1, 2].map(field) };
        let layout = ZgcLayout { coloured: Some(globals), ..ZgcLayout::default() };
        let memory = Words(memory);
        let known = layout.read(&memory, false).unwrap();
        let colours = Colours { stale: at(20), change: at(21), ..Colours::default() };
        assert_eq!(known, KnownColours { mask: 0xfff, barrier: barrier::COLOURED, colours });
        assert_eq!(layout.read(&memory, true), None);
    }
}
