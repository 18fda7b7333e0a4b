//! Ownership of the terminal by the view; restores the terminal whatever happens.

use std::io::{self, BufWriter, IsTerminal, Stdout};
use std::os::fd::AsFd;
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::Hide;
use crossterm::execute;
use crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, disable_raw_mode, enable_raw_mode, size};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::notices;
use crate::top::Top;

/// True if the view has the terminal.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Restores the cursor and the previous screen: the sequences of `Show` and `LeaveAlternateScreen`.
const GIVE_BACK: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// Larger than the changes of a screen, so that each is a single write and appears at once.
const BUFFER: usize = 64 << 10;

/// Type of the screen, with a buffered backend.
type Screen = ratatui::Terminal<CrosstermBackend<BufWriter<Stdout>>>;

/// A terminal in use by the view. Restored when dropped, and before a panic is reported.
pub(super) struct Terminal {
    screen: Screen,
    size: (u16, u16),
}

impl Terminal {
    /// Takes over the terminal.
    pub(super) fn take() -> io::Result<Self> {
        give_back_on_panic();
        let size = size()?;
        let mut terminal = Self { screen: screen(size)?, size };
        terminal.take_again()?;
        Ok(terminal)
    }

    /// Takes over the terminal again after it was restored, or after other output to it.
    pub(super) fn take_again(&mut self) -> io::Result<()> {
        TAKEN.store(true, Ordering::SeqCst);
        if io::stderr().is_terminal() {
            notices::hold();
        }
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        self.begin_anew()
    }

    /// Begins with an empty screen of the terminal's size, without querying the terminal: ratatui's own clearing queries the
    /// cursor position, and the answer would be mixed with the keys.
    fn begin_anew(&mut self) -> io::Result<()> {
        self.size = size()?;
        execute!(io::stdout(), Clear(ClearType::All))?;
        self.screen = screen(self.size)?;
        Ok(())
    }

    pub(super) fn draw(&mut self, top: &mut Top) -> io::Result<()> {
        if size()? != self.size {
            self.begin_anew()?;
        }
        self.screen.draw(|frame| top.draw(frame.area(), frame.buffer_mut()))?;
        Ok(())
    }
}

/// An empty screen.
fn screen((width, height): (u16, u16)) -> io::Result<Screen> {
    let backend = CrosstermBackend::new(BufWriter::with_capacity(BUFFER, io::stdout()));
    let viewport = Viewport::Fixed(Rect::new(0, 0, width, height));
    ratatui::Terminal::with_options(backend, TerminalOptions { viewport })
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if the view has it, and prints the queued messages.
pub fn restore() {
    if give_back() {
        notices::release();
    }
}

/// Restores the terminal if the view has it. Never blocks, neither on the terminal nor on the reader of stderr. Returns true if
/// the view had it. Can be called from any thread: the drawing thread may be stuck and hold the lock of stdout.
pub fn give_back() -> bool {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return false;
    }
    // A terminal that is gone needs no modes.
    let _ = disable_raw_mode();
    let stdout = io::stdout();
    let mut ready = [PollFd::new(&stdout, PollFlags::OUT)];
    // A terminal that accepts no output, for example after Ctrl-S, must not delay the exit.
    if poll(&mut ready, Some(&Timespec::default())).is_ok_and(|number| number > 0) {
        let _ = rustix::io::write(stdout.as_fd(), GIVE_BACK);
    }
    true
}

/// Installs a panic hook that restores the terminal first.
fn give_back_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            restore();
            previous(panicked);
        }));
    });
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::{Command, Stdio};

    use nix::libc;

    use super::*;

    #[test]
    #[ignore = "panics, in a terminal of its own: for the test below"]
    fn panics() {
        let _terminal = Terminal::take().unwrap();
        panic!("on purpose");
    }

    #[test]
    #[ignore = "stops a terminal of its own: for the test below"]
    fn leaves() {
        let terminal = Terminal::take().unwrap();
        (0..200).for_each(|_| notices::print("waits"));
        let flow = |action| {
            // SAFETY: the call accesses no memory.
            let result = unsafe { libc::tcflow(libc::STDOUT_FILENO, action) };
            assert_eq!(result, 0);
        };
        flow(libc::TCOOFF);
        assert!(give_back());
        flow(libc::TCOON);
        io::Write::write_all(&mut io::stdout(), b"has left\n").unwrap();
        drop(terminal);
    }

    #[test]
    fn the_terminal_is_given_back_at_once_though_it_takes_nothing() {
        let program = env::current_exe().unwrap();
        let leaves = format!("{}::leaves", module_path!().split_once("::").unwrap().1);
        let program = program.to_str().unwrap();
        let run =
            format!("timeout --foreground 20 {program} --ignored --nocapture --exact {leaves}; stty -a");
        let mut script = Command::new("script");
        let shown = script.args(["-qec", &run, "/dev/null"]).stdin(Stdio::null()).output().unwrap().stdout;
        let shown = String::from_utf8_lossy(&shown);
        assert!(shown.contains("has left") && shown.contains(" icanon"), "{shown:?}");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_reported() {
        let program = env::current_exe().unwrap();
        let panics = format!("{}::panics", module_path!().split_once("::").unwrap().1);
        let program = program.to_str().unwrap();
        let run = format!("{program} --ignored --nocapture --exact {panics}; echo status=$?; stty -a");
        // script(1) provides a terminal, and copies its output to stdout.
        let mut script = Command::new("script");
        let shown = script.args(["-qec", &run, "/dev/null"]).stdin(Stdio::null()).output().unwrap().stdout;
        let shown = String::from_utf8_lossy(&shown);
        let position = |what: &str| shown.find(what).unwrap_or_else(|| panic!("no {what:?} in {shown:?}"));
        let (taken, given_back) = (position("\u{1b}[?1049h"), position("\u{1b}[?1049l"));
        assert!(taken < given_back && given_back < position("on purpose"), "{shown:?}");
        assert!(position("\u{1b}[?25l") < position("\u{1b}[?25h"), "{shown:?}");
        assert!(
            shown.contains("status=101") && shown.contains(" icanon") && shown.contains(" echo "),
            "{shown:?}"
        );
    }
}
