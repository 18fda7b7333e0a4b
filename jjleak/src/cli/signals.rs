//! SIGINT, SIGTERM and SIGHUP: the first requests the final report, a second ends jjleak at once.
//!
//! A separate thread waits for them, so that the second takes effect whatever the other threads do.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{SigSet, Signal};
use tokio::sync::Notify;

use crate::{live, store};

/// Time during which further signals count as echoes of the first. timeout(1) signals jjleak and then its whole process group; a
/// closing terminal sends one signal, and its shell another. None of them asks jjleak to leave without a report, and within this
/// time no user can have seen that the first was received.
const ECHO: Duration = Duration::from_millis(500);

/// Takes over the signals and returns a handle that is notified at the first. Must be called before any other thread starts,
/// because threads inherit the signal mask.
pub(super) fn watch() -> io::Result<Arc<Notify>> {
    let mut signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    if !is_ignored(Signal::SIGHUP)? {
        signals.add(Signal::SIGHUP);
    }
    signals.thread_block()?;
    let first = Arc::new(Notify::new());
    let notify = Arc::clone(&first);
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        // Waiting fails only for invalid sets.
        let Ok(_) = signals.wait() else { return };
        notify.notify_one();
        let asked_at = Instant::now();
        while let Ok(signal) = signals.wait() {
            if asked_at.elapsed() >= ECHO {
                leave(signal);
            }
        }
    })?;
    Ok(first)
}

/// Ends jjleak whatever its other threads wait for: they may hold stdout, and stderr may be a pipe that nobody reads. The exit
/// code is the one that a shell reports for a process killed by the signal.
fn leave(signal: Signal) -> ! {
    store::discard_all();
    live::give_back();
    // SAFETY: it only ends the process, and all cleanup has been done.
    unsafe { libc::_exit(128 + signal as i32) }
}

/// Returns true if jjleak was started with a signal ignored, as nohup(1) does with SIGHUP. A blocked signal would be received
/// nevertheless.
fn is_ignored(signal: Signal) -> io::Result<bool> {
    // SAFETY: all zeros is a valid value of this structure of numbers.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action, the call only writes the current one, to a valid and exclusive place.
    let result = unsafe { libc::sigaction(signal as i32, std::ptr::null(), &raw mut action) };
    if result == 0 { Ok(action.sa_sigaction == libc::SIG_IGN) } else { Err(io::Error::last_os_error()) }
}
