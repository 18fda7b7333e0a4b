//! The terminal while the view has it, and giving it back whatever happens.

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

use crate::cli::notices;
use crate::top::Top;

/// Whether the view has the terminal.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Shows the cursor, and what was on the screen before: what `Show` and `LeaveAlternateScreen` stand for.
const GIVE_BACK: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// More than a screen's changes take: each is then one write, and shows at once.
const BUFFER: usize = 64 << 10;

/// What cells are written through.
type Screen = ratatui::Terminal<CrosstermBackend<BufWriter<Stdout>>>;

/// The terminal, taken over. Given back when dropped, and when a panic is reported.
pub(super) struct Terminal {
    screen: Screen,
    size: (u16, u16),
}

impl Terminal {
    /// Takes the terminal over.
    pub(super) fn take() -> io::Result<Self> {
        give_back_on_panic();
        let size = size()?;
        let mut terminal = Self { screen: screen(size)?, size };
        terminal.take_again()?;
        Ok(terminal)
    }

    /// Takes the terminal over after it was given back, or after something else has written to it.
    pub(super) fn take_again(&mut self) -> io::Result<()> {
        TAKEN.store(true, Ordering::SeqCst);
        if io::stderr().is_terminal() {
            notices::hold();
        }
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        self.begin_anew()
    }

    /// Begins with an empty screen of the size that the terminal has. Nothing is asked of the terminal for that: ratatui's own
    /// clearing asks where the cursor is, and the answer would come between the keys.
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

/// Gives the terminal back if the view has it, and says what had to wait.
pub(in crate::cli) fn restore() {
    if give_back() {
        notices::release();
    }
}

/// Gives the terminal back if the view has it, and waits for nobody, neither for the terminal nor for who reads stderr.
/// Returns whether the view had it. For any thread: whoever draws may be stuck, and holds stdout then.
pub(in crate::cli) fn give_back() -> bool {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return false;
    }
    // A terminal that is gone needs no modes.
    let _ = disable_raw_mode();
    let stdout = io::stdout();
    let mut ready = [PollFd::new(&stdout, PollFlags::OUT)];
    // A terminal that takes nothing, such as one that Ctrl-S has stopped, must not hold up the end.
    if poll(&mut ready, Some(&Timespec::default())).is_ok_and(|number| number > 0) {
        let _ = rustix::io::write(stdout.as_fd(), GIVE_BACK);
    }
    true
}

/// Has the terminal given back before a panic is told of.
fn give_back_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            restore();
            tell(panicked);
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
        (0..200).for_each(|_| notices::tell("waits"));
        let flow = |action| {
            // SAFETY: it reads no memory.
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
    fn a_panic_gives_the_terminal_back_before_it_is_told_of() {
        let program = env::current_exe().unwrap();
        let panics = format!("{}::panics", module_path!().split_once("::").unwrap().1);
        let program = program.to_str().unwrap();
        let run = format!("{program} --ignored --nocapture --exact {panics}; echo status=$?; stty -a");
        // script(1) gives it a terminal, and its own stdout what is written there.
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
