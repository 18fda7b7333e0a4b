//! The table of profiled processes.

/// Index of a process in the process table; travels in every attach cookie.
///
/// The probes of a process fire only for tasks that share its memory, so the slot identifies the address
/// space: threads, and the child of a `vfork`, are booked where their heap is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ProcessSlot(pub u16);

/// Number of processes one load of the BPF object can profile at a time. A row is 112 bytes; the sizing is by
/// what a person can look at, not by memory.
pub const MAX_PROCESSES: u32 = 1024;

/// Identifies one program image of one process: a new one is given at every `exec`, so that blocks of the old
/// image cannot be taken for blocks of the new one. 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ImageId(pub u16);

impl ImageId {
    /// The image after this one. Skips 0, which would disarm the process.
    #[inline(always)]
    #[must_use]
    pub const fn next(self) -> Self {
        Self(if self.0 == u16::MAX { 1 } else { self.0 + 1 })
    }
}

/// Where the kernel's return-probe trampoline is in an image: the start of a page (kernel/events/uprobes.c,
/// `uprobe_get_trampoline_vaddr`), tagged with the image in the bits below. The kernel maps it (`[uprobes]`) at the
/// first hit of a probe, so that it is not known from the start; the tag keeps an address that was found just before
/// an `exec` from being taken for the new image's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Trampoline(pub u64);

impl Trampoline {
    const TAG: u64 = 4095;

    /// The trampoline of `image` at `address`.
    #[must_use]
    pub const fn new(image: ImageId, address: u64) -> Self {
        Self(address & !Self::TAG | image.0 as u64 & Self::TAG)
    }

    /// Whether a return slot that holds `word` belongs to a call that is running in `image`. While the image's
    /// trampoline is not known, every page-aligned word passes for it.
    #[inline(always)]
    #[must_use]
    pub const fn is_in(self, word: u64, image: u64) -> bool {
        if self.0 & Self::TAG == image & Self::TAG && self.0 > Self::TAG {
            word == self.0 & !Self::TAG
        } else {
            word != 0 && word & Self::TAG == 0
        }
    }
}

/// One process, as both sides see it. Written by the user side, and by the kernel side at `exec`; read by every
/// probe.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ProcessRow {
    /// The running image; 0 while the probes are not armed. Setting it arms all probe sites of the process at
    /// once, so that no free can be missed for being attached after its malloc.
    pub image: u64,
    /// A [`Trampoline`]; 0 while unknown.
    pub trampoline: u64,
    /// Smallest size that is recorded, in bytes.
    pub min_size: u64,
    /// Largest size that is recorded, in bytes.
    pub max_size: u64,
    /// 1 + index of the process's current [`crate::unwind::MappingTable`]; 0 while it has none.
    pub mappings: u64,
    /// The image that `allocator_text` describes; another one than `image` while it is not known.
    pub text_image: u64,
    /// Where the allocators' code is mapped; unused places are empty. Calls that nest in a pending one come from
    /// there.
    pub allocator_text: [TextRange; MAX_ALLOCATORS],
}

/// Most allocators in one process whose code is told apart from other code: a C library's, a preloaded one's, and
/// two linked under names of their own.
pub const MAX_ALLOCATORS: usize = 4;

/// Where code is mapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TextRange {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

impl TextRange {
    /// Whether the code at `address` is in the range.
    #[inline(always)]
    #[must_use]
    pub const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

const _: () = assert!(size_of::<ProcessRow>() == 48 + 16 * MAX_ALLOCATORS && align_of::<ProcessRow>() == 8);

// SAFETY: integers only, no padding (asserted above), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for ProcessRow {}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x7fff_f7ff_a000;

    #[test]
    fn a_known_trampoline_is_the_only_one() {
        let trampoline = Trampoline::new(ImageId(3), ADDRESS);
        assert!(trampoline.is_in(ADDRESS, 3));
        assert!(!trampoline.is_in(ADDRESS + 4096, 3));
        assert!(!trampoline.is_in(ADDRESS + 3, 3));
    }

    #[test]
    fn an_unknown_trampoline_can_be_at_the_start_of_any_page() {
        for unknown in [Trampoline(0), Trampoline::new(ImageId(2), ADDRESS)] {
            assert!(unknown.is_in(ADDRESS + 4096, 3));
            assert!(!unknown.is_in(ADDRESS + 8, 3));
            assert!(!unknown.is_in(0, 3));
        }
    }

    #[test]
    fn no_image_is_number_0() {
        assert_eq!(ImageId(0).next(), ImageId(1));
        assert_eq!(ImageId(u16::MAX).next(), ImageId(1));
    }
}
