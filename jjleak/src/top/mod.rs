//! The live view: what is shown, and what each key does. Pure: the terminal and the clock stay outside.
//!
//! In: [`Profile`]s with their verdicts, an interval apart, and keys. Out: the cells of a screen, and what a key asks of
//! the outside ([`Wish`]).
//!
//! - `books`: what is known at an instant, as rows.
//! - `order`: in which order rows stand, and which of them.
//! - `standing`: what can be said of a row.
//! - `screen`: what is looked at, and where in it.
//! - `keys`: what each key changes.
//! - `tree`: call paths as tiles.
//! - `view`: all of this in cells.

mod books;
mod figures;
mod keys;
mod order;
mod screen;
mod standing;
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
use crate::profile::{Profile, StackProfile};
use crate::render::Value;
use books::{Before, Books, Row};
use screen::{List, Scope, Screen};
use theme::Theme;
use tree::Icicle;

pub use keys::Wish;
pub use order::{Sort, UnknownSort};
pub use theme::Colors;

/// Processes that have ended and can still be looked at: those with the most live bytes.
const MAX_ENDED: usize = 32;

/// What is known of a run from its beginning.
#[derive(Debug, Clone)]
pub struct About {
    /// Time between two instants.
    pub interval: Duration,
    /// Where the reader's clock stands.
    pub time_zone: TimeZone,
    /// What of the figures is left out, in words; nothing when they are whole.
    pub view: String,
    /// Whether there can be more than one process.
    pub several: bool,
    /// Which colours the terminal shows.
    pub colors: Colors,
    /// The first order.
    pub sort: Sort,
}

/// What jjleak itself takes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Its share of one core, from 0 on, since the instant before; `None` at the first.
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
    /// What is known now.
    books: Books,
    /// What is shown, if it is not that.
    frozen: Option<Books>,
    before: Before,
    /// Last profiles of processes that have ended, and how many are not kept.
    ended: Vec<Arc<Profile>>,
    forgotten: usize,
    /// How many instants have been taken in.
    instants: u64,
    /// Whether nothing will change any more.
    is_over: bool,
    /// Time to the next instant.
    pace: Duration,
    /// What is looked at, and the way back.
    screens: Vec<Screen>,
    sort: Sort,
    is_reversed: bool,
    value: Value,
    is_helping: bool,
    is_typing: bool,
    notice: String,
    /// Indexes of the rows of the list that is looked at, in their order.
    rows: Vec<usize>,
    /// Lines of a list that find room.
    page: usize,
    icicle: Icicle,
}

impl Top {
    /// A view of nothing yet.
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
            pace: about.interval,
            about,
            books: Books::default(),
            frozen: None,
            before: Before::default(),
            ended: Vec::new(),
            forgotten: 0,
            instants: 0,
            is_over: false,
            screens: vec![first],
            is_reversed: false,
            value: Value::Bytes,
            is_helping: false,
            is_typing: false,
            notice: String::new(),
            rows: Vec::new(),
            page: 1,
            icicle: Icicle::default(),
        }
    }

    /// Takes in the profiles of an instant.
    pub fn take(&mut self, profiles: Vec<Profile>, cost: Cost) {
        let profiles =
            profiles.into_iter().map(listed).map(Arc::new).chain(self.ended.iter().cloned()).collect();
        self.instants += 1;
        self.books = Books::new(profiles, cost, &mut self.before);
        self.arrange();
    }

    /// Takes in the last profiles of processes that have ended. They are shown from the next instant on.
    pub fn take_ended(&mut self, profiles: Vec<Profile>) {
        self.ended.extend(profiles.into_iter().map(listed).map(Arc::new));
        self.ended.sort_by_key(|profile| std::cmp::Reverse(profile.live().bytes));
        self.forget_ended(self.ended.len().saturating_sub(MAX_ENDED));
        self.ended.truncate(MAX_ENDED);
    }

    /// Keeps processes no longer that had ended by then.
    pub fn forget_ended_before(&mut self, instant: Timestamp) {
        let all = self.ended.len();
        self.ended.retain(|profile| profile.taken_at >= instant);
        self.forget_ended(all - self.ended.len());
    }

    /// So many processes have ended that are not kept.
    pub const fn forget_ended(&mut self, number: usize) {
        self.forgotten += number;
    }

    /// Whether nothing will change any more.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// All processes have ended, and none will come.
    pub const fn end(&mut self) {
        self.is_over = true;
    }

    /// The next instant comes so much later.
    pub const fn set_pace(&mut self, pace: Duration) {
        self.pace = pace;
    }

    /// Tells the user, until the next key; an empty notice shows again what another has hidden.
    pub fn tell(&mut self, notice: &str) {
        notice.clone_into(&mut self.notice);
    }

    /// What is shown, as a profile, and what its figures are of.
    #[must_use]
    pub fn shown(&self) -> (Profile, Value) {
        let books = self.shown_books();
        let screen = self.screen();
        let wanted = self.wanted_stacks();
        let profiles: Vec<_> = books
            .profiles
            .iter()
            .enumerate()
            .filter(|(_, profile)| screen.concerns(profile))
            .map(|(index, profile)| {
                let mut profile = Profile::clone(profile);
                profile.stacks.retain(|stack| wanted.contains(&(index, stack.id)));
                profile
            })
            .filter(|profile| books.profiles.len() == 1 || !profile.stacks.is_empty())
            .collect();
        (Profile::merge(profiles.iter()), self.value)
    }

    fn shown_books(&self) -> &Books {
        self.frozen.as_ref().unwrap_or(&self.books)
    }

    fn screen(&self) -> &Screen {
        // The first one is never left.
        &self.screens[self.screens.len() - 1]
    }

    fn screen_mut(&mut self) -> &mut Screen {
        let last = self.screens.len() - 1;
        &mut self.screens[last]
    }

    /// The stacks that are shown, by the index of their profile and their ID.
    fn wanted_stacks(&self) -> std::collections::HashSet<(usize, u64)> {
        let books = self.shown_books();
        let of_row = |row: &Row| {
            let index = row.profile;
            let all = || books.profile(row).stacks.iter().map(|stack| stack.id).collect();
            let ids: Vec<u64> = books.verdict(row).map_or_else(all, |verdict| verdict.stacks.to_vec());
            ids.into_iter().map(move |id| (index, id))
        };
        match self.screen() {
            Screen::Processes(_) | Screen::Sites { .. } => self.shown_rows().flat_map(of_row).collect(),
            Screen::Site { key, .. } => books.find_site(*key).into_iter().flat_map(of_row).collect(),
            Screen::Tree { of, zoom, .. } => {
                let stacks = self.stacks_of(*of).into_iter();
                let below = stacks.filter(|(_, stack)| tree::is_below(stack, zoom));
                below.map(|(index, stack)| (index, stack.id)).collect()
            }
        }
    }

    /// The rows of the list that is looked at, in their order.
    fn shown_rows(&self) -> impl Iterator<Item = &Row> {
        let books = self.shown_books();
        let all = match self.screen() {
            Screen::Processes(_) => &books.processes,
            _ => &books.sites,
        };
        self.rows.iter().filter_map(|index| all.get(*index))
    }

    /// The stacks of a part of what is known, with the indexes of their profiles.
    fn stacks_of(&self, scope: Scope) -> Vec<(usize, &StackProfile)> {
        let books = self.shown_books();
        if let Scope::Site(key) = scope {
            let Some(row) = books.find_site(key) else { return Vec::new() };
            return books.stacks(row).into_iter().map(|stack| (row.profile, stack)).collect();
        }
        let profiles = books.profiles.iter().enumerate().filter(|(_, profile)| scope.has(profile));
        profiles.flat_map(|(index, profile)| profile.stacks.iter().map(move |stack| (index, stack))).collect()
    }

    /// Puts the rows of the list that is looked at in their order, and keeps what is chosen in sight.
    fn arrange(&mut self) {
        let books = self.frozen.as_ref().unwrap_or(&self.books);
        let current = self.screens.len() - 1;
        let (sort, value, is_reversed) = (self.sort, self.value, self.is_reversed);
        let (rows, mut order): (&[Row], Vec<usize>) = match &self.screens[current] {
            Screen::Processes(list) => {
                let shows = |row: &Row| list.filter.shows_process(books.profile(row));
                (&books.processes, indexes(&books.processes, shows))
            }
            Screen::Sites { of, list } => {
                let of_threads: Vec<_> =
                    books.profiles.iter().map(|profile| list.filter.stacks_of_threads(profile)).collect();
                let shows = |row: &Row| {
                    of.is_none_or(|process| row.key.process == process)
                        && (list.filter.is_empty()
                            || books.verdict(row).is_some_and(|verdict| {
                                let of_threads = &of_threads[row.profile];
                                list.filter.shows_site(books.profile(row), of_threads, verdict)
                            }))
                };
                (&books.sites, indexes(&books.sites, shows))
            }
            Screen::Site { .. } | Screen::Tree { .. } => return,
        };
        order.sort_by(|a, b| {
            let order = sort.compare(value, &rows[*a], &rows[*b]);
            if is_reversed { order.reverse() } else { order }
        });
        let find = |is_it: &dyn Fn(&Row) -> bool| order.iter().position(|index| is_it(&rows[*index]));
        match &mut self.screens[current] {
            Screen::Processes(list) => {
                let found = list.chosen.and_then(|key| find(&|row| row.key.process == key));
                list.settle(found, order.len(), self.page);
            }
            Screen::Sites { list, .. } => {
                let found = list.chosen.and_then(|key| find(&|row| row.key == key));
                list.settle(found, order.len(), self.page);
            }
            Screen::Site { .. } | Screen::Tree { .. } => {}
        }
        self.rows = order;
    }
}

/// The profile with its call sites: where nothing was judged, it has none.
fn listed(mut profile: Profile) -> Profile {
    if profile.verdicts.is_empty() {
        profile.verdicts = call_sites(&profile);
    }
    profile
}

fn indexes(rows: &[Row], shows: impl Fn(&Row) -> bool) -> Vec<usize> {
    rows.iter().enumerate().filter(|(_, row)| shows(row)).map(|(index, _)| index).collect()
}
