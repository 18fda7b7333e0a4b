//! SIGINT and SIGTERM: the first asks for the final report, the second makes jjleak leave at once.
//!
//! A thread of its own waits for them, so that the second works whatever the rest is doing.

use std::io;
use std::sync::Arc;
use std::thread;

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::Notify;

use crate::store;

/// As a shell reports a process that Ctrl-C ended.
const LEFT_AT_ONCE: i32 = 128 + Signal::SIGINT as i32;

/// Takes over both signals; what it returns is notified at the first. Call it before any other thread starts, for
/// threads inherit the signal mask.
pub(super) fn watch() -> io::Result<Arc<Notify>> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let first = Arc::new(Notify::new());
    let notify = Arc::clone(&first);
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        // Waiting fails only for invalid sets.
        if signals.wait().is_ok() {
            notify.notify_one();
        }
        if signals.wait().is_ok() {
            eprintln!("jjleak: left without a final report");
            store::discard_all();
            std::process::exit(LEFT_AT_ONCE);
        }
    })?;
    Ok(first)
}
