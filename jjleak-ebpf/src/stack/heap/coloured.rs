//! References where a collector moves objects while threads run: ZGC's, which have colours. See `jjleak_common::jvm::Colours`.
//!
//! A reference of the colour of the phase that the collector is in leads to where the object is, and stays right until the next phase in
//! which objects are moved. What has another colour can lead to memory that has been given to others, and is not followed. The phase is
//! looked at before the first reference is read, and after the last one, and must be the same. Since it is changed in safepoints only, of
//! which none may have done anything in between, it cannot have come round.
//!
//! Generational ZGC has no colours on stacks. What is on a thread's stack outside of its frames, as the references to the continuations
//! that are entered, is brought up to date before the thread takes notice of the new phase
//! (`ZStackWatermark::start_processing_impl` in the JDK), which it does before it runs on: it is right if the thread has.

use aya_ebpf::{Global, helpers::generated::bpf_get_current_task};
use jjleak_common::jvm::{self, Continuations, barrier};

use crate::memory::{read_kernel, read_user_word};

/// Offset of the register by which thread-local variables are found, as the kernel keeps it; 0 when it is not known.
#[unsafe(no_mangle)]
static TASK_THREAD_POINTER: Global<u64> = Global::new(0);

/// Where a thread's table of modules is found, from where that register points to (glibc, x86-64).
const MODULES_AT: u64 = 8;

/// A phase of the collector, as a thread is in it.
#[repr(C)]
pub(super) struct Phase {
    /// What it is known by.
    pub(super) colours: jvm::Phase,
    /// The JVM's thread that is looked at, where that matters.
    thread: u64,
}

/// Whether a process's references have colours.
#[inline(always)]
pub(super) fn are_coloured(known: &Continuations) -> bool {
    known.barrier >= barrier::COLOURED
}

/// Notes the phase, if there are such. Whether it is known then, and what is on this thread's stack is right in it.
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
    /// Whether it is the one that the collector is in now, if it has such.
    #[inline(always)]
    pub(super) fn still_is(&self, known: &Continuations) -> bool {
        if !are_coloured(known) {
            return true;
        }
        let Some(colours) = now(known) else { return false };
        colours == self.colours && (self.thread == 0 || self.is_noticed(known))
    }

    /// Whether the thread has taken notice of it.
    #[inline(always)]
    fn is_noticed(&self, known: &Continuations) -> bool {
        let noticed = read_user_word(self.thread.wrapping_add(known.colours.thread_stale as u64));
        noticed == Some(self.colours.stale)
    }
}

/// What tells the phase. Whoever changes it writes the bits of stale references before a shift, and after bits that belong to an address,
/// which are of no account: addresses with any of them lead to the same memory.
#[inline(always)]
fn now(known: &Continuations) -> Option<jvm::Phase> {
    let change = read_user_word(known.colours.change)?;
    Some(jvm::Phase { stale: read_user_word(known.colours.stale)?, change })
}

/// The JVM's own description of the current thread, whose stack this is.
#[inline(always)]
fn current_thread(known: &Continuations, stack_pointer: u64) -> Option<u64> {
    if TASK_THREAD_POINTER.load() == 0 {
        return None;
    }
    // SAFETY: has no preconditions.
    let task = unsafe { bpf_get_current_task() };
    let pointer: u64 = read_kernel(task + TASK_THREAD_POINTER.load())?;
    // It points to itself, for programs that cannot read the register.
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
