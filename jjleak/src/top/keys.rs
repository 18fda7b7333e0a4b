//! What each key changes.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::Top;
use super::books::Row;
use super::order::Filter;
use super::screen::{List, Scope, Screen};
use super::tree::Tile;
use crate::render::Value;

/// What a key asks of the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// To leave the view.
    Leave,
    /// To write what is shown to a file.
    Export,
    /// To stop until the shell says otherwise.
    Suspend,
    /// To draw everything anew: something else has written to the terminal.
    Redraw,
}

/// A key and what it does, for the help and for the last line.
pub(super) struct Help {
    pub(super) keys: &'static str,
    pub(super) does: &'static str,
}

const fn help(keys: &'static str, does: &'static str) -> Help {
    Help { keys, does }
}

/// All keys.
pub(super) const HELP: [Help; 15] = [
    help("↑ ↓ PgUp PgDn Home End", "move (also k j g G)"),
    help("Enter →", "look closer: process, call site, stack (also l)"),
    help("Esc ←", "back (also h and Backspace)"),
    help("s S", "sort by the next column, by the one before (▾)"),
    help("r", "turn the order round"),
    help("/", "filter by function, file or verdict; Esc clears"),
    help("b", "bytes or objects"),
    help("t", "tree of call paths; Enter zooms in, Esc out"),
    help("n p", "next stack of a call site, the one before"),
    help("a", "call sites of all processes"),
    help("Space f", "freeze and go on"),
    help("e", "write what is shown as a flame graph (SVG)"),
    help("Ctrl-L Ctrl-Z", "draw anew; stop jjleak, fg brings it back"),
    help("?", "this help"),
    help("q Ctrl-C", "leave; files are written if they were asked for"),
];

/// Longest filter that can be typed.
const MAX_FILTER: usize = 200;

impl Top {
    /// Does what a key says; what it asks of the outside, if anything.
    pub fn press(&mut self, key: KeyEvent) -> Option<Wish> {
        self.notice.clear();
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return self.press_control(key.code);
        }
        if self.is_helping {
            self.is_helping = false;
            return None;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return None;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Wish::Leave),
            KeyCode::Char('e') => return Some(Wish::Export),
            KeyCode::Char('?') | KeyCode::F(1) => self.is_helping = true,
            KeyCode::Char(' ' | 'f') => self.freeze(),
            KeyCode::Char('b') => {
                self.value = if self.value == Value::Bytes { Value::Objects } else { Value::Bytes };
                self.arrange();
            }
            KeyCode::Esc | KeyCode::Backspace => self.go_back(),
            KeyCode::Char('t') => self.show_tree(),
            code => self.press_in_screen(code),
        }
        None
    }

    fn press_control(&mut self, code: KeyCode) -> Option<Wish> {
        match code {
            KeyCode::Char('c') => Some(Wish::Leave),
            KeyCode::Char('z') => Some(Wish::Suspend),
            KeyCode::Char('l') => Some(Wish::Redraw),
            KeyCode::Char('u') if self.is_typing => {
                self.filter("");
                None
            }
            _ => None,
        }
    }

    fn freeze(&mut self) {
        self.frozen = match self.frozen.take() {
            Some(_) => None,
            None => Some(self.books.clone()),
        };
        self.arrange();
    }

    fn type_filter(&mut self, code: KeyCode) {
        let mut text = self.screen().filter().map(Filter::text).unwrap_or_default().to_owned();
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
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

    fn filter(&mut self, text: &str) {
        if let Some(filter) = self.screen_mut().filter_mut() {
            *filter = Filter::new(text);
        }
        self.arrange();
    }

    fn go_back(&mut self) {
        if let Screen::Tree { zoom, chosen, .. } = self.screen_mut()
            && !zoom.is_empty()
        {
            chosen.clone_from(zoom);
            zoom.clear();
            return;
        }
        if self.screen().filter().is_some_and(|filter| !filter.is_empty()) {
            self.filter("");
        } else if self.screens.len() > 1 {
            self.screens.pop();
        }
        self.arrange();
    }

    fn show_tree(&mut self) {
        if matches!(self.screen(), Screen::Tree { .. }) {
            self.screens.pop();
            self.arrange();
            return;
        }
        let of = match self.screen() {
            // Of the process that is chosen.
            Screen::Processes(_) => {
                let row = self.chosen_row();
                row.map_or(Scope::Everything, |row| Scope::Process(row.key.process))
            }
            screen => screen.scope(),
        };
        self.screens.push(Screen::Tree { of, zoom: Vec::new(), chosen: Vec::new() });
    }

    fn press_in_screen(&mut self, code: KeyCode) {
        match self.screen() {
            Screen::Processes(_) | Screen::Sites { .. } => self.press_in_list(code),
            Screen::Site { .. } => self.press_in_site(code),
            Screen::Tree { .. } => self.press_in_tree(code),
        }
    }

    fn press_in_list(&mut self, code: KeyCode) {
        let (index, _) = self.screen().place();
        let last = self.rows.len().saturating_sub(1);
        match code {
            KeyCode::Down | KeyCode::Char('j') => self.choose((index + 1).min(last)),
            KeyCode::Up | KeyCode::Char('k') => self.choose(index.saturating_sub(1)),
            KeyCode::PageDown => self.choose((index + self.page).min(last)),
            KeyCode::PageUp => self.choose(index.saturating_sub(self.page)),
            KeyCode::End | KeyCode::Char('G') => self.choose(last),
            KeyCode::Home | KeyCode::Char('g') => self.choose_first(),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.look_closer(),
            KeyCode::Left | KeyCode::Char('h') => self.go_back(),
            KeyCode::Char('s') => self.sort_by(1),
            KeyCode::Char('S') => self.sort_by(super::Sort::ALL.len() - 1),
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.arrange();
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('a') if matches!(self.screen(), Screen::Processes(_)) => {
                self.screens.push(Screen::Sites { of: None, list: List::default() });
                self.arrange();
            }
            _ => {}
        }
    }

    fn sort_by(&mut self, steps: usize) {
        self.sort = self.sort.step(steps);
        self.arrange();
    }

    /// The row that is chosen.
    pub(super) fn chosen_row(&self) -> Option<Row> {
        let books = self.shown_books();
        let all = match self.screen() {
            Screen::Processes(_) => &books.processes,
            _ => &books.sites,
        };
        all.get(*self.rows.get(self.screen().place().0)?).copied()
    }

    fn choose(&mut self, index: usize) {
        let books = self.frozen.as_ref().unwrap_or(&self.books);
        let shown = self.screens.len() - 1;
        let row = self.rows.get(index);
        match &mut self.screens[shown] {
            Screen::Processes(list) => {
                list.chosen = row.and_then(|row| books.processes.get(*row)).map(|row| row.key.process);
            }
            Screen::Sites { list, .. } => {
                list.chosen = row.and_then(|row| books.sites.get(*row)).map(|row| row.key);
            }
            Screen::Site { .. } | Screen::Tree { .. } => {}
        }
        self.arrange();
    }

    /// Chooses what comes first, whatever that will be.
    fn choose_first(&mut self) {
        match self.screen_mut() {
            Screen::Processes(list) => list.chosen = None,
            Screen::Sites { list, .. } => list.chosen = None,
            Screen::Site { .. } | Screen::Tree { .. } => {}
        }
        self.arrange();
    }

    fn look_closer(&mut self) {
        let Some(row) = self.chosen_row() else { return };
        let closer = match self.screen() {
            Screen::Processes(_) => Screen::Sites { of: Some(row.key.process), list: List::default() },
            _ => Screen::Site { key: row.key, stack: 0, scroll: 0 },
        };
        self.screens.push(closer);
        self.arrange();
    }

    fn press_in_site(&mut self, code: KeyCode) {
        let page = self.page;
        let Screen::Site { key, .. } = *self.screen() else { return };
        let stacks = self.shown_books().find_site(key).map_or(0, |row| self.shown_books().stacks(row).len());
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
            KeyCode::Left | KeyCode::Char('h') => self.go_back(),
            _ => {}
        }
    }

    fn press_in_tree(&mut self, code: KeyCode) {
        let last = self.screens.len() - 1;
        let icicle = &self.icicle;
        let Screen::Tree { zoom, chosen, .. } = &mut self.screens[last] else { return };
        let Some(at) = icicle.find(chosen).or_else(|| icicle.find(zoom)) else { return };
        let above = || icicle.find(at.path.split_last().map_or(&[][..], |(_, path)| path));
        let go: Option<&Tile> = match code {
            KeyCode::Down | KeyCode::Char('j') => icicle.below(at),
            KeyCode::Up | KeyCode::Char('k') if at.path == *zoom => {
                zoom.pop();
                chosen.clone_from(zoom);
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
            chosen.clone_from(&tile.path);
        }
    }
}
