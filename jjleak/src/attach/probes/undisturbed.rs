//! System calls that a kill does not cut short.
//!
//! To put a breakpoint into a process or take it out, the kernel gets at the page that it is on, and refuses to for a thread
//! that is to die (`fatal_signal_pending` in `__get_user_pages`, mm/gup.c). A jjleak that is killed in the middle of attaching
//! or detaching would so leave breakpoints in the target that nobody wants any more ("failed to unregister, leaking uprobe" in the
//! kernel's log): each hit would go on costing its trap until somebody probes the same place anew. Where jjleak is killed at any other
//! time, the kernel takes them out, for a thread that is on its way out has put the signal behind it.
//!
//! So these calls are made by a process of their own, to which the kill is not sent. It has this one's memory and descriptors, as
//! a child of vfork(2) has the memory: what it opens is opened here, and when jjleak is killed meanwhile, it is the last to
//! have the descriptors, and closes them all by its end. Who kills all of a control group, or all who share the memory, as the kernel
//! does when there is none left, kills it, too.

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

/// Plenty for a system call.
const STACK_BYTES: usize = 64 << 10;

thread_local! {
    /// CPU time of the processes that have made this thread's calls. They have its thread-local storage.
    static OF_OTHERS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// CPU time that the calling thread has taken, and the processes that have made its calls.
pub(crate) fn thread_cpu_time() -> Duration {
    taken(ClockId::CLOCK_THREAD_CPUTIME_ID) + OF_OTHERS.get()
}

fn taken(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

/// Makes a system call that no kill of this process cuts short. It is made with what the calling thread has, and must not
/// take a lock, allocate or panic, for a thread that holds a lock may be gone for good.
pub(super) fn undisturbed(call: impl Fn() -> io::Result<RawFd>) -> io::Result<RawFd> {
    let mut outcome = None;
    let mut stack = vec![0; STACK_BYTES];
    let in_child = Box::new(|| {
        outcome = Some(call());
        OF_OTHERS.set(OF_OTHERS.get() + taken(ClockId::CLOCK_PROCESS_CPUTIME_ID));
        0
    });
    let shared = CloneFlags::CLONE_VM | CloneFlags::CLONE_FILES | CloneFlags::CLONE_VFORK;
    // Signals that are sent to all of a terminal's processes would be handled twice.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: this thread waits until the child has ended, so that the child has its stack and its thread-local storage for
    // itself. What the child runs takes no lock, as promised by the caller.
    let child = unsafe { clone(in_child, &mut stack, shared, None) };
    let outcome = match child {
        Ok(child) => {
            // It sends no signal when it ends, and nobody else waits for such children.
            while waitpid(child, Some(WaitPidFlag::__WCLONE)) == Err(Errno::EINTR) {}
            // One that was killed may have made its call: it is not made again.
            outcome.unwrap_or_else(|| Err(Errno::EINTR.into()))
        }
        // Where no process can be made, nothing is better than to do it here.
        Err(_) => call(),
    };
    mask.thread_set_mask()?;
    outcome
}

/// Closes a descriptor, so.
pub(super) fn close(descriptor: OwnedFd) {
    let number = descriptor.into_raw_fd();
    // The descriptor is gone, whatever is said.
    let _ = undisturbed(|| {
        // SAFETY: nobody else has it.
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
        // SAFETY: it has just been opened.
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
