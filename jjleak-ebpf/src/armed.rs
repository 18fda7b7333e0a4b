//! Accounting of the process of a probe hit, and nesting of its calls.

use core::ptr::{addr_of, read_volatile};

use jjleak_common::{
    counter::Counter,
    live::Key,
    pending::{Nesting, Pending, flag},
    process::{ImageId, MAX_ALLOCATORS, ProcessRow, ProcessSlot, Trampoline, flag as process_flag},
};

use crate::{
    current, live,
    maps::{PROCESSES, count},
    memory::read_user_word,
    registers::Hit,
    sampling, stack,
};

/// The armed process of a probe hit.
pub(crate) struct Armed {
    pub(crate) image: ImageId,
    pub(crate) row: *const ProcessRow,
}

impl Armed {
    /// `None` if the process is not armed.
    #[inline(always)]
    pub(crate) fn of(hit: &Hit) -> Option<Self> {
        let slot = match hit.cookie.process {
            ProcessSlot::OF_WHOEVER_HITS => current::slot_of_current()?,
            slot => slot,
        };
        let row = PROCESSES.get_ptr(slot.0 as u32)?;
        // SAFETY: points into a map value.
        let image = unsafe { read_volatile(addr_of!((*row).image)) };
        if image == 0 { None } else { Some(Self { image: ImageId(image as u32), row }) }
    }

    #[inline(always)]
    pub(crate) fn key(&self, address: u64) -> Key {
        Key::new(self.image, address)
    }

    /// Unmarks the block of a resize that failed.
    #[inline(always)]
    pub(crate) fn restore(&self, pending: &Pending) {
        live::resume(self.key(pending.pointer), &pending.old);
    }

    #[inline(always)]
    pub(crate) fn count(&self, counter: Counter) {
        count(self.image.slot(), counter);
    }

    /// Counts the free of an unknown block. With sampling, such frees are expected and not counted.
    #[inline(always)]
    pub(crate) fn count_unknown_free(&self) {
        if sampling::is_on() {
            return;
        }
        // SAFETY: points into a map value.
        let forked = unsafe { (*self.row).flags } & process_flag::FORKED != 0;
        self.count(if forked { Counter::InheritedFree } else { Counter::UnknownFree });
    }

    /// Relation of a call with this CFA to a call that may be pending.
    #[inline(always)]
    pub(crate) fn nesting(&self, pending: &Pending, cfa: u64) -> Nesting {
        let may_nest = pending.has(flag::RUNNING) && cfa <= pending.cfa;
        let intact = may_nest && self.is_intact(pending);
        let from_allocator = intact && self.is_from_allocator(pending, cfa - 8);
        pending.nesting(self.image.0 as u64, cfa, intact, from_allocator)
    }

    /// Returns true if a pending call makes a system call with this stack pointer, by a function that returns to `caller`.
    #[inline(always)]
    pub(crate) fn makes(&self, pending: &Pending, stack_pointer: u64, caller: u64) -> bool {
        let may_nest = pending.has(flag::RUNNING) && stack_pointer <= pending.cfa;
        let intact = may_nest && self.is_intact(pending);
        let from_allocator = intact && self.is_allocator_text(pending, caller);
        pending.nesting(self.image.0 as u64, stack_pointer, intact, from_allocator) == Nesting::Nested
    }

    /// Returns true if the return slot of the pending call is unchanged since entry.
    #[inline(always)]
    pub(crate) fn is_intact(&self, pending: &Pending) -> bool {
        let slot = pending.cfa - 8;
        if pending.ends_at_exits() {
            read_user_word(slot) == Some(pending.return_address)
        } else {
            self.holds_trampoline(slot)
        }
    }

    /// Returns true if a return slot leads to code that may have made the call on behalf of the pending one: any allocator's
    /// code. True if the location of that code is unknown. An exception leaves behind the record of the call that threw it; to
    /// avoid muting other calls, only calls by the same allocator count as nested in such a call.
    #[inline(always)]
    fn is_from_allocator(&self, pending: &Pending, slot: u64) -> bool {
        if !self.knows_allocators() {
            return !pending.ends_at_exits();
        }
        let Some(caller) = read_user_word(slot) else { return false };
        // A muted call may have ended with a tail call of another function, which has the return probe.
        self.is_trampoline(caller) || self.is_allocator_text(pending, caller)
    }

    /// Returns true if an address is in code that may make calls on behalf of the pending one.
    #[inline(always)]
    fn is_allocator_text(&self, pending: &Pending, address: u64) -> bool {
        if !self.knows_allocators() {
            return true;
        }
        let allocator = self.allocator_at(address);
        if pending.ends_at_exits() {
            allocator < MAX_ALLOCATORS as u8 && allocator == pending.allocator
        } else {
            // A library mapped since the last scan may be an allocator: its probes can be attached already, for other processes.
            allocator < MAX_ALLOCATORS as u8 || !stack::is_known_code(self.image, self.row, address)
        }
    }

    /// Returns true if the function with this CFA is known to have been called by code of a file with an allocator.
    #[inline(always)]
    pub(crate) fn is_freed_by_allocator(&self, cfa: u64) -> bool {
        if !self.knows_allocators() {
            return false;
        }
        let Some(caller) = read_user_word(cfa - 8) else { return false };
        self.allocator_at(caller) < MAX_ALLOCATORS as u8
    }

    #[inline(always)]
    pub(crate) fn knows_allocators(&self) -> bool {
        // SAFETY: points into a map value.
        unsafe { read_volatile(addr_of!((*self.row).text_image)) == self.image.0 as u64 }
    }

    /// Index of the allocator whose code contains an address; `MAX_ALLOCATORS` if there is none.
    #[inline(always)]
    pub(crate) fn allocator_at(&self, address: u64) -> u8 {
        let mut index = 0;
        while index < MAX_ALLOCATORS {
            // SAFETY: points into a map value; the index is within the array.
            if unsafe { (*self.row).allocator_text[index].contains(address) } {
                break;
            }
            index += 1;
        }
        index as u8
    }

    #[inline(always)]
    fn holds_trampoline(&self, slot: u64) -> bool {
        let Some(word) = read_user_word(slot) else { return false };
        self.is_trampoline(word)
    }

    #[inline(always)]
    fn is_trampoline(&self, word: u64) -> bool {
        // SAFETY: points into a map value.
        let trampoline = unsafe { read_volatile(addr_of!((*self.row).trampoline)) };
        Trampoline(trampoline).is_in(word, self.image)
    }
}
