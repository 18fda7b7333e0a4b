//! System calls that SIGKILL does not interrupt.
//!
//! To insert or remove a breakpoint, the kernel accesses its page, and refuses to do so for a thread with a pending SIGKILL
//! (`fatal_signal_pending` in `__get_user_pages`, mm/gup.c). If jjleak is killed while it attaches or detaches, orphaned
//! breakpoints would stay in the target ("failed to unregister, leaking uprobe" in the kernel's log): each hit would cost its
//! trap until the same place is probed again. If jjleak is killed at any other time, the kernel removes the breakpoints, because
//! an exiting thread no longer has the signal pending.
//!
//! Therefore a separate process makes these calls, which does not receive the signal. It shares jjleak's memory and descriptors,
//! as a child of vfork(2) shares memory: descriptors that it opens are open in jjleak. If jjleak is killed meanwhile, this
//! process is the last owner of the descriptors, and closes them all when it ends. It is killed as well if a whole control group
//! is killed, or all processes that share the memory, as the kernel's OOM killer does.

use std::cell::Cell;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, clone};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::time::{ClockId, clock_gettime};

/// Ample for a system call.
const STACK_BYTES: usize = 64 << 10;

thread_local! {
    /// CPU time of the processes that made this thread's calls. They share its thread-local storage.
    static OF_OTHERS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// CPU time of the calling thread and of the processes that made its calls.
pub(crate) fn thread_cpu_time() -> Duration {
    taken(ClockId::CLOCK_THREAD_CPUTIME_ID) + OF_OTHERS.get()
}

fn taken(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

/// Makes a system call that a kill of this process does not interrupt. It runs with the memory of the calling thread, and must
/// not take a lock, allocate or panic: a thread that holds a lock may be gone forever.
pub(super) fn undisturbed(call: impl Fn() -> io::Result<RawFd>) -> io::Result<RawFd> {
    let mut outcome = None;
    let mut stack = vec![0; STACK_BYTES];
    let in_child = Box::new(|| {
        outcome = Some(call());
        OF_OTHERS.set(OF_OTHERS.get() + taken(ClockId::CLOCK_PROCESS_CPUTIME_ID));
        0
    });
    let shared = CloneFlags::CLONE_VM | CloneFlags::CLONE_FILES | CloneFlags::CLONE_VFORK;
    // Signals sent to all processes of a terminal would otherwise be handled twice.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: this thread waits until the child has ended, so the child has exclusive use of its stack and the thread-local
    // storage. The closure takes no lock, as promised by the caller.
    let child = unsafe { clone(in_child, &mut stack, shared, None) };
    let outcome = match child {
        Ok(child) => {
            // The child sends no signal when it ends, and no other code waits for such children.
            while waitpid(child, Some(WaitPidFlag::__WCLONE)) == Err(Errno::EINTR) {}
            // A killed child may have made its call, so the call is not repeated.
            outcome.unwrap_or_else(|| Err(Errno::EINTR.into()))
        }
        // If no process can be created, make the call here.
        Err(_) => call(),
    };
    mask.thread_set_mask()?;
    outcome
}

/// Closes a descriptor from the helper process.
pub(super) fn close(descriptor: OwnedFd) {
    let number = descriptor.into_raw_fd();
    // The descriptor is closed whatever the result.
    let _ = undisturbed(|| {
        // SAFETY: nothing else owns the descriptor.
        unsafe { libc::close(number) };
        Ok(number)
    });
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::FromRawFd;

    use super::*;

    #[test]
    fn what_is_opened_is_open_here_and_what_fails_says_why() {
        let open = |path: &std::ffi::CStr| {
            undisturbed(|| {
                // SAFETY: the path ends with a zero.
                let number = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
                if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
            })
        };
        // SAFETY: the descriptor has just been opened.
        let mut file = unsafe { File::from_raw_fd(open(c"/dev/zero").unwrap()) };
        let mut byte = [1];
        assert_eq!((file.read(&mut byte).unwrap(), byte), (1, [0]));
        assert_eq!(open(c"/nothing").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_closed_is_closed_here_and_signals_come_as_before() {
        let before = SigSet::thread_get_mask().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        close(writer.into());
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "nobody writes any more");
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
    }

    #[test]
    fn what_the_call_takes_counts_for_the_thread_that_wants_it() {
        let before = thread_cpu_time();
        let taken = undisturbed(|| {
            while taken(ClockId::CLOCK_PROCESS_CPUTIME_ID) < Duration::from_millis(5) {}
            Ok(0)
        });
        assert_eq!(taken.unwrap(), 0);
        assert!(thread_cpu_time() >= before + Duration::from_millis(5));
    }

    #[test]
    fn it_is_not_this_process_that_makes_the_call() {
        let caller = undisturbed(|| Ok(nix::unistd::Pid::this().as_raw())).unwrap();
        assert_ne!(caller.cast_unsigned(), std::process::id());
    }
}
