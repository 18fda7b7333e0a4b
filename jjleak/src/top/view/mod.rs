//! Rendering of the view: from top to bottom the title, totals, the list or call site or tree, the selected row, losses and
//! costs, and keys. Small terminals omit some of them.

mod footer;
mod header;
mod help;
mod icicle;
mod site;
mod table;
mod trend;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::Top;
use super::screen::Screen;
use super::text::{cut_end, safe, width};
use super::theme::Theme;

/// Minimum size of the terminal.
const SMALLEST: (u16, u16) = (20, 5);
/// Minimum height for a second line of totals and for the exact figures of the selected row.
const TALL: u16 = 14;

impl Top {
    /// Draws the view.
    pub fn draw(&mut self, area: Rect, buffer: &mut Buffer) {
        if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
            write(buffer, area, &["jjleak: terminal too small".to_owned()], Style::new());
            return;
        }
        let is_tall = u16::from(area.height >= TALL);
        let heights = [1, 1 + is_tall, 0, is_tall, 1, 1];
        let mut constraints = heights.map(Constraint::Length);
        constraints[2] = Constraint::Fill(1);
        let [title, sums, body, selected, status, keys] = Layout::vertical(constraints).areas(area);
        self.draw_title(title, buffer);
        self.draw_sums(sums, buffer);
        if self.shows_help {
            self.draw_help(body, buffer);
        } else {
            self.draw_body(body, buffer);
            self.draw_selected(selected, buffer);
        }
        self.draw_status(status, buffer);
        self.draw_keys(keys, buffer);
    }

    fn draw_body(&mut self, area: Rect, buffer: &mut Buffer) {
        match self.screen() {
            Screen::Processes(_) | Screen::Sites { .. } => self.draw_table(area, buffer),
            Screen::Site { .. } => self.draw_site(area, buffer),
            Screen::Tree { .. } => self.draw_icicle(area, buffer),
            Screen::Memory { .. } => self.draw_memory(area, buffer),
        }
    }

    fn draw_memory(&mut self, area: Rect, buffer: &mut Buffer) {
        self.page = area.height.into();
        let Screen::Memory { of, scroll } = *self.screen() else { return };
        if self.memory.of != Some(of) {
            explain(buffer, area, "Scanning the memory of the process.", "");
            return;
        }
        // Rows are cut, sentences are wrapped.
        let lines = self.memory.lines.iter().flat_map(|line| {
            let line = safe(line).into_owned();
            let is_row = line.starts_with(' ');
            let parts = if is_row { vec![line] } else { wrapped(&line, area.width.into()) };
            parts.into_iter().map(move |part| (is_row, part))
        });
        for (y, (is_row, line)) in (area.top()..area.bottom()).zip(lines.skip(scroll)) {
            let style = if is_row { Style::new() } else { Theme::strong() };
            buffer.set_stringn(area.x, y, cut_end(&line, area.width.into()), area.width.into(), style);
        }
    }
}

/// A styled piece of a line.
type Piece = (String, Style);

/// Joins the pieces that fit, with two spaces between them; the first one is shortened if necessary.
fn fitting(pieces: impl IntoIterator<Item = Piece>, cells: u16) -> Line<'static> {
    let mut left = usize::from(cells);
    let mut spans: Vec<Span<'static>> = Vec::new();
    for (text, style) in pieces.into_iter().filter(|(text, _)| !text.is_empty()) {
        let gap = if spans.is_empty() { 0 } else { 2 };
        if !spans.is_empty() && gap + width(&text) > left {
            continue;
        }
        if gap > 0 {
            spans.push(Span::raw("  "));
        }
        let text = cut_end(&text, left - gap).into_owned();
        left -= gap + width(&text);
        spans.push(Span::styled(text, style));
    }
    Line::from(spans)
}

/// Writes lines from the top of an area.
fn write(buffer: &mut Buffer, area: Rect, lines: &[String], style: Style) {
    for (y, line) in (area.top()..area.bottom()).zip(lines) {
        buffer.set_stringn(area.x, y, cut_end(line, area.width.into()), area.width.into(), style);
    }
}

/// Wraps a text at spaces.
fn wrapped(text: &str, cells: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if width(line) + 1 + width(word) <= cells {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Explains an empty screen.
fn explain(buffer: &mut Buffer, area: Rect, what: &str, why: &str) {
    let inner = Rect { x: area.x + 2, width: area.width.saturating_sub(4), ..area };
    let mut lines = vec![String::new()];
    lines.extend(wrapped(what, inner.width.into()));
    let heads = lines.len();
    write(buffer, inner, &lines, Theme::strong());
    let below = Rect { y: inner.y + u16::try_from(heads).unwrap_or(0), ..inner }.intersection(inner);
    write(buffer, below, &wrapped(why, inner.width.into()), Style::new());
}
