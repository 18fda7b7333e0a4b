//! The rules of the books: what an entry, a return and a free do.

use core::ptr::{addr_of, read_volatile};

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_log_ebpf::debug;
use jjleak_common::{
    cookie::ResultIn,
    counter::Counter,
    live::{Key, Record},
    pending::{Nesting, Pending, flag},
    process::{ImageId, ProcessRow, ProcessSlot, Trampoline, flag as process_flag},
    stack::lost_row,
};

use crate::{
    live::{self, Inserted},
    maps::{PENDING, PROCESSES, count, count_many, filters_out},
    memory::{opaque, read_user_word},
    process,
    registers::Hit,
    sampling, stack, trace,
};

/// An armed process, as one hit sees it.
struct Books {
    slot: ProcessSlot,
    image: ImageId,
    row: *const ProcessRow,
}

impl Books {
    /// `None` while the process is not armed.
    #[inline(always)]
    fn of(hit: &Hit) -> Option<Self> {
        let slot = match hit.cookie.process {
            ProcessSlot::OF_WHOEVER_HITS => process::slot_of_current()?,
            slot => slot,
        };
        let row = PROCESSES.get_ptr(slot.0 as u32)?;
        // SAFETY: points into a map value.
        let image = unsafe { read_volatile(addr_of!((*row).image)) };
        if image == 0 { None } else { Some(Self { slot, image: ImageId(image as u32), row }) }
    }

    #[inline(always)]
    fn key(&self, address: u64) -> Key {
        Key::new(self.image, address)
    }

    #[inline(always)]
    fn count(&self, counter: Counter) {
        count(self.slot, counter);
    }

    /// A block was freed that is not in the books. When not all are meant to be there, that means nothing.
    #[inline(always)]
    fn count_unknown_free(&self) {
        if sampling::is_on() {
            return;
        }
        // SAFETY: points into a map value.
        let forked = unsafe { (*self.row).flags } & process_flag::FORKED != 0;
        self.count(if forked { Counter::InheritedFree } else { Counter::UnknownFree });
    }

    /// What a call with this CFA is to the thread's pending call.
    #[inline(always)]
    fn nesting(&self, pending: &Pending, cfa: u64) -> Nesting {
        let may_nest = pending.has(flag::RUNNING) && cfa <= pending.cfa;
        let intact = may_nest && self.holds_trampoline(pending.cfa - 8);
        let from_allocator = intact && self.is_from_allocator(cfa - 8);
        pending.nesting(self.image.0 as u64, cfa, intact, from_allocator)
    }

    /// Whether a return slot leads into an allocator's code; true while that code's place is not known.
    #[inline(always)]
    fn is_from_allocator(&self, slot: u64) -> bool {
        // SAFETY: points into a map value.
        if unsafe { read_volatile(addr_of!((*self.row).text_image)) } != self.image.0 as u64 {
            return true;
        }
        read_user_word(slot).is_some_and(|caller| self.is_allocator_text(caller))
    }

    /// Whether an address is in an allocator's code; true while that code's place is not known.
    #[inline(always)]
    fn is_allocator_text(&self, address: u64) -> bool {
        // SAFETY: points into a map value.
        unsafe {
            read_volatile(addr_of!((*self.row).text_image)) != self.image.0 as u64
                || (*self.row).allocator_text.iter().any(|text| text.contains(address))
        }
    }

    #[inline(always)]
    fn holds_trampoline(&self, slot: u64) -> bool {
        let Some(word) = read_user_word(slot) else { return false };
        // SAFETY: points into a map value.
        let trampoline = unsafe { read_volatile(addr_of!((*self.row).trampoline)) };
        Trampoline(trampoline).is_in(word, self.image)
    }
}

/// Whether a system call with this stack pointer, made by a function that returns to `caller`, is part of the thread's
/// allocation call in progress. Only judges: a record that it takes for stale stays, since the next allocation call shows
/// it anyway.
#[inline(always)]
pub(crate) fn is_part_of_allocation(
    image: ImageId,
    row: *const ProcessRow,
    stack_pointer: u64,
    caller: u64,
) -> bool {
    let Some(pending) = PENDING.get() else { return false };
    // SAFETY: task storage belongs to the current task, which is busy with this very call.
    let pending = unsafe { &*pending };
    let books = Books { slot: image.slot(), image, row };
    let may_nest = pending.has(flag::RUNNING) && stack_pointer <= pending.cfa;
    let intact = may_nest && books.holds_trampoline(pending.cfa - 8);
    let from_allocator = intact && books.is_allocator_text(caller);
    pending.nesting(image.0 as u64, stack_pointer, intact, from_allocator) == Nesting::Nested
}

/// A function that gives a new block was called.
#[inline(always)]
pub(crate) fn enter_allocate(hit: &Hit) {
    let Some(books) = Books::of(hit) else { return };
    let pointee = if hit.cookie.signature.result == ResultIn::Pointee { flag::POINTEE } else { 0 };
    if let Some(pending) = enter(&books, hit) {
        begin(&books, hit, pending, pointee);
    }
}

/// A function that turns a block into another one was called. The block stays in the table until the outcome is known,
/// marked, for the allocator can give its address to somebody else in the meantime.
#[inline(always)]
pub(crate) fn enter_resize(hit: &Hit) {
    let Some(books) = Books::of(hit) else { return };
    let Some(pending) = enter(&books, hit) else { return };
    let signature = &hit.cookie.signature;
    let mut flags = flag::RESIZE;
    if signature.zero_frees {
        flags |= flag::ZERO_FREES;
    }
    let pointer = hit.arg(signature.pointer);
    if pointer != 0 {
        if let Some(old) = live::suspend(books.key(pointer)) {
            pending.old = old;
            flags |= flag::HAS_OLD;
        }
    }
    begin(&books, hit, pending, flags);
}

/// The thread's pending record, when this call is the one that counts.
#[inline(always)]
fn enter<'a>(books: &Books, hit: &Hit) -> Option<&'a mut Pending> {
    let Some(pending) = PENDING.get_or_create() else {
        books.count(Counter::PendingFull);
        return None;
    };
    // SAFETY: task storage belongs to the current task, which is busy with this very probe.
    let pending = unsafe { &mut *pending };
    match books.nesting(pending, hit.cfa()) {
        Nesting::Outermost => Some(pending),
        Nesting::Nested => {
            pending.nested += 1;
            None
        }
        Nesting::Stale => {
            drop_stale(books, hit, pending);
            Some(pending)
        }
    }
}

/// Notes the call.
#[inline(always)]
fn begin(books: &Books, hit: &Hit, pending: &mut Pending, flags: u8) {
    let size = requested_size(hit);
    let left_out = if filters_out(size) {
        flag::FILTERED
    } else if sampling::leaves_out(size) {
        flag::UNSAMPLED
    } else {
        0
    };
    pending.cfa = hit.cfa();
    pending.image = books.image.0 as u64;
    pending.size = size;
    pending.pointer = hit.arg(hit.cookie.signature.pointer);
    pending.nested = 0;
    pending.stack =
        if left_out != 0 { lost_row(books.slot) } else { stack::capture(books.image, books.row, hit) };
    pending.flags = flags | left_out | flag::RUNNING;
}

/// The size the caller asked for; `u64::MAX` when the product overflows, which the allocator refuses.
#[inline(always)]
fn requested_size(hit: &Hit) -> u64 {
    let signature = &hit.cookie.signature;
    let size = hit.arg(signature.size);
    if signature.count.is_none() {
        return size;
    }
    // The barrier keeps LLVM from turning the check into a 128-bit multiplication, which BPF lacks.
    let count = hit.arg(signature.count);
    if count != 0 && size > opaque(u64::MAX) / count { u64::MAX } else { size.wrapping_mul(count) }
}

/// An allocation call will never return. What it was resizing is as it was, for all we know.
#[inline(always)]
fn drop_stale(books: &Books, hit: &Hit, pending: &mut Pending) {
    books.count(Counter::StalePending);
    count_many(books.slot, Counter::MutedCall, pending.nested as u64);
    debug!(hit, "an allocation call at stack pointer {:x} never returned", pending.cfa);
    if pending.has(flag::HAS_OLD) && pending.image == books.image.0 as u64 {
        restore(books, pending);
    }
    pending.flags = 0;
}

/// An allocation function returned.
#[inline(always)]
pub(crate) fn leave(hit: &Hit) {
    let Some(books) = Books::of(hit) else { return };
    let Some(pending) = PENDING.get() else {
        books.count(Counter::ReturnWithoutEntry);
        return;
    };
    // SAFETY: task storage belongs to the current task, which is busy with this very probe.
    let pending = unsafe { &mut *pending };
    let stack_pointer = hit.stack_pointer();
    if !pending.has(flag::RUNNING) {
        // Functions that call each other in tail position return together: the first return settled it.
        if pending.cfa != stack_pointer {
            books.count(Counter::ReturnWithoutEntry);
        }
    } else if stack_pointer == pending.cfa {
        settle(&books, pending, hit.returned());
        pending.flags = 0;
    } else if stack_pointer > pending.cfa {
        drop_stale(&books, hit, pending);
    }
}

/// The outermost call returned: books its outcome.
#[inline(always)]
fn settle(books: &Books, pending: &Pending, returned: u64) {
    let Some(block) = new_block(pending, returned) else {
        books.count(Counter::ResultUnreadable);
        return;
    };
    if block != 0 {
        trace_old(books, pending);
        // The new block first: a snapshot must not find neither.
        let time_ns = book(books, pending, block);
        release_old(books, pending, time_ns);
    } else if pending.has(flag::RESIZE) && pending.pointer != 0 {
        if pending.has(flag::ZERO_FREES) && pending.size == 0 {
            trace_old(books, pending);
            release_old(books, pending, live::NOW);
        } else if pending.has(flag::HAS_OLD) {
            restore(books, pending);
        }
    }
}

/// Address of the new block, 0 when the call failed; `None` when it cannot be read.
#[inline(always)]
fn new_block(pending: &Pending, returned: u64) -> Option<u64> {
    if !pending.has(flag::POINTEE) {
        Some(returned)
    } else if returned as u32 != 0 {
        Some(0)
    } else {
        read_user_word(pending.pointer)
    }
}

/// The block that was resized is gone, since `time_ns`.
#[inline(always)]
fn release_old(books: &Books, pending: &Pending, time_ns: u64) {
    if !pending.has(flag::RESIZE) || pending.pointer == 0 {
        return;
    }
    if pending.has(flag::HAS_OLD) {
        live::conclude(books.key(pending.pointer), &pending.old, time_ns);
    } else {
        books.count_unknown_free();
    }
}

/// Tells of the end of the block that was resized, before the new one, which can have its address; unless the allocator
/// has called its own `free` for it.
#[inline(always)]
fn trace_old(books: &Books, pending: &Pending) {
    if trace::is_on() && pending.has(flag::HAS_OLD) && live::holds(books.key(pending.pointer), &pending.old) {
        trace::freed(books.slot, pending.pointer, pending.old.size);
    }
}

/// The block that should be resized is still there.
#[inline(always)]
fn restore(books: &Books, pending: &Pending) {
    live::resume(books.key(pending.pointer), &pending.old);
}

/// Enters the new block; the time it begins at.
#[inline(always)]
fn book(books: &Books, pending: &Pending, block: u64) -> u64 {
    if pending.has(flag::FILTERED) {
        books.count(Counter::Filtered);
        return live::NOW;
    }
    if pending.has(flag::UNSAMPLED) {
        books.count(Counter::Unsampled);
        return live::NOW;
    }
    // SAFETY: has no preconditions.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    stack::count_allocation(pending.stack, pending.size);
    enter_block(books.key(block), &Record { size: pending.size, time_ns, stack: pending.stack, reserved: 0 });
    trace::allocated(books.slot, block, pending.size);
    time_ns
}

#[inline(always)]
fn enter_block(key: Key, record: &Record) {
    let slot = key.image().slot();
    match live::insert(key, record) {
        Inserted::New => {}
        Inserted::Replaced => count(slot, Counter::MissedFree),
        Inserted::Full => {
            count(slot, Counter::LiveTableFull);
            count_many(slot, Counter::LiveTableFullBytes, record.size);
        }
    }
}

/// A block is about to be freed: it leaves the table now, before the allocator can give its address to
/// somebody else.
#[inline(always)]
pub(crate) fn free(hit: &Hit) {
    let block = hit.arg(hit.cookie.signature.pointer);
    if block == 0 {
        return;
    }
    let Some(books) = Books::of(hit) else { return };
    if let Some(record) = live::remove(books.key(block)) {
        trace::freed(books.slot, block, record.size);
    } else if !sampling::is_on() {
        free_absent(&books, hit);
    }
}

/// A function was called that changes the books in a way that is not followed.
#[inline(always)]
pub(crate) fn count_unseen(hit: &Hit, counter: Counter) {
    if let Some(books) = Books::of(hit) {
        books.count(counter);
    }
}

/// A block that is not in the table is about to be freed.
#[inline(always)]
fn free_absent(books: &Books, hit: &Hit) {
    if let Some(pending) = PENDING.get() {
        // SAFETY: task storage belongs to the current task, which is busy with this very probe.
        let pending = unsafe { &mut *pending };
        // Made by an allocation call in progress, of a block that is the allocator's own.
        if books.nesting(pending, hit.cfa()) == Nesting::Nested {
            return;
        }
    }
    books.count_unknown_free();
}
