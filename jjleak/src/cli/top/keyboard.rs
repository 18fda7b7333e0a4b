//! What comes from the terminal: keys, new sizes, and its end.

use std::fs::File;
use std::future::{pending, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;

use crossterm::event::{Event, EventStream};
use futures_core::Stream;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The keyboard.
pub(super) struct Keyboard {
    events: EventStream,
    /// The terminal itself: of its end, the stream of events says nothing. None where it cannot be waited for.
    terminal: Option<AsyncFd<File>>,
}

impl Keyboard {
    /// Begins to listen. Needs a running tokio runtime.
    pub(super) fn new() -> Self {
        let terminal = io::stdout().as_fd().try_clone_to_owned().map(File::from);
        let watch = |terminal| {
            // Of a terminal, what is urgent is its end alone.
            // SAFETY: the file owns its descriptor, which stays open, and the same, until the registration is gone.
            unsafe { AsyncFd::register_with_interest(terminal, Interest::PRIORITY) }.ok()
        };
        Self { events: EventStream::new(), terminal: terminal.ok().and_then(watch) }
    }

    /// The next event; `None` when there will be no more. Can be dropped and called again.
    pub(super) async fn next(&mut self) -> Option<io::Result<Event>> {
        let Self { events, terminal } = self;
        tokio::select! {
            biased;
            () = end(terminal.as_ref()) => None,
            event = next_of(events) => event,
        }
    }
}

async fn next_of(events: &mut EventStream) -> Option<io::Result<Event>> {
    poll_fn(|context| Pin::new(&mut *events).poll_next(context)).await
}

/// Waits until the terminal is gone.
async fn end(terminal: Option<&AsyncFd<File>>) {
    let Some(terminal) = terminal else { return pending().await };
    // Readiness that cannot be asked for says nothing.
    if terminal.ready(Interest::PRIORITY).await.is_err() {
        pending::<()>().await;
    }
}
