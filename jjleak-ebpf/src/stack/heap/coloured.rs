//! Coloured references of ZGC, which moves objects while threads run. See `jjleak_common::jvm::Colours`.
//!
//! A reference with the colour of the collector's current phase leads to the object, and stays valid until the next phase that
//! moves objects. A reference of another colour may lead to reused memory, and is not followed. The phase is read before the
//! first reference and after the last one, and must be the same. It changes only in safepoints, and no safepoint may have done
//! anything in between, so it cannot have returned to the same value.
//!
//! Generational ZGC has no colours on stacks. References on a thread's stack outside of its frames, such as those to entered
//! continuations, are updated before the thread acknowledges the new phase (`ZStackWatermark::start_processing_impl` in the JDK),
//! which it does before it resumes: they are valid if the thread has acknowledged the phase.

use jjleak_common::jvm::{self, Continuations, barrier};

use crate::{current::thread_pointer, memory::read_user_word};

/// Offset of a thread's table of TLS modules from the thread pointer (glibc, x86-64).
const MODULES_AT: u64 = 8;

/// A phase of the collector, as acknowledged by a thread.
#[repr(C)]
pub(super) struct Phase {
    /// Identity of the phase.
    pub(super) colours: jvm::Phase,
    /// The JVM's thread, if needed.
    thread: u64,
}

/// Returns true if references of a process have colours.
#[inline(always)]
pub(super) fn are_coloured(known: &Continuations) -> bool {
    known.barrier >= barrier::COLOURED
}

/// Reads the phase, if the collector has phases. Returns true if the phase is known, and the references on this thread's stack
/// are valid in it.
#[inline(always)]
pub(super) fn begin(phase: &mut Phase, known: &Continuations, stack_pointer: u64) -> bool {
    if !are_coloured(known) {
        return true;
    }
    phase.thread = 0;
    if known.barrier == barrier::SHIFTED {
        let Some(thread) = current_thread(known, stack_pointer) else { return false };
        phase.thread = thread;
    }
    let Some(colours) = now(known) else { return false };
    phase.colours = colours;
    phase.thread == 0 || phase.is_noticed(known)
}

impl Phase {
    /// Returns true if it is still the current phase of the collector, or the collector has none.
    #[inline(always)]
    pub(super) fn still_is(&self, known: &Continuations) -> bool {
        if !are_coloured(known) {
            return true;
        }
        let Some(colours) = now(known) else { return false };
        colours == self.colours && (self.thread == 0 || self.is_noticed(known))
    }

    /// Returns true if the thread has acknowledged the phase.
    #[inline(always)]
    fn is_noticed(&self, known: &Continuations) -> bool {
        let noticed = read_user_word(self.thread.wrapping_add(known.colours.thread_stale as u64));
        noticed == Some(self.colours.stale)
    }
}

/// The current phase. On a change, the JVM writes the bits of stale references before the shift, and after bits that are part of
/// an address. The latter do not matter: addresses with any of them lead to the same memory.
#[inline(always)]
fn now(known: &Continuations) -> Option<jvm::Phase> {
    let change = read_user_word(known.colours.change)?;
    Some(jvm::Phase { stale: read_user_word(known.colours.stale)?, change })
}

/// The JVM's thread object of the current thread, if this is its stack.
#[inline(always)]
fn current_thread(known: &Continuations, stack_pointer: u64) -> Option<u64> {
    let pointer = thread_pointer()?;
    // The thread pointer's target contains its own address, for programs that cannot read the register.
    if read_user_word(pointer)? != pointer {
        return None;
    }
    let colours = &known.colours;
    let modules = read_user_word(pointer.wrapping_add(MODULES_AT))?;
    let variables = read_user_word(modules.wrapping_add(colours.module as u64))?;
    let thread = read_user_word(variables.wrapping_add(colours.thread as u64))?;
    let base = read_user_word(thread.wrapping_add(colours.stack_base as u64))?;
    let size = read_user_word(thread.wrapping_add(colours.stack_size as u64))?;
    if base.wrapping_sub(stack_pointer) <= size { Some(thread) } else { None }
}
