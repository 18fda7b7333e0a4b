//! What comes from the terminal: keys, and new sizes.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use crossterm::event::{Event, EventStream};
use futures_core::Stream;

/// The keyboard.
pub(super) struct Keyboard(EventStream);

impl Keyboard {
    /// Begins to listen.
    pub(super) fn new() -> Self {
        Self(EventStream::new())
    }

    /// The next event; `None` when there will be no more. Can be dropped and called again.
    pub(super) async fn next(&mut self) -> Option<io::Result<Event>> {
        poll_fn(|context| Pin::new(&mut self.0).poll_next(context)).await
    }
}
