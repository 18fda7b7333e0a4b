//! What comes from the terminal: keys, and its end.

use std::fs::File;
use std::future::pending;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;

use crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Keys that wait while something is drawn. Further ones wait in the terminal.
const MAX_WAITING: usize = 64;

/// The keyboard.
pub(super) struct Keyboard {
    keys: Receiver<KeyEvent>,
    /// Where keys come from, and where the view is: of a terminal's end, nothing is read. None where it cannot be waited for.
    terminals: [Option<AsyncFd<File>>; 2],
}

impl Keyboard {
    /// Begins to listen. Needs a running tokio runtime. What is typed is read in a thread of its own, which ends with the process: from a
    /// terminal that is gone, crossterm reads nothing again and again, and does not come back.
    pub(super) fn new() -> io::Result<Self> {
        let (keys, typed) = channel(MAX_WAITING);
        thread::Builder::new().name("keys".to_owned()).spawn(move || read(&keys))?;
        let terminals = [watch(io::stdin().as_fd()), watch(io::stdout().as_fd())];
        Ok(Self { keys: typed, terminals })
    }

    /// The next key; `None` when there will be no more, because the terminal is gone. Can be dropped and called again.
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

/// Hands over what is typed, until nothing can be read or nobody wants it.
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
    // The end of what is piped in says nothing: keys come from the terminal then, too.
    let terminal = file.is_terminal().then(|| file.try_clone_to_owned().map(File::from))?.ok()?;
    // Of a terminal, what is urgent is its end alone.
    // SAFETY: the file owns its descriptor, which stays open, and the same, until the registration is gone.
    unsafe { AsyncFd::register_with_interest(terminal, Interest::PRIORITY) }.ok()
}

/// Waits until the terminal is gone.
async fn end(terminal: Option<&AsyncFd<File>>) {
    // An error means that the runtime is going down.
    let is_gone = async |terminal: &AsyncFd<File>| terminal.ready(Interest::PRIORITY).await.is_ok();
    if !matches!(terminal, Some(terminal) if is_gone(terminal).await) {
        pending::<()>().await;
    }
}
