//! State of the live view: what is shown, and what each key does. Pure: the terminal and the clock stay outside.
//!
//! In: successive [`Profile`]s with their verdicts, and keys. Out: the cells of a screen, and requests from keys that the
//! view cannot serve itself ([`Request`]).
//!
//! - `snapshot`: the profiles of one instant, as rows.
//! - `order`: sorting and filtering of rows.
//! - `assessment`: the verdict column.
//! - `screen`: the current screen and the position in it.
//! - `keys`: key bindings.
//! - `tree`: call paths as tiles.
//! - `view`: rendering into cells.

mod assessment;
mod figures;
mod keys;
mod order;
mod screen;
mod snapshot;
#[cfg(test)]
mod tests;
mod text;
mod theme;
mod tree;
mod view;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::analyze::call_sites;
use crate::profile::{Basis, Profile, StackProfile};
use crate::render::Value;
use screen::{List, Scope, Screen};
use snapshot::{Previous, ProcessKey, Row, Snapshot};
use theme::Theme;
use tree::Icicle;

pub use keys::Request;
pub use order::{Sort, UnknownSort};
pub use theme::Colors;

/// Maximum number of ended processes that stay listed: those with the most live bytes.
const MAX_ENDED: usize = 32;

/// Fixed properties of a run.
#[derive(Debug, Clone)]
pub struct About {
    /// Time between snapshots.
    pub interval: Duration,
    /// Time zone of the reader.
    pub time_zone: TimeZone,
    /// Description of what the figures leave out; empty if they are complete.
    pub view: String,
    /// True if there can be more than one process.
    pub several: bool,
    /// Colours that the terminal supports.
    pub colors: Colors,
    /// Initial sort order.
    pub sort: Sort,
}

/// Resources used by jjleak itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Share of one core since the previous snapshot; `None` at the first.
    pub cpu: Option<f64>,
}

/// The live view.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch that a key or the end of the run turns on its own"
)]
pub struct Top {
    about: About,
    theme: Theme,
    /// Latest snapshot.
    snapshot: Snapshot,
    /// Snapshot shown instead while the view is frozen.
    frozen: Option<Snapshot>,
    before: Previous,
    /// Last profiles of processes that have ended, and the number of those dropped.
    ended: Vec<Arc<Profile>>,
    forgotten: usize,
    /// Number of snapshots so far.
    instants: u64,
    /// True if the run has ended.
    has_ended: bool,
    /// Time until the next snapshot.
    next_in: Duration,
    /// Stack of screens, the current one last.
    screens: Vec<Screen>,
    sort: Sort,
    is_reversed: bool,
    value: Value,
    shows_help: bool,
    is_typing_filter: bool,
    /// The text that was last typed to find a function in the tree.
    wanted: String,
    notice: String,
    /// Indexes of the current list's rows, filtered and sorted.
    rows: Vec<usize>,
    /// Number of list rows that fit on the screen.
    page: usize,
    icicle: Icicle,
    memory: MemoryLines,
}

/// Report on the memory of a process.
#[derive(Debug, Default)]
struct MemoryLines {
    of: Option<ProcessKey>,
    lines: Vec<String>,
}

impl Top {
    /// An empty view.
    #[must_use]
    pub fn new(about: About) -> Self {
        let first = if about.several {
            Screen::Processes(List::default())
        } else {
            Screen::Sites { of: None, list: List::default() }
        };
        Self {
            theme: Theme { colors: about.colors },
            sort: about.sort,
            next_in: about.interval,
            about,
            snapshot: Snapshot::default(),
            frozen: None,
            before: Previous::default(),
            ended: Vec::new(),
            forgotten: 0,
            instants: 0,
            has_ended: false,
            screens: vec![first],
            is_reversed: false,
            value: Value::Bytes,
            shows_help: false,
            is_typing_filter: false,
            wanted: String::new(),
            notice: String::new(),
            rows: Vec::new(),
            page: 1,
            icicle: Icicle::default(),
            memory: MemoryLines::default(),
        }
    }

    /// Updates the view with the profiles of a new snapshot.
    pub fn update(&mut self, profiles: Vec<Profile>, cost: Cost) {
        let profiles =
            profiles.into_iter().map(listed).map(Arc::new).chain(self.ended.iter().cloned()).collect();
        self.instants += 1;
        self.snapshot = Snapshot::new(profiles, cost, &mut self.before);
        self.sort_and_filter();
    }

    /// Adds the last profiles of processes that have ended. They show from the next snapshot on.
    pub fn add_ended(&mut self, profiles: Vec<Profile>) {
        self.ended.extend(profiles.into_iter().map(listed).map(Arc::new));
        self.ended.sort_by_key(|profile| std::cmp::Reverse(profile.live().bytes));
        self.forget_ended(self.ended.len().saturating_sub(MAX_ENDED));
        self.ended.truncate(MAX_ENDED);
    }

    /// Drops processes that had ended before this instant.
    pub fn forget_ended_before(&mut self, instant: Timestamp) {
        let all = self.ended.len();
        self.ended.retain(|profile| profile.taken_at >= instant);
        self.forget_ended(all - self.ended.len());
    }

    /// Counts ended processes that were dropped.
    pub const fn forget_ended(&mut self, number: usize) {
        self.forgotten += number;
    }

    /// Returns true if the run has ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Marks the run as ended: all processes have ended, and none will come.
    pub const fn end(&mut self) {
        self.has_ended = true;
    }

    /// Sets the time until the next snapshot.
    pub const fn set_interval(&mut self, interval: Duration) {
        self.next_in = interval;
    }

    /// Shows a notice until the next key; an empty notice clears it.
    pub fn notify(&mut self, notice: &str) {
        notice.clone_into(&mut self.notice);
    }

    /// PID of the process whose memory is shown.
    #[must_use]
    pub fn memory_of(&self) -> Option<u32> {
        match self.screen() {
            Screen::Memory { of, .. } => Some(of.pid),
            _ => None,
        }
    }

    /// Shows lines on the memory of a process, if it is the one whose memory is shown.
    pub fn set_memory(&mut self, pid: u32, lines: Vec<String>) {
        if let Screen::Memory { of, .. } = self.screen()
            && of.pid == pid
        {
            self.memory = MemoryLines { of: Some(*of), lines };
        }
    }

    /// The shown stacks as a profile, and the value they are shown by.
    #[must_use]
    pub fn shown(&self) -> (Profile, Value) {
        let snapshot = self.shown_snapshot();
        let screen = self.screen();
        let wanted = self.shown_stack_ids();
        let profiles: Vec<_> = snapshot
            .profiles
            .iter()
            .enumerate()
            .filter(|(_, profile)| screen.shows(profile))
            .map(|(index, profile)| {
                let mut profile = Profile::clone(profile);
                profile.stacks.retain(|stack| wanted.contains(&(index, stack.id)));
                profile
            })
            .filter(|profile| snapshot.profiles.len() == 1 || !profile.stacks.is_empty())
            .collect();
        (Profile::merge(profiles.iter()).into_owned(), self.value)
    }

    fn shown_snapshot(&self) -> &Snapshot {
        self.frozen.as_ref().unwrap_or(&self.snapshot)
    }

    fn screen(&self) -> &Screen {
        // The first screen is never popped.
        &self.screens[self.screens.len() - 1]
    }

    fn screen_mut(&mut self) -> &mut Screen {
        let last = self.screens.len() - 1;
        &mut self.screens[last]
    }

    /// The shown stacks, by index of their profile and ID.
    fn shown_stack_ids(&self) -> std::collections::HashSet<(usize, u64)> {
        let snapshot = self.shown_snapshot();
        let of_row = |row: &Row| {
            let index = row.profile;
            let all = || snapshot.profile(row).stacks.iter().map(|stack| stack.id).collect();
            let ids: Vec<u64> = snapshot.verdict(row).map_or_else(all, |verdict| verdict.stacks.to_vec());
            ids.into_iter().map(move |id| (index, id))
        };
        match self.screen() {
            Screen::Processes(_) | Screen::Sites { .. } => self.shown_rows().flat_map(of_row).collect(),
            Screen::Memory { of, .. } => {
                let stacks = self.stacks_of(Scope::Process(*of)).into_iter();
                stacks.map(|(index, stack)| (index, stack.id)).collect()
            }
            Screen::Site { key, .. } => snapshot.find_site(*key).into_iter().flat_map(of_row).collect(),
            Screen::Tree { of, zoom, .. } => {
                let stacks = self.stacks_of(*of).into_iter();
                let below = stacks.filter(|(_, stack)| tree::is_below(stack, zoom));
                below.map(|(index, stack)| (index, stack.id)).collect()
            }
        }
    }

    /// Rows of the current list, filtered and sorted.
    fn shown_rows(&self) -> impl Iterator<Item = &Row> {
        let snapshot = self.shown_snapshot();
        let all = match self.screen() {
            Screen::Processes(_) => &snapshot.processes,
            _ => &snapshot.sites,
        };
        self.rows.iter().filter_map(|index| all.get(*index))
    }

    /// Stacks within a scope, with the indexes of their profiles.
    fn stacks_of(&self, scope: Scope) -> Vec<(usize, &StackProfile)> {
        let snapshot = self.shown_snapshot();
        if let Scope::Site(key) = scope {
            let Some(row) = snapshot.find_site(key) else { return Vec::new() };
            return snapshot.stacks(row).into_iter().map(|stack| (row.profile, stack)).collect();
        }
        let profiles = snapshot.profiles.iter().enumerate().filter(|(_, profile)| scope.has(profile));
        profiles.flat_map(|(index, profile)| profile.stacks.iter().map(move |stack| (index, stack))).collect()
    }

    /// Filters and sorts the current list, and scrolls to the selected row.
    fn sort_and_filter(&mut self) {
        let snapshot = self.frozen.as_ref().unwrap_or(&self.snapshot);
        let current = self.screens.len() - 1;
        let (sort, value, is_reversed) = (self.sort, self.value, self.is_reversed);
        let (rows, mut order): (&[Row], Vec<usize>) = match &self.screens[current] {
            Screen::Processes(list) => {
                let shows = |row: &Row| list.filter.shows_process(snapshot.profile(row));
                (&snapshot.processes, indexes(&snapshot.processes, shows))
            }
            Screen::Sites { of, list } => {
                let of_threads: Vec<_> =
                    snapshot.profiles.iter().map(|profile| list.filter.stacks_of_threads(profile)).collect();
                let shows = |row: &Row| {
                    of.is_none_or(|process| row.key.process == process)
                        && (list.filter.is_empty()
                            || snapshot.verdict(row).is_some_and(|verdict| {
                                let of_threads = &of_threads[row.profile];
                                list.filter.shows_site(snapshot.profile(row), of_threads, verdict)
                            }))
                };
                (&snapshot.sites, indexes(&snapshot.sites, shows))
            }
            Screen::Site { .. } | Screen::Tree { .. } | Screen::Memory { .. } => return,
        };
        order.sort_by(|a, b| {
            let order = sort.compare(value, &rows[*a], &rows[*b]);
            if is_reversed { order.reverse() } else { order }
        });
        let find = |is_it: &dyn Fn(&Row) -> bool| order.iter().position(|index| is_it(&rows[*index]));
        match &mut self.screens[current] {
            Screen::Processes(list) => {
                let found = list.selected.and_then(|key| find(&|row| row.key.process == key));
                list.scroll_to_selected(found, order.len(), self.page);
            }
            Screen::Sites { list, .. } => {
                let found = list.selected.and_then(|key| find(&|row| row.key == key));
                list.scroll_to_selected(found, order.len(), self.page);
            }
            Screen::Site { .. } | Screen::Tree { .. } | Screen::Memory { .. } => {}
        }
        self.rows = order;
    }
}

/// Adds call sites to a profile that was not judged and has none. If it will be judged, it is too early for them.
fn listed(mut profile: Profile) -> Profile {
    if profile.verdicts.is_empty() {
        profile.verdicts = call_sites(&profile);
        if !profile.coverage.settle.is_zero() {
            profile.verdicts.iter_mut().for_each(|verdict| verdict.basis = Basis::ShortHistory);
        }
    }
    profile
}

fn indexes(rows: &[Row], shows: impl Fn(&Row) -> bool) -> Vec<usize> {
    rows.iter().enumerate().filter(|(_, row)| shows(row)).map(|(index, _)| index).collect()
}
