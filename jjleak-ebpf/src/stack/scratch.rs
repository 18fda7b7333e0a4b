//! Working memory of stack walks, claimed by one walk at a time.

use core::{
    mem::offset_of,
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::{macros::map, maps::PerCpuArray};
use jjleak_common::{jvm::HEADER_WORDS, stack::StackRecord, unwind::Hint};

use super::{Walk, replay, unfinished};
use crate::memory::swap;

/// Number of words of the stack that a walk has at a time.
pub(super) const WINDOW_WORDS: usize = 1024;
/// Number of words of their buffer, with space for the last chunk, and words before the window ([`replay`]).
pub(super) const BUFFER_WORDS: usize = 2 * WINDOW_WORDS;
/// Place of the window in its buffer.
pub(super) const WINDOW_AT: usize = 2;

/// Size of the CPU's cache lines. The window begins at one, and so does what is copied to it: on AMD's Zen 3, `rep movsb`, with which the
/// kernel copies, takes some 40 times as long if the offsets of source and destination in their pages differ by a part of a line.
pub(super) const LINE_BYTES: u64 = 64;

/// Working memory of a stack walk. Too large for the BPF stack, and needed at entry only, so it is per CPU, not per task. A walk
/// can be preempted by another task's walk, so each claims a buffer of its own.
#[repr(C)]
pub(super) struct Scratch {
    /// 1 while a walk uses the buffer.
    claimed: u64,
    /// Index of this buffer.
    number: u32,
    walk: Walk,
    /// The frames, preceded by the header that is sent with a new stack. Followed by the buffer: the verifier of Linux 6.1 believes that more
    /// is sent.
    record: StackRecord,
    buffer: [u64; BUFFER_WORDS],
    recorded: replay::Recorded,
    extents: replay::Extents,
    pages: unfinished::Pages,
    /// Words of the stack that are addresses of code, those of code in no file, and those that were hashed.
    code_words: unfinished::Places,
    generated_words: unfinished::Places,
    hashed_words: unfinished::Places,
    /// Header of the current generated code.
    header: [u32; HEADER_WORDS],
}

/// A buffer with space to move it. The kernel aligns map values to words only.
#[repr(C)]
struct Movable {
    /// Its own address, as a number.
    address: u64,
    scratch: Scratch,
    _space: [u8; LINE_BYTES as usize],
}

#[map]
static SCRATCH: PerCpuArray<Movable> = PerCpuArray::with_max_entries(Scratch::PER_CPU, 0);

/// Reports of unknown code to the user side, one for each buffer. In a map of their own, because a part of one is the key of a lookup:
/// before Linux 6.7, the kernel does not take a key from the memory that a function is given.
#[map]
static LOOKED_UP: PerCpuArray<Hint> = PerCpuArray::with_max_entries(Scratch::PER_CPU, 0);

impl Scratch {
    /// Buffers per CPU. Preemption nests as deep as there are runnable tasks within a walk. A walk takes a microsecond, an unfinished
    /// one some 100. More walks at once are counted (`scratch_busy`).
    const PER_CPU: u32 = 4;

    /// A buffer that is not in use; `None` if there is none.
    #[inline(always)]
    pub(super) fn claim() -> Option<Claimed> {
        let mut slot = 0;
        while slot < Self::PER_CPU {
            let scratch = Movable::place(SCRATCH.get_ptr_mut(slot)?);
            // SAFETY: points into a map value.
            if unsafe { swap(addr_of_mut!((*scratch).claimed), 1) } == 0 {
                // SAFETY: ours now.
                unsafe { (*scratch).number = slot };
                return Some(Claimed(scratch));
            }
            slot += 1;
        }
        None
    }
}

impl Movable {
    /// The buffer, in the place where its window begins at a cache line.
    #[inline(always)]
    fn place(movable: *mut Self) -> *mut Scratch {
        const WINDOW: usize = offset_of!(Movable, scratch) + offset_of!(Scratch, buffer) + WINDOW_AT * 8;
        // SAFETY: points into a map value; the mask keeps the buffer in it.
        unsafe {
            // The verifier forbids bitwise operations on pointers, but not on a number that was stored and is read back.
            write_volatile(addr_of_mut!((*movable).address), movable as u64);
            let address = read_volatile(addr_of!((*movable).address));
            let rest = address.wrapping_add(WINDOW as u64).wrapping_neg() & (LINE_BYTES - 8);
            addr_of_mut!((*movable).scratch).byte_add(rest as usize)
        }
    }
}

/// A buffer that no other walk uses, from [`Scratch::claim`] to [`Self::release`].
#[derive(Clone, Copy)]
pub(super) struct Claimed(*mut Scratch);

/// Parts of the buffer. Each is a part of a map value, which is the current walk's own while it is claimed.
impl Claimed {
    /// Gives the buffer back. It must not be used afterwards.
    #[inline(always)]
    pub(super) fn release(self) {
        // SAFETY: as above.
        unsafe { write_volatile(addr_of_mut!((*self.0).claimed), 0) };
    }

    /// For a function that is verified by itself.
    #[inline(always)]
    pub(super) fn into_ptr(self) -> *mut Scratch {
        self.0
    }

    /// # Safety
    /// From [`Self::into_ptr`], and not released.
    #[inline(always)]
    pub(super) unsafe fn again(scratch: *mut Scratch) -> Self {
        Self(scratch)
    }

    #[inline(always)]
    pub(super) fn walk<'a>(self) -> &'a mut Walk {
        // SAFETY: as above.
        unsafe { &mut (*self.0).walk }
    }

    #[inline(always)]
    pub(super) fn hint<'a>(self) -> Option<&'a mut Hint> {
        // SAFETY: as above; there is one for each buffer, and nobody else uses it.
        unsafe { LOOKED_UP.get_ptr_mut((*self.0).number).map(|hint| &mut *hint) }
    }

    /// The copied words of the stack.
    #[inline(always)]
    pub(super) fn window(self) -> *mut u64 {
        // SAFETY: as above; in bounds.
        unsafe { self.buffer().add(WINDOW_AT) }
    }

    /// The window with the words before it.
    #[inline(always)]
    pub(super) fn buffer(self) -> *mut u64 {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).buffer) }.cast()
    }

    #[inline(always)]
    pub(super) fn header(self) -> *mut u32 {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).header) }.cast()
    }

    #[inline(always)]
    pub(super) fn extents(self) -> *mut u16 {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).extents) }.cast()
    }

    #[inline(always)]
    pub(super) fn pages(self) -> *mut u64 {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).pages) }.cast()
    }

    #[inline(always)]
    pub(super) fn code_words(self) -> *mut u64 {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).code_words) }.cast()
    }

    #[inline(always)]
    pub(super) fn generated_words(self) -> *mut u64 {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).generated_words) }.cast()
    }

    #[inline(always)]
    pub(super) fn hashed_words(self) -> *mut u64 {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).hashed_words) }.cast()
    }

    #[inline(always)]
    pub(super) fn recorded(self) -> *mut replay::Recorded {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).recorded) }
    }

    #[inline(always)]
    pub(super) fn record(self) -> *mut StackRecord {
        // SAFETY: as above.
        unsafe { addr_of_mut!((*self.0).record) }
    }
}
