//! The live view in a terminal.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossterm::event::KeyEvent;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use nix::sys::signal::{Signal, raise};
use nix::time::{ClockId, clock_gettime};
use tokio::signal::unix::{self, SignalKind};

use super::Error;
use super::keyboard::Keyboard;
use super::memory_scans::{MemoryScans, Scanned};
use super::terminal::Terminal;
use crate::analyze::{Rules, Selection, SortBy};
use crate::error_chain::chain;
use crate::notices;
use crate::profile::Profile;
use crate::render::{Contents, Format, GraphLimits, Options, render};
use crate::session::waiting::at;
use crate::store::PendingFile;
use crate::top::{About, Cost, Request, Top};

/// Maximum share of a core for snapshots: a view runs beside production work. Larger snapshots become rarer. With the work
/// between snapshots, the total is 2 %.
const LARGEST_SHARE: f64 = 0.018;
/// Number of snapshots over which their cost is averaged. Some also process remembered data and are more expensive; they recur
/// within this number.
const SNAPSHOTS: usize = 16;
/// Time for which ended processes are shown if processes come and go.
const ENDED_FOR: SignedDuration = SignedDuration::from_mins(1);
/// Time for which a notice hides losses and cost, unless a key is pressed before.
const NOTICED_FOR: Duration = Duration::from_secs(8);
/// Maximum time between snapshots: with longer ones, a view would no longer be live.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The live view in a terminal.
pub(super) struct LiveView {
    top: Top,
    /// Restored when dropped.
    terminal: Terminal,
    keyboard: Keyboard,
    scans: MemoryScans,
    /// SIGCONT: jjleak continues after a stop, during which the shell has written to the terminal.
    resumed: unix::Signal,
    /// SIGWINCH: the terminal has a new size.
    resized: unix::Signal,
    meter: Meter,
    interval: Duration,
    noticed: Noticed,
    /// CPU time of the last snapshots on all cores, in seconds.
    spent: VecDeque<f64>,
    /// Time until the next snapshot if that is longer than the interval.
    pause: Option<Duration>,
    plan: ViewPlan,
    time_zone: TimeZone,
}

/// Processes that a view shows, and destinations of its files.
#[derive(Debug, Clone, Default)]
pub struct ViewPlan {
    /// True if new processes replace ended ones.
    pub forgets_ended: bool,
    /// True if all processes of the host are profiled.
    pub is_of_all: bool,
    /// Folder for files.
    pub folder: PathBuf,
}

impl ViewPlan {
    /// Returns true if ended processes are shown. If those of a whole host start and end all the time, they would leave no room for
    /// others.
    pub(super) const fn shows_ended(&self) -> bool {
        !(self.forgets_ended && self.is_of_all)
    }
}

/// Reason why a view ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// The user wants to leave.
    IsWanted,
    /// The terminal is gone.
    IsGone,
}

/// The profiles of a snapshot.
pub(super) struct TimedSnapshot {
    pub(super) profiles: Vec<Profile>,
    /// CPU time of jjleak on all cores at the start and at the end of the snapshot, in seconds.
    pub(super) began: Option<f64>,
    pub(super) done: Option<f64>,
}

impl LiveView {
    /// Takes over the terminal.
    pub(super) fn open(about: About, plan: ViewPlan) -> io::Result<Self> {
        let signal = |signal: Signal| unix::signal(SignalKind::from_raw(signal as i32));
        let (resumed, resized) = (signal(Signal::SIGCONT)?, signal(Signal::SIGWINCH)?);
        let time_zone = about.time_zone.clone();
        let interval = about.interval;
        let mut view = Self {
            top: Top::new(about),
            terminal: Terminal::take()?,
            keyboard: Keyboard::new()?,
            scans: MemoryScans::start()?,
            resumed,
            resized,
            meter: Meter::new(),
            interval,
            noticed: Noticed::default(),
            spent: VecDeque::with_capacity(SNAPSHOTS),
            pause: None,
            plan,
            time_zone,
        };
        view.draw()?;
        Ok(view)
    }

    /// Shows the profiles of a snapshot.
    pub(super) fn show(&mut self, TimedSnapshot { profiles, began, done }: TimedSnapshot) -> io::Result<()> {
        let cpu = self.meter.read();
        let begin = cpu_seconds();
        if self.plan.forgets_ended {
            self.top.forget_ended_before(Timestamp::now() - ENDED_FOR);
        }
        self.top.update(profiles, Cost { cpu });
        // The work of the session between the snapshot and this call counts for neither.
        if let Some(((began, done), (begin, end))) = began.zip(done).zip(begin.zip(cpu_seconds())) {
            self.spent.truncate(SNAPSHOTS - 1);
            self.spent.push_front(done - began + end - begin);
        }
        self.pause = pause(usual(&self.spent), self.interval);
        self.top.set_interval(self.pause.unwrap_or(self.interval));
        self.scan();
        self.draw()
    }

    /// Time until the next snapshot if that is longer than the interval.
    pub(super) const fn pause(&self) -> Option<Duration> {
        self.pause
    }

    /// Keeps the last profiles of ended processes, which are shown from the next snapshot on.
    pub(super) fn show_ended(&mut self, profiles: &[Profile]) {
        let is_shown = |profile: &&Profile| {
            self.plan.shows_ended() && !(self.plan.forgets_ended && profile.live().is_nothing())
        };
        let shown: Vec<_> = profiles.iter().filter(is_shown).cloned().collect();
        self.top.forget_ended(profiles.len() - shown.len());
        self.top.add_ended(shown);
    }

    /// Announces that there is nothing left to profile.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if self.top.has_ended() {
            return Ok(());
        }
        self.top.end();
        self.show(TimedSnapshot { profiles: Vec::new(), began: None, done: None })
    }

    /// Handles keys until the user leaves or the terminal is gone. Can be dropped and called again.
    pub(super) async fn leaving(&mut self) -> Leave {
        loop {
            let goes_on = tokio::select! {
                key = self.keyboard.next() => match key {
                    Some(key) => self.press(key),
                    None => return Leave::IsGone,
                },
                Some(scanned) = self.scans.next() => self.show_memory(scanned).map(|()| true),
                _ = self.resized.recv() => self.draw().map(|()| true),
                _ = self.resumed.recv() => self.take_again().map(|()| true),
                () = at(self.noticed.leaves_at()) => self.clear_notice().map(|()| true),
            };
            match goes_on {
                Ok(true) => {}
                Ok(false) => return Leave::IsWanted,
                Err(_) => return Leave::IsGone,
            }
        }
    }

    /// Handles a key. Returns false if the view ends.
    fn press(&mut self, key: KeyEvent) -> io::Result<bool> {
        self.noticed.leaves();
        match self.top.press(key) {
            Some(Request::Leave) => return Ok(false),
            Some(Request::Export) => {
                let notice = match self.export() {
                    Ok(path) => format!("wrote {}", path.display()),
                    Err(error) => format!("not written: {}", chain(&error)),
                };
                self.top.notify(&notice);
                self.noticed.comes(Instant::now());
            }
            Some(Request::Suspend) => {
                super::terminal::restore();
                // The default action of the signal stops the process here until SIGCONT.
                raise(Signal::SIGTSTP)?;
                self.take_again()?;
            }
            Some(Request::Redraw) => self.take_again()?,
            None => self.scan(),
        }
        self.draw().map(|()| true)
    }

    /// Requests a scan of the process whose memory is shown.
    fn scan(&self) {
        if let Some(pid) = self.top.memory_of() {
            self.scans.request(pid);
        }
    }

    fn show_memory(&mut self, Scanned { pid, lines }: Scanned) -> io::Result<()> {
        self.top.set_memory(pid, lines);
        self.draw()
    }

    /// Removes the notice.
    fn clear_notice(&mut self) -> io::Result<()> {
        self.noticed.leaves();
        self.top.notify("");
        self.draw()
    }

    fn take_again(&mut self) -> io::Result<()> {
        self.terminal.take_again()?;
        self.draw()
    }

    fn draw(&mut self) -> io::Result<()> {
        if let Some(notice) = notices::latest() {
            self.top.notify(&notice);
            self.noticed.comes(Instant::now());
        }
        self.terminal.draw(&mut self.top)
    }

    /// Writes the shown stacks as a flame graph.
    fn export(&self) -> Result<PathBuf, Error> {
        let (profile, value) = self.top.shown();
        let options = Options {
            selection: Selection { sort: SortBy::Size, top: usize::MAX },
            value,
            contents: Contents::default(),
            time_zone: self.time_zone.clone(),
            full: false,
            rules: Rules::default(),
            inverted: false,
            graph: GraphLimits::default(),
            view: String::new(),
        };
        let time = profile.taken_at.to_zoned(self.time_zone.clone()).strftime("%H%M%S");
        let name = match profile.process.pid {
            0 => format!("jjleak-{time}.svg"),
            pid => format!("jjleak-{pid}-{time}.svg"),
        };
        let mut file = PendingFile::create(&self.plan.folder.join(name))?;
        file.write(&render(&profile, Format::Svg, &options)?)?;
        Ok(file.finish()?)
    }
}

/// Time since which a notice is shown, if there is one.
#[derive(Debug, Default)]
struct Noticed(Option<Instant>);

impl Noticed {
    /// Shows a notice, which replaces the previous one.
    const fn comes(&mut self, now: Instant) {
        self.0 = Some(now);
    }

    const fn leaves(&mut self) {
        self.0 = None;
    }

    /// Time at which it disappears; `None` if there is no notice.
    fn leaves_at(&self) -> Option<Instant> {
        self.0.map(|since| since + NOTICED_FOR)
    }
}

/// Average cost of a snapshot. The most expensive one, such as the first, which resolves all names, counts as the second most
/// expensive.
fn usual(spent: &VecDeque<f64>) -> f64 {
    let mut sorted: Vec<_> = spent.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let [ref others @ .., _] = sorted[..] else { return 0. };
    let second = others.last().copied().unwrap_or_default();
    let number = f64::from(u32::try_from(sorted.len()).unwrap_or(u32::MAX));
    (others.iter().sum::<f64>() + second) / number
}

/// Time to wait after snapshots that took `spent` seconds of a core, if that is longer than the interval.
fn pause(spent: f64, interval: Duration) -> Option<Duration> {
    let fair = Duration::try_from_secs_f64(spent / LARGEST_SHARE).ok()?.min(LONGEST_PAUSE);
    (fair > interval).then_some(fair)
}

/// Meter of jjleak's own CPU usage.
struct Meter {
    read_at: Instant,
    cpu: Option<f64>,
}

impl Meter {
    fn new() -> Self {
        Self { read_at: Instant::now(), cpu: cpu_seconds() }
    }

    /// Share of a core since the last call.
    fn read(&mut self) -> Option<f64> {
        let now = Self::new();
        let share = now
            .cpu
            .zip(self.cpu)
            .map(|(now_cpu, cpu)| (now_cpu - cpu) / (now.read_at - self.read_at).as_secs_f64());
        *self = now;
        share.filter(|share| share.is_finite())
    }
}

/// CPU time of this process on all cores, in seconds.
pub(super) fn cpu_seconds() -> Option<f64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok()?;
    Some(Duration::from(time).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_expensive_snapshot_is_no_reason_to_rest_and_several_are() {
        let usual = |spent: &[f64]| usual(&spent.iter().copied().collect());
        let is = |is: f64, expected: f64| assert!((is - expected).abs() < 1e-9, "{is} is not {expected}");
        is(usual(&[]), 0.);
        is(usual(&[0.4]), 0.);
        is(usual(&[0.01, 0.4]), 0.01);
        is(usual(&[0.02, 0.01, 0.02, 0.01]), 0.015);
    }

    #[test]
    fn a_notice_leaves_after_eight_seconds_or_with_a_key_and_a_later_one_stays_for_as_long() {
        let (second, begin) = (Duration::from_secs(1), Instant::now());
        let mut noticed = Noticed::default();
        assert_eq!(noticed.leaves_at(), None);
        noticed.comes(begin);
        assert_eq!(noticed.leaves_at(), Some(begin + 8 * second));
        noticed.comes(begin + 5 * second);
        assert_eq!(noticed.leaves_at(), Some(begin + 13 * second));
        noticed.leaves();
        assert_eq!(noticed.leaves_at(), None);
    }

    #[test]
    fn expensive_snapshots_are_rare_ones_and_cheap_ones_keep_the_interval() {
        let second = Duration::from_secs(1);
        assert_eq!(pause(0.017, second), None);
        assert_eq!(pause(0.09, second), Some(Duration::from_secs(5)));
        assert_eq!(pause(60., second), Some(LONGEST_PAUSE));
        assert_eq!(pause(0.1, Duration::from_secs(10)), None);
    }
}
