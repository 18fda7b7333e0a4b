//! An allocation call between its entry and its return, and the rule that distinguishes outermost from nested
//! calls.

use crate::live::Record;

/// An allocation call in progress, or the last one that finished.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Pending {
    /// Canonical frame address of the call: the stack pointer after its return.
    pub cfa: u64,
    /// The image that made the call, widened; identifies calls of an image that `exec` replaced.
    pub image: u64,
    /// Requested size in bytes; `u64::MAX` if the multiplication overflowed (the call will fail).
    pub size: u64,
    /// The block being resized, or the address for the result.
    pub pointer: u64,
    /// The return address, if the call's exits are probed instead of its return; 0 if the kernel's
    /// return-probe trampoline is in the return slot.
    pub return_address: u64,
    /// Bytes that the call may return beyond `size`.
    pub extra: u64,
    /// Hash of the call's stack, which may have been evicted from its row by the end of the call; 0 for no stack.
    pub hash: u64,
    /// Index of the row that the stack had.
    pub stack: u32,
    /// Number of calls ignored as nested in this one.
    pub nested: u16,
    /// The allocator, as an index into [`crate::process::ProcessRow::allocator_text`]; out of range if
    /// unknown.
    pub allocator: u8,
    /// Flags, see [`flag`].
    pub flags: u8,
    /// Record of the block being resized, which stays in the table until the outcome is known.
    pub old: Record,
}

/// Bits of [`Pending::flags`].
pub mod flag {
    /// The call has not returned yet.
    pub const RUNNING: u8 = 1;
    /// The call resizes the block at `pointer`.
    pub const RESIZE: u8 = 2;
    /// `old` holds the record of the block being resized.
    pub const HAS_OLD: u8 = 4;
    /// Resizing to 0 bytes frees the block and returns null.
    pub const ZERO_FREES: u8 = 8;
    /// The result will be written to `pointer`; the return value is an error number.
    pub const POINTEE: u8 = 16;
    /// The size filters exclude this call.
    pub const FILTERED: u8 = 32;
    /// Sampling excludes this call.
    pub const UNSAMPLED: u8 = 64;
    /// The call resizes the block in place; the return value is its real size, which is less than `size` on
    /// failure (jemalloc's `xallocx`).
    pub const IN_PLACE: u8 = 128;
}

const _: () = assert!(size_of::<Pending>() == 88 && align_of::<Pending>() == 8);

/// A thread's calls in progress, in task storage.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Calls {
    /// The innermost call that counts.
    pub current: Pending,
    /// The call that called back into the program, which made `current`: an `operator new` that runs a new
    /// handler, or is about to throw.
    pub outer: Pending,
    /// The thread's [`crate::stack::thread_identity`]; 0 until it is needed.
    pub thread: u64,
    /// Unknown blocks that the C library has freed since the thread last allocated: if the thread ends now,
    /// they were its cached blocks.
    pub freed_by_library: u64,
    /// The block freed last through a function that may pass it on to another allocator
    /// ([`crate::cookie::Signature::passes_on`]), whose free of it is part of the same one.
    pub passed_on: u64,
}

/// Maximum number of calls nested in one call. Real allocators nest a handful (`posix_memalign` to `memalign`
/// to `malloc`). A pending record that seems to hold more is one whose call never returned, and must not
/// silence its thread.
pub const MAX_NESTED: u16 = 16;

/// Relation of a call to its thread's pending record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nesting {
    /// No call is pending: this one counts.
    Outermost,
    /// Made by the pending call: only the outer one counts.
    Nested,
    /// Made by the program during the pending call: both count.
    CalledBack,
    /// The pending call will never return: its record is dropped, and this call counts.
    Stale,
}

impl Pending {
    /// Returns true if `flag` is set.
    #[inline(always)]
    #[must_use]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns true if the call's end is detected at its exits rather than by a return probe.
    #[inline(always)]
    #[must_use]
    pub const fn ends_at_exits(&self) -> bool {
        self.return_address != 0
    }

    /// Classifies a call with canonical frame address `cfa` in `image`.
    ///
    /// `return_slot_intact` is true if the word below the pending call's CFA is still what it was at entry: the
    /// return-probe trampoline, or the return address of a call whose exits are probed. `from_allocator` is true if
    /// an allocator's code makes the new call. A deeper call with both is nested; an intact slot alone can be a
    /// leftover that the frames of later calls cover without writing to it. An equal CFA with an intact slot is a
    /// tail call (`reallocarray` jumping to `realloc`); with another word in the slot it is a new call from the same
    /// place.
    ///
    /// A call whose exits are probed may have thrown an exception, which is not detected. If it has, the program can
    /// call again from the same place, which looks like a tail call. If it has not, it can call back into the
    /// program, whose allocations count on their own.
    #[inline(always)]
    #[must_use]
    pub const fn nesting(
        &self,
        image: u64,
        cfa: u64,
        return_slot_intact: bool,
        from_allocator: bool,
    ) -> Nesting {
        if !self.has(flag::RUNNING) {
            return Nesting::Outermost;
        }
        if self.image != image || !return_slot_intact || self.nested >= MAX_NESTED {
            return Nesting::Stale;
        }
        if cfa < self.cfa && from_allocator || cfa == self.cfa && !self.ends_at_exits() {
            Nesting::Nested
        } else if cfa < self.cfa && self.ends_at_exits() {
            Nesting::CalledBack
        } else {
            Nesting::Stale
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTER: u64 = 0x7fff_0000;
    const IMAGE: u64 = 1;

    fn running() -> Pending {
        Pending {
            cfa: OUTER,
            image: IMAGE,
            size: 0,
            pointer: 0,
            return_address: 0,
            extra: 0,
            hash: 0,
            stack: 0,
            nested: 0,
            allocator: 0,
            flags: flag::RUNNING,
            old: Record { size: 0, time_ns: 0, stack: 0, reserved: 0 },
        }
    }

    #[test]
    fn a_call_is_outermost_when_none_is_running() {
        let finished = Pending { flags: 0, ..running() };
        assert_eq!(finished.nesting(IMAGE, OUTER - 64, true, true), Nesting::Outermost);
    }

    #[test]
    fn a_deeper_call_is_nested() {
        assert_eq!(running().nesting(IMAGE, OUTER - 64, true, true), Nesting::Nested);
    }

    #[test]
    fn a_tail_call_is_nested() {
        assert_eq!(running().nesting(IMAGE, OUTER, true, false), Nesting::Nested);
    }

    #[test]
    fn a_new_call_from_the_same_frame_shows_that_the_pending_one_is_gone() {
        assert_eq!(running().nesting(IMAGE, OUTER, false, true), Nesting::Stale);
    }

    #[test]
    fn a_call_from_a_shallower_frame_shows_that_the_pending_one_is_gone() {
        assert_eq!(running().nesting(IMAGE, OUTER + 64, true, true), Nesting::Stale);
    }

    #[test]
    fn a_deeper_call_is_not_nested_once_the_return_slot_is_overwritten() {
        assert_eq!(running().nesting(IMAGE, OUTER - 64, false, true), Nesting::Stale);
    }

    #[test]
    fn a_deeper_call_is_not_nested_when_the_program_itself_makes_it() {
        assert_eq!(running().nesting(IMAGE, OUTER - 64, true, false), Nesting::Stale);
    }

    #[test]
    fn a_pending_call_of_a_replaced_image_is_stale() {
        assert_eq!(running().nesting(IMAGE + 1, OUTER - 64, true, true), Nesting::Stale);
    }

    #[test]
    fn no_pending_record_mutes_its_thread_for_ever() {
        let stuck = Pending { nested: MAX_NESTED, ..running() };
        assert_eq!(stuck.nesting(IMAGE, OUTER - 64, true, true), Nesting::Stale);
    }

    fn throwing() -> Pending {
        Pending { return_address: 0x40_1000, ..running() }
    }

    #[test]
    fn a_call_by_the_program_inside_of_operator_new_counts_beside_it() {
        assert_eq!(throwing().nesting(IMAGE, OUTER - 64, true, false), Nesting::CalledBack);
        assert_eq!(throwing().nesting(IMAGE, OUTER - 64, true, true), Nesting::Nested);
    }

    #[test]
    fn a_call_from_where_operator_new_was_called_shows_that_it_has_thrown() {
        assert_eq!(throwing().nesting(IMAGE, OUTER, true, true), Nesting::Stale);
        assert_eq!(throwing().nesting(IMAGE, OUTER - 64, false, true), Nesting::Stale);
        assert_eq!(throwing().nesting(IMAGE, OUTER + 64, true, true), Nesting::Stale);
    }
}
