//! Input from the terminal: keys, and its hangup.

use std::fs::File;
use std::future::pending;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;

use crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Keys queued while a frame is drawn. Further ones wait in the terminal.
const MAX_WAITING: usize = 64;

/// The keyboard.
pub(super) struct Keyboard {
    keys: Receiver<KeyEvent>,
    /// The terminals of input and output, watched for hangup, which reading does not reveal. `None` if a descriptor cannot be
    /// watched.
    terminals: [Option<AsyncFd<File>>; 2],
}

impl Keyboard {
    /// Starts to listen. Requires a running tokio runtime. Keys are read by a separate thread that lives as long as the process:
    /// after a hangup, crossterm's read loops forever and does not return.
    pub(super) fn new() -> io::Result<Self> {
        let (keys, typed) = channel(MAX_WAITING);
        thread::Builder::new().name("keys".to_owned()).spawn(move || read(&keys))?;
        let terminals = [watch(io::stdin().as_fd()), watch(io::stdout().as_fd())];
        Ok(Self { keys: typed, terminals })
    }

    /// The next key; `None` if the terminal is gone. Can be dropped and called again.
    pub(super) async fn next(&mut self) -> Option<KeyEvent> {
        let [input, output] = &self.terminals;
        tokio::select! {
            biased;
            () = end(input.as_ref()) => None,
            () = end(output.as_ref()) => None,
            key = self.keys.recv() => key,
        }
    }
}

/// Forwards keys until reading fails or the receiver is gone.
fn read(keys: &Sender<KeyEvent>) {
    while let Ok(event) = event::read() {
        if let Event::Key(key) = event
            && key.kind != KeyEventKind::Release
            && keys.blocking_send(key).is_err()
        {
            return;
        }
    }
}

fn watch(file: BorrowedFd<'_>) -> Option<AsyncFd<File>> {
    // The end of a piped stdin is not a hangup: keys are then read from the terminal.
    let terminal = file.is_terminal().then(|| file.try_clone_to_owned().map(File::from))?.ok()?;
    // Hangup is the only priority event of a terminal.
    // SAFETY: the file owns its descriptor, which stays open and unchanged until the registration is gone.
    unsafe { AsyncFd::register_with_interest(terminal, Interest::PRIORITY) }.ok()
}

/// Waits until the terminal is gone.
async fn end(terminal: Option<&AsyncFd<File>>) {
    // An error means that the runtime is shutting down.
    let is_gone = async |terminal: &AsyncFd<File>| terminal.ready(Interest::PRIORITY).await.is_ok();
    if !matches!(terminal, Some(terminal) if is_gone(terminal).await) {
        pending::<()>().await;
    }
}
