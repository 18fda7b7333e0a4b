//! What comes from the terminal: keys, and its end.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::future::pending;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use crossterm::event::KeyEvent;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::key_codes::Decoder;

/// Most that is read at once.
const READ: usize = 1024;

/// The keyboard. It is read here, for whoever reads a terminal must see its end: crossterm reads one that is gone for ever.
pub(super) struct Keyboard {
    /// Where keys come from.
    input: AsyncFd<File>,
    /// Where the view is, which can be another terminal. None where its end cannot be waited for.
    output: Option<AsyncFd<File>>,
    decoder: Decoder,
    keys: VecDeque<KeyEvent>,
}

impl Keyboard {
    /// Begins to listen. Needs a running tokio runtime.
    pub(super) fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        let input = if stdin.is_terminal() {
            File::from(stdin.as_fd().try_clone_to_owned()?)
        } else {
            OpenOptions::new().read(true).open("/dev/tty")?
        };
        let output = io::stdout().as_fd().try_clone_to_owned().map(File::from);
        Self::of(input, output.ok())
    }

    fn of(input: File, output: Option<File>) -> io::Result<Self> {
        // SAFETY: the file owns its descriptor, which stays open, and the same, until the registration is gone.
        let input = unsafe { AsyncFd::register_with_interest(input, Interest::READABLE) }?;
        let watch = |terminal| {
            // Of a terminal, what is urgent is its end alone.
            // SAFETY: as above.
            unsafe { AsyncFd::register_with_interest(terminal, Interest::PRIORITY) }.ok()
        };
        let output = output.and_then(watch);
        Ok(Self { input, output, decoder: Decoder::default(), keys: VecDeque::new() })
    }

    /// The next key; `None` when there will be no more, because the terminal is gone. Can be dropped and called again.
    pub(super) async fn next(&mut self) -> Option<KeyEvent> {
        loop {
            if let Some(key) = self.keys.pop_front() {
                return Some(key);
            }
            tokio::select! {
                biased;
                () = end(self.output.as_ref()) => return None,
                // An error means that the runtime is going down.
                ready = self.input.readable() => {
                    let mut ready = ready.ok()?;
                    let mut bytes = [0; READ];
                    match read(ready.get_inner(), &mut bytes) {
                        Ok(Some(0)) | Err(_) => return None,
                        Ok(Some(length)) => self.keys.extend(self.decoder.decode(&bytes[..length], length == READ)),
                        Ok(None) => ready.clear_ready(),
                    }
                }
            }
        }
    }
}

/// Reads what is there, nothing when the terminal is gone; `None` while there is nothing. Other processes have the same open
/// terminal, so that it must stay one whose reads wait.
fn read(terminal: &File, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    let mut ready = [PollFd::new(terminal, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut ready, Some(&Timespec::default())))? == 0 {
        return Ok(None);
    }
    Ok(Some(retry_on_intr(|| rustix::io::read(terminal, &mut *bytes))?))
}

/// Waits until the terminal is gone.
async fn end(terminal: Option<&AsyncFd<File>>) {
    let Some(terminal) = terminal else { return pending().await };
    // Readiness that cannot be asked for says nothing.
    if terminal.ready(Interest::PRIORITY).await.is_err() {
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::FromRawFd;
    use std::ptr::{null, null_mut};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use crossterm::event::KeyCode;
    use nix::libc;

    use super::*;

    /// Far more than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A terminal: who is in front of it, and who runs in it. What is typed comes as it is.
    fn terminal() -> (File, File) {
        let (mut front, mut inside) = (-1, -1);
        // SAFETY: both places are there to be written to, and nothing else is asked for.
        let opened = unsafe { libc::openpty(&raw mut front, &raw mut inside, null_mut(), null(), null()) };
        assert_eq!(opened, 0, "{}", io::Error::last_os_error());
        // SAFETY: a structure of numbers, which is filled at once.
        let mut modes = unsafe { std::mem::zeroed() };
        // SAFETY: all of it is there to be read and written.
        unsafe {
            assert_eq!(libc::tcgetattr(inside, &raw mut modes), 0);
            libc::cfmakeraw(&raw mut modes);
            assert_eq!(libc::tcsetattr(inside, libc::TCSANOW, &raw const modes), 0);
        }
        // SAFETY: they were just opened, and nobody else has them.
        unsafe { (File::from_raw_fd(front), File::from_raw_fd(inside)) }
    }

    /// Listens to a terminal for as long as there is one, whose end can be waited for or is only seen by reading; what was typed.
    /// Fails if that does not end.
    fn listen(inside: File, is_waited_for: bool, begin: impl FnOnce() + Send + 'static) -> Vec<KeyCode> {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let output = is_waited_for.then(|| inside.try_clone().unwrap());
                let mut keyboard = Keyboard::of(inside, output).unwrap();
                begin();
                let mut typed = Vec::new();
                while let Some(key) = keyboard.next().await {
                    typed.push(key.code);
                }
                done.send(typed).unwrap();
            });
        });
        is_done.recv_timeout(PATIENCE).expect("it listens to a terminal that is gone")
    }

    #[test]
    fn a_terminal_that_goes_in_whatever_moment_is_listened_to_no_longer() {
        for is_waited_for in [false, true] {
            // Before anything is waited for.
            let (front, inside) = terminal();
            assert_eq!(listen(inside, is_waited_for, || drop(front)), []);
            // In the middle of a key.
            let (mut front, inside) = terminal();
            let begin = move || {
                front.write_all(b"\x1b[").unwrap();
                drop(front);
            };
            assert_eq!(listen(inside, is_waited_for, begin), []);
        }
        // While much comes that is no key, such as where the focus is: nothing is drawn for it, which would fail.
        for round in 0..200 {
            let (mut front, inside) = terminal();
            let flood = move || {
                thread::spawn(move || {
                    let all = b"\x1b[I".repeat(10 * round);
                    front.write_all(&all).unwrap();
                });
            };
            // In which pieces it comes is not known.
            listen(inside, round % 2 == 0, flood);
        }
    }

    #[test]
    fn what_is_typed_comes_as_keys() {
        let (mut front, inside) = terminal();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut keyboard = Keyboard::of(inside, None).unwrap();
            for (typed, code) in
                [(&b"q"[..], KeyCode::Char('q')), (b"\x1b[6~", KeyCode::PageDown), (b"\x1b", KeyCode::Esc)]
            {
                front.write_all(typed).unwrap();
                assert_eq!(keyboard.next().await.unwrap().code, code);
            }
            front.write_all(b"ab").unwrap();
            // Who has something else to do in between loses nothing.
            assert_eq!(keyboard.next().await.unwrap().code, KeyCode::Char('a'));
            assert_eq!(keyboard.next().await.unwrap().code, KeyCode::Char('b'));
        });
    }
}
