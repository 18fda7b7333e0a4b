//! Key bindings.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::Top;
use super::order::Filter;
use super::screen::{List, Scope, Screen};
use super::snapshot::{ProcessKey, Row};
use super::tree::{Icicle, Place, Tile};
use crate::render::Value;

/// Request of a key that the view cannot serve itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Leave the view.
    Leave,
    /// Write the shown stacks to a file.
    Export,
    /// Suspend jjleak until the shell resumes it.
    Suspend,
    /// Redraw the screen: something else has written to the terminal.
    Redraw,
}

/// A key and what it does, for the help screen.
pub(super) struct Help {
    pub(super) keys: &'static str,
    pub(super) does: &'static str,
}

const fn help(keys: &'static str, does: &'static str) -> Help {
    Help { keys, does }
}

/// All keys.
pub(super) const HELP: [Help; 16] = [
    help("↑ ↓ PgUp PgDn Home End", "move (also k j g G)"),
    help("Enter →", "open: process, call site, stack (also l)"),
    help("Esc ←", "back (also h and Backspace)"),
    help("s S", "sort by the next or previous column (▾)"),
    help("r", "reverse the order"),
    help("/", "filter rows (Esc clears); in the tree, find a function"),
    help("b", "switch between bytes and objects"),
    help("t", "tree of call paths; Enter zooms in, Esc out"),
    help("m", "resident memory of the process by use, and what grows"),
    help("n p", "next or previous stack of a call site"),
    help("a", "call sites of all processes"),
    help("Space f", "freeze or resume"),
    help("e", "write what is shown as a flame graph (SVG)"),
    help("Ctrl-L Ctrl-Z", "redraw; suspend jjleak (fg resumes it)"),
    help("?", "this help"),
    help("q Ctrl-C", "quit; requested files are written"),
];

/// Maximum length of a filter, in bytes.
const MAX_FILTER: usize = 200;

impl Top {
    /// Handles a key; returns a request if it needs one.
    pub fn press(&mut self, key: KeyEvent) -> Option<Request> {
        self.notice.clear();
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return self.press_control(key.code);
        }
        if self.shows_help {
            self.shows_help = false;
            return None;
        }
        if self.is_typing_filter {
            self.type_filter(key.code);
            return None;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Request::Leave),
            KeyCode::Char('e') => return Some(Request::Export),
            KeyCode::Char('?') | KeyCode::F(1) => self.shows_help = true,
            KeyCode::Char(' ' | 'f') => self.freeze(),
            KeyCode::Char('b') => {
                self.value = if self.value == Value::Bytes { Value::Objects } else { Value::Bytes };
                self.sort_and_filter();
            }
            KeyCode::Esc | KeyCode::Backspace => self.go_back(),
            KeyCode::Char('t') => self.show_tree(),
            KeyCode::Char('m') => self.show_memory(),
            code => self.press_in_screen(code),
        }
        None
    }

    fn press_control(&mut self, code: KeyCode) -> Option<Request> {
        match code {
            KeyCode::Char('c') => Some(Request::Leave),
            KeyCode::Char('z') => Some(Request::Suspend),
            KeyCode::Char('l') => Some(Request::Redraw),
            KeyCode::Char('u') if self.is_typing_filter => {
                self.filter("");
                None
            }
            _ => None,
        }
    }

    fn freeze(&mut self) {
        self.frozen = match self.frozen.take() {
            Some(_) => None,
            None => Some(self.snapshot.clone()),
        };
        self.sort_and_filter();
    }

    fn type_filter(&mut self, code: KeyCode) {
        let mut text = self.typed().to_owned();
        match code {
            KeyCode::Enter => self.is_typing_filter = false,
            KeyCode::Esc => {
                self.is_typing_filter = false;
                self.filter("");
            }
            KeyCode::Backspace => {
                text.pop();
                self.filter(&text);
            }
            KeyCode::Char(c) if text.len() < MAX_FILTER => {
                text.push(c);
                self.filter(&text);
            }
            _ => {}
        }
    }

    /// The text typed so far: the filter of a list, or what to find in the tree.
    pub(super) fn typed(&self) -> &str {
        self.screen().filter().map_or(&self.wanted, Filter::text)
    }

    fn filter(&mut self, text: &str) {
        if matches!(self.screen(), Screen::Tree { .. }) {
            text.clone_into(&mut self.wanted);
            self.find_in_tree(&Filter::new(text));
            return;
        }
        if let Some(filter) = self.screen_mut().filter_mut() {
            *filter = Filter::new(text);
        }
        self.sort_and_filter();
    }

    fn go_back(&mut self) {
        if let Screen::Tree { zoom, selected, .. } = self.screen_mut()
            && !zoom.is_empty()
        {
            selected.clone_from(zoom);
            zoom.clear();
            return;
        }
        if self.screen().filter().is_some_and(|filter| !filter.is_empty()) {
            self.filter("");
        } else if self.screens.len() > 1 {
            self.screens.pop();
        }
        self.sort_and_filter();
    }

    fn show_tree(&mut self) {
        if matches!(self.screen(), Screen::Tree { .. }) {
            self.screens.pop();
            self.sort_and_filter();
            return;
        }
        let of = match self.screen() {
            // Tree of the selected process.
            Screen::Processes(_) => {
                let row = self.selected_row();
                row.map_or(Scope::Everything, |row| Scope::Process(row.key.process))
            }
            screen => screen.scope(),
        };
        self.screens.push(Screen::Tree { of, zoom: Vec::new(), selected: Vec::new() });
    }

    /// Shows the memory of the selected process, or of the one that is shown.
    fn show_memory(&mut self) {
        if matches!(self.screen(), Screen::Memory { .. }) {
            self.go_back();
            return;
        }
        let of_row = || self.selected_row().map(|row| row.key.process);
        let process = match (self.screen(), self.screen().scope()) {
            (Screen::Processes(_) | Screen::Sites { of: None, .. }, _) => of_row(),
            (_, Scope::Process(process)) => Some(process),
            (_, Scope::Site(site)) => Some(site.process),
            (_, Scope::Everything) => None,
        };
        let only = || match &self.shown_snapshot().profiles[..] {
            [profile] => Some(ProcessKey::of(&profile.process)),
            _ => None,
        };
        if let Some(of) = process.or_else(only) {
            self.screens.push(Screen::Memory { of, scroll: 0 });
        }
    }

    fn press_in_memory(&mut self, code: KeyCode) {
        let (page, last) = (self.page, self.memory.lines.len().saturating_sub(1));
        let Screen::Memory { scroll, .. } = self.screen_mut() else { return };
        match code {
            KeyCode::Down | KeyCode::Char('j') => *scroll = (*scroll + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
            KeyCode::PageDown => *scroll = (*scroll + page).min(last),
            KeyCode::PageUp => *scroll = scroll.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => *scroll = 0,
            KeyCode::Left | KeyCode::Char('h') => self.go_back(),
            _ => {}
        }
    }

    fn press_in_screen(&mut self, code: KeyCode) {
        match self.screen() {
            Screen::Processes(_) | Screen::Sites { .. } => self.press_in_list(code),
            Screen::Site { .. } => self.press_in_site(code),
            Screen::Tree { .. } => self.press_in_tree(code),
            Screen::Memory { .. } => self.press_in_memory(code),
        }
    }

    fn press_in_list(&mut self, code: KeyCode) {
        let (index, _) = self.screen().place();
        let last = self.rows.len().saturating_sub(1);
        match code {
            KeyCode::Down | KeyCode::Char('j') => self.select((index + 1).min(last)),
            KeyCode::Up | KeyCode::Char('k') => self.select(index.saturating_sub(1)),
            KeyCode::PageDown => self.select((index + self.page).min(last)),
            KeyCode::PageUp => self.select(index.saturating_sub(self.page)),
            KeyCode::End | KeyCode::Char('G') => self.select(last),
            KeyCode::Home | KeyCode::Char('g') => self.select_first(),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.drill_down(),
            KeyCode::Left | KeyCode::Char('h') => self.go_back(),
            KeyCode::Char('s') => self.sort_by(1),
            KeyCode::Char('S') => self.sort_by(super::Sort::ALL.len() - 1),
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.sort_and_filter();
            }
            KeyCode::Char('/') => self.is_typing_filter = true,
            KeyCode::Char('a') if matches!(self.screen(), Screen::Processes(_)) => {
                self.screens.push(Screen::Sites { of: None, list: List::default() });
                self.sort_and_filter();
            }
            _ => {}
        }
    }

    fn sort_by(&mut self, steps: usize) {
        self.sort = self.sort.step(steps);
        self.sort_and_filter();
    }

    /// The selected row.
    pub(super) fn selected_row(&self) -> Option<Row> {
        let snapshot = self.shown_snapshot();
        let all = match self.screen() {
            Screen::Processes(_) => &snapshot.processes,
            _ => &snapshot.sites,
        };
        all.get(*self.rows.get(self.screen().place().0)?).copied()
    }

    fn select(&mut self, index: usize) {
        let snapshot = self.frozen.as_ref().unwrap_or(&self.snapshot);
        let shown = self.screens.len() - 1;
        let row = self.rows.get(index);
        match &mut self.screens[shown] {
            Screen::Processes(list) => {
                list.selected = row.and_then(|row| snapshot.processes.get(*row)).map(|row| row.key.process);
            }
            Screen::Sites { list, .. } => {
                list.selected = row.and_then(|row| snapshot.sites.get(*row)).map(|row| row.key);
            }
            Screen::Site { .. } | Screen::Tree { .. } | Screen::Memory { .. } => {}
        }
        self.sort_and_filter();
    }

    /// Selects the first row, whichever it will be.
    fn select_first(&mut self) {
        match self.screen_mut() {
            Screen::Processes(list) => list.selected = None,
            Screen::Sites { list, .. } => list.selected = None,
            Screen::Site { .. } | Screen::Tree { .. } | Screen::Memory { .. } => {}
        }
        self.sort_and_filter();
    }

    fn drill_down(&mut self) {
        let Some(row) = self.selected_row() else { return };
        let closer = match self.screen() {
            Screen::Processes(_) => Screen::Sites { of: Some(row.key.process), list: List::default() },
            _ => Screen::Site { key: row.key, stack: 0, scroll: 0 },
        };
        self.screens.push(closer);
        self.sort_and_filter();
    }

    fn press_in_site(&mut self, code: KeyCode) {
        let page = self.page;
        let Screen::Site { key, .. } = *self.screen() else { return };
        let stacks =
            self.shown_snapshot().find_site(key).map_or(0, |row| self.shown_snapshot().stacks(row).len());
        let Screen::Site { stack, scroll, .. } = self.screen_mut() else { return };
        match code {
            KeyCode::Down | KeyCode::Char('j') => *scroll = scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
            KeyCode::PageDown => *scroll = scroll.saturating_add(page),
            KeyCode::PageUp => *scroll = scroll.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => *scroll = 0,
            KeyCode::End | KeyCode::Char('G') => *scroll = usize::MAX,
            KeyCode::Char('n') => (*stack, *scroll) = ((*stack + 1).min(stacks.saturating_sub(1)), 0),
            KeyCode::Char('p') => (*stack, *scroll) = (stack.saturating_sub(1), 0),
            KeyCode::Enter => self.show_tree(),
            KeyCode::Char('/') => {
                // A single call site has nothing to filter: its list has.
                self.go_back();
                self.is_typing_filter = true;
            }
            KeyCode::Left | KeyCode::Char('h') => self.go_back(),
            _ => {}
        }
    }

    /// Selects the widest function of the tree that matches, however deep it is.
    fn find_in_tree(&mut self, wanted: &Filter) {
        let Screen::Tree { of, zoom, .. } = self.screen() else { return };
        let place = Place { width: u16::MAX, rows: usize::MAX, value: self.value };
        let stacks = self.stacks_of(*of);
        let whole = Icicle::of(stacks.iter().map(|(_, stack)| *stack), zoom, place);
        let below = whole.tiles.iter().filter(|tile| tile.path.len() > zoom.len());
        // The outermost of equally wide ones.
        let found = below.filter(|tile| !wanted.is_empty() && wanted.matches(&tile.label)).rev();
        let found = found.max_by_key(|tile| tile.width).map(|tile| tile.path.clone());
        if let (Some(path), Screen::Tree { selected, .. }) = (found, self.screen_mut()) {
            *selected = path;
        }
    }

    fn press_in_tree(&mut self, code: KeyCode) {
        if code == KeyCode::Char('/') {
            self.wanted.clear();
            self.is_typing_filter = true;
            return;
        }
        let last = self.screens.len() - 1;
        let icicle = &self.icicle;
        let Screen::Tree { zoom, selected, .. } = &mut self.screens[last] else { return };
        let Some(at) = icicle.find(selected).or_else(|| icicle.find(zoom)) else { return };
        let above = || icicle.find(at.path.split_last().map_or(&[][..], |(_, path)| path));
        let go: Option<&Tile> = match code {
            KeyCode::Down | KeyCode::Char('j') => icicle.below(at),
            KeyCode::Up | KeyCode::Char('k') if at.path == *zoom => {
                zoom.pop();
                selected.clone_from(zoom);
                return;
            }
            KeyCode::Up | KeyCode::Char('k') => above(),
            KeyCode::Right | KeyCode::Char('l') => icicle.beside(at, true),
            KeyCode::Left | KeyCode::Char('h') => icicle.beside(at, false),
            KeyCode::Home | KeyCode::Char('g') => icicle.find(zoom),
            KeyCode::Enter => {
                zoom.clone_from(&at.path);
                Some(at)
            }
            _ => None,
        };
        if let Some(tile) = go {
            selected.clone_from(&tile.path);
        }
    }
}
