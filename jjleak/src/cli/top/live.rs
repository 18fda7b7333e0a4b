//! The live view in a terminal.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use crossterm::event::{Event, KeyEvent, KeyEventKind};
use jiff::tz::TimeZone;
use nix::sys::signal::{Signal, raise};
use nix::time::{ClockId, clock_gettime};
use tokio::signal::unix::{self, SignalKind};

use super::keyboard::Keyboard;
use super::terminal::Terminal;
use crate::analyze::{Selection, SortBy};
use crate::cli::args::Args;
use crate::cli::failure::OTHER;
use crate::cli::{Failure, notices};
use crate::profile::Profile;
use crate::render::{Contents, Format, Options, render};
use crate::store::PendingFile;
use crate::top::{About, Cost, Top, Wish};

/// The live view in a terminal.
pub(in crate::cli) struct LiveView {
    top: Top,
    /// None when it was given back.
    terminal: Option<Terminal>,
    keyboard: Keyboard,
    /// Told when jjleak goes on after it was stopped: the shell has written to the terminal.
    resumed: unix::Signal,
    meter: Meter,
    /// Where files go.
    folder: PathBuf,
    time_zone: TimeZone,
}

impl LiveView {
    /// Takes the terminal over.
    pub(in crate::cli) fn open(about: About, args: &Args) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            let what = format!("taking over the terminal failed: {error}");
            Failure::new(OTHER, what, "check the terminal (TERM), or leave the word top out for reports")
        };
        let resumed = unix::signal(SignalKind::from_raw(Signal::SIGCONT as i32)).map_err(failed)?;
        let time_zone = about.time_zone.clone();
        let mut view = Self {
            top: Top::new(about),
            terminal: Some(Terminal::take().map_err(failed)?),
            keyboard: Keyboard::new(),
            resumed,
            meter: Meter::new(),
            folder: args.out.clone().filter(|out| out.is_dir()).unwrap_or_default(),
            time_zone,
        };
        view.draw().map_err(failed)?;
        Ok(view)
    }

    /// Shows the profiles of an instant.
    pub(in crate::cli) fn show(&mut self, profiles: Vec<Profile>) -> io::Result<()> {
        let cpu = self.meter.read();
        self.top.take(profiles, Cost { cpu });
        self.draw()
    }

    /// Keeps the last profiles of processes that have ended: they show from the next instant on.
    pub(in crate::cli) fn show_ended(&mut self, profiles: &[Profile]) {
        self.top.take_ended(profiles.to_vec());
    }

    /// So many processes have ended that nobody will ask for.
    pub(in crate::cli) const fn mention_ended(&mut self, number: usize) {
        self.top.forget_ended(number);
    }

    /// Nothing is left to profile.
    pub(in crate::cli) fn end(&mut self) -> io::Result<()> {
        if self.top.is_over() {
            return Ok(());
        }
        self.top.end();
        self.show(Vec::new())
    }

    /// Does what keys say until one of them says to leave. Can be dropped and called again.
    pub(in crate::cli) async fn leaving(&mut self) {
        loop {
            let goes_on = tokio::select! {
                event = self.keyboard.next() => match event {
                    Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => self.press(key),
                    Some(Ok(Event::Resize(..))) => self.draw().map(|()| true),
                    Some(Ok(_)) => Ok(true),
                    Some(Err(error)) => Err(error),
                    None => Ok(false),
                },
                _ = self.resumed.recv() => self.take_again().map(|()| true),
            };
            // A terminal that is gone needs no view.
            if !goes_on.unwrap_or(false) {
                return;
            }
        }
    }

    /// Gives the terminal back.
    pub(in crate::cli) fn close(&mut self) {
        self.terminal = None;
    }

    /// Does what a key says; whether to go on.
    fn press(&mut self, key: KeyEvent) -> io::Result<bool> {
        match self.top.press(key) {
            Some(Wish::Leave) => return Ok(false),
            Some(Wish::Export) => {
                let told = match self.export() {
                    Ok(path) => format!("wrote {}", path.display()),
                    Err(failure) => format!("not written: {failure}"),
                };
                self.top.tell(&told);
            }
            Some(Wish::Suspend) => {
                super::restore();
                // The shell's own handler stops the process here, until it is told to go on.
                raise(Signal::SIGTSTP)?;
                self.take_again()?;
            }
            Some(Wish::Redraw) => self.take_again()?,
            None => {}
        }
        self.draw().map(|()| true)
    }

    fn take_again(&mut self) -> io::Result<()> {
        if let Some(terminal) = &mut self.terminal {
            terminal.take_again()?;
        }
        self.draw()
    }

    fn draw(&mut self) -> io::Result<()> {
        if let Some(notice) = notices::latest() {
            self.top.tell(&notice);
        }
        match &mut self.terminal {
            Some(terminal) => terminal.draw(&mut self.top),
            None => Ok(()),
        }
    }

    /// Writes what is shown as a flame graph.
    fn export(&self) -> Result<PathBuf, Failure> {
        let (profile, value) = self.top.shown();
        let options = Options {
            selection: Selection { sort: SortBy::Size, top: usize::MAX },
            value,
            contents: Contents::default(),
            time_zone: self.time_zone.clone(),
        };
        let time = profile.taken_at.to_zoned(self.time_zone.clone()).strftime("%H%M%S");
        let name = match profile.process.pid {
            0 => format!("jjleak-{time}.svg"),
            pid => format!("jjleak-{pid}-{time}.svg"),
        };
        let mut file = PendingFile::create(&self.folder.join(name))?;
        file.write(&render(&profile, Format::Svg, &options)?)?;
        Ok(file.finish()?)
    }
}

/// Measures what jjleak itself takes.
struct Meter {
    read_at: Instant,
    cpu: Option<f64>,
}

impl Meter {
    fn new() -> Self {
        Self { read_at: Instant::now(), cpu: cpu_seconds() }
    }

    /// The share of a core since it was last read.
    fn read(&mut self) -> Option<f64> {
        let now = Self::new();
        let share =
            now.cpu.zip(self.cpu).map(|(now_cpu, cpu)| (now_cpu - cpu) / (now.read_at - self.read_at).as_secs_f64());
        *self = now;
        share.filter(|share| share.is_finite())
    }
}

/// What this process has taken of all cores, in seconds.
fn cpu_seconds() -> Option<f64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok()?;
    Some(std::time::Duration::from(time).as_secs_f64())
}
