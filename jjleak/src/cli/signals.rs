//! SIGINT, SIGTERM and SIGHUP: the first asks for the final report, a second makes jjleak leave at once.
//!
//! A thread of its own waits for them, so that the second works whatever the rest is doing.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{SigSet, Signal};
use tokio::sync::Notify;

use super::top;
use crate::store;

/// How long further signals are taken for echoes of the first: timeout(1) sends its signal to jjleak and then to all of
/// jjleak's process group, a closing terminal sends one and the shell behind it another. None of them means to leave
/// without a report, and no user has seen by then that the first was heard.
const ECHO: Duration = Duration::from_millis(500);

/// Takes over the signals; what it returns is notified at the first. Call it before any other thread starts, for
/// threads inherit the signal mask.
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

/// Ends jjleak whatever its other threads wait for: they may hold stdout, and stderr may be a pipe that nobody reads.
/// The exit code is that of a process that the signal has ended, as a shell reports it.
fn leave(signal: Signal) -> ! {
    store::discard_all();
    top::give_back();
    // SAFETY: it only ends the process, and what the process would still have to do has been done.
    unsafe { libc::_exit(128 + signal as i32) }
}

/// Whether jjleak was started with a signal ignored, as by nohup(1) with SIGHUP. A blocked signal would come all the
/// same.
fn is_ignored(signal: Signal) -> io::Result<bool> {
    // SAFETY: all zeros is a valid value of this structure of numbers.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action, the call only writes the present one, to a place that is there for it.
    let result = unsafe { libc::sigaction(signal as i32, std::ptr::null(), &raw mut action) };
    if result == 0 { Ok(action.sa_sigaction == libc::SIG_IGN) } else { Err(io::Error::last_os_error()) }
}
