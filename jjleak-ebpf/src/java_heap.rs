//! Reports objects that a JVM announces in its heap, each with the bytes that it stands for. The user side sums them up.

use core::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};

use jjleak_common::{
    counter::Counter,
    java_heap::{FollowedHeap, HeapLayout, RING_BYTES, Reason, Record, ThreadHeap},
    sampling::{WEIGHT_ONE, draws_of_bytes},
};

use crate::{
    armed::Armed,
    maps::{JAVA_HEAPS, JAVA_OBJECTS, JAVA_THREADS},
    memory::read_user_word,
    registers::Hit,
    ring::wakeup,
    sampling, stack,
};

/// Largest buffer of a thread: more is taken for a torn read.
const MAX_BUFFER: u64 = 1 << 40;

/// An object that the current thread has allocated: the first in a new buffer, which the signature's `extra` argument is the size of,
/// or one outside of buffers. `pointer` is its class, `count` its thread.
#[inline(always)]
pub(crate) fn announce(hit: &Hit) {
    let Some(armed) = Armed::of(hit) else { return };
    let Some(heap) = followed(&armed) else {
        armed.count(Counter::JavaObjectEarly);
        return;
    };
    let thread = hit.arg(hit.cookie.signature.count);
    let Some(state) = state(&armed, thread) else {
        armed.count(Counter::JavaObjectLost);
        return;
    };
    // SAFETY: the current thread's own value.
    let record = unsafe { &mut (*state).record };
    let Some(reason) = object(&armed, &heap.layout, state, record, hit) else {
        armed.count(Counter::JavaObjectLost);
        return;
    };
    let is_certain = matches!(reason, Reason::FirstBuffer);
    let weight = if is_certain { WEIGHT_ONE } else { weight(heap, record.stands_for) };
    if weight == 0 {
        armed.count(Counter::Unsampled);
        return;
    }
    record.weight = weight;
    record.because = reason as u32;
    record.stack = stack::capture(armed.image, armed.row, hit).stack.row;
    if JAVA_OBJECTS.output::<Record>(&*record, wakeup(&JAVA_OBJECTS, RING_BYTES, false)).is_err() {
        armed.count(Counter::JavaObjectLost);
    }
}

#[inline(always)]
fn object(
    armed: &Armed,
    layout: &HeapLayout,
    state: *mut ThreadHeap,
    record: &mut Record,
    hit: &Hit,
) -> Option<Reason> {
    let signature = &hit.cookie.signature;
    record.class = hit.arg(signature.pointer);
    record.size = hit.arg(signature.size);
    record.thread = hit.arg(signature.count);
    record.image = armed.image;
    record.class_name = read_user_word(record.class.wrapping_add(layout.class_name as u64))?;
    if signature.extra.is_none() {
        record.stands_for = record.size;
        // SAFETY: the current thread's own value.
        unsafe {
            write_volatile(addr_of_mut!((*state).outside), (*state).outside.wrapping_add(record.size));
            record.buffer = (*state).buffer.wrapping_sub((*state).first);
        }
        return Some(Reason::Outside);
    }
    in_buffer(layout, state, record, hit.arg(signature.extra))
}

/// Weight of an object that stands for so many bytes; 0 if it is left out.
#[inline(always)]
fn weight(heap: *const FollowedHeap, bytes: u64) -> u64 {
    // SAFETY: points into a map value, which the user side changes: read once, chance and weight agree.
    let (scale, certain_from) = unsafe {
        (read_volatile(addr_of!((*heap).sample_scale)), read_volatile(addr_of!((*heap).sample_certain_from)))
    };
    if scale != 0 {
        sampling::weight_unless_left_out(draws_of_bytes(scale, certain_from, bytes))
    } else if sampling::is_on() {
        sampling::weight_unless_left_out(sampling::draws(bytes))
    } else {
        WEIGHT_ONE
    }
}

#[inline(always)]
fn followed(armed: &Armed) -> Option<&'static FollowedHeap> {
    // SAFETY: points into a map value.
    JAVA_HEAPS
        .get_ptr(armed.image.slot().0 as u32)
        .map(|heap| unsafe { &*heap })
        .filter(|heap| heap.layout.is_known())
}

/// The first object in a new buffer of this size.
#[inline(always)]
fn in_buffer(
    layout: &HeapLayout,
    state: *mut ThreadHeap,
    record: &mut Record,
    buffer: u64,
) -> Option<Reason> {
    let word = |offset: u32| read_user_word(record.thread.wrapping_add(offset as u64));
    let earlier = word(layout.allocated)?;
    let used = word(layout.buffer_top)?.wrapping_sub(word(layout.buffer_start)?);
    let used = if used < MAX_BUFFER { used } else { record.size };
    // SAFETY: the current thread's own value.
    unsafe {
        if earlier.wrapping_add(used) < (*state).in_buffers.wrapping_add((*state).outside) {
            // Another thread has got the place of one that has ended: its figures begin anew.
            clear(state, (*state).image, record.thread);
        }
        let previous = (*state).buffer;
        let retired = earlier.wrapping_sub((*state).outside);
        let in_buffers = retired.wrapping_add(used);
        let reason = Reason::of_buffer(previous, retired.wrapping_sub((*state).retired), record.size);
        record.stands_for = match reason {
            Reason::FirstBuffer => in_buffers,
            _ => in_buffers.wrapping_sub((*state).in_buffers),
        };
        write_volatile(addr_of_mut!((*state).in_buffers), in_buffers);
        write_volatile(addr_of_mut!((*state).retired), retired);
        record.buffer = previous.wrapping_sub((*state).first);
        write_volatile(addr_of_mut!((*state).buffer), buffer);
        write_volatile(addr_of_mut!((*state).first), record.size);
        Some(reason)
    }
}

/// Figures of this `Thread` of this program.
#[inline(always)]
fn state(armed: &Armed, thread: u64) -> Option<*mut ThreadHeap> {
    let state = JAVA_THREADS.get_or_create()?;
    let image = armed.image.0 as u64;
    // SAFETY: the current thread's own value.
    unsafe {
        if read_volatile(addr_of!((*state).image)) != image || (*state).thread != thread {
            clear(state, image, thread);
        }
    }
    Some(state)
}

/// Forgets the figures of another `Thread`, or of an earlier program.
#[inline(always)]
unsafe fn clear(state: *mut ThreadHeap, image: u64, thread: u64) {
    // SAFETY: the caller's own value.
    unsafe {
        write_volatile(addr_of_mut!((*state).image), image);
        write_volatile(addr_of_mut!((*state).thread), thread);
        write_volatile(addr_of_mut!((*state).buffer), 0);
        write_volatile(addr_of_mut!((*state).first), 0);
        write_volatile(addr_of_mut!((*state).in_buffers), 0);
        write_volatile(addr_of_mut!((*state).retired), 0);
        write_volatile(addr_of_mut!((*state).outside), 0);
    }
}
