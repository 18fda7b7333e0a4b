//! The list of processes or call sites.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::super::Top;
use super::super::figures::{self, bytes, rate, short_age, short_bytes, short_count, signed};
use super::super::order::Sort;
use super::super::screen::Screen;
use super::super::snapshot::Row;
use super::super::text::{cut_end, cut_middle, left, right, safe, width};
use super::super::theme::Theme;
use super::header::process_name;
use super::{explain, trend};
use crate::profile::{Frame, FrameKind, Totals, Verdict};
use crate::render::words::Words;
use crate::render::{NO_STACK, Value, duration, grouped, label};

/// A column and its width in cells.
type Columns = Vec<(Column, usize)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Verdict,
    Live,
    Delta,
    Rate,
    Trend,
    Objects,
    Age,
    Process,
    /// The call site, or the process in the list of processes; takes the remaining width.
    Name,
}

/// Minimum widths for the rate, for all columns, and for figures with units.
const MEDIUM: u16 = 56;
const NORMAL: u16 = 72;
const WIDE: u16 = 110;

/// Minimum width of names; columns before it are cut off where there is less room.
const LEAST_NAME: usize = 12;

fn columns(cells: u16, names_process: bool) -> Columns {
    use Column::{Age, Delta, Live, Name, Objects, Process, Rate, Trend, Verdict};
    let mut columns = vec![(Verdict, 8)];
    columns.extend(match cells {
        WIDE.. => vec![(Live, 10), (Delta, 11), (Rate, 15), (Trend, 16), (Objects, 9), (Age, 6)],
        NORMAL.. => vec![(Live, 5), (Delta, 6), (Rate, 10), (Trend, 8), (Objects, 5), (Age, 5)],
        MEDIUM.. => vec![(Live, 5), (Delta, 6), (Rate, 10)],
        _ => vec![(Live, 5), (Delta, 6)],
    });
    if names_process && cells >= NORMAL {
        columns.push((Process, if cells >= WIDE { 16 } else { 10 }));
    }
    let used: usize = columns.iter().map(|(_, width)| width + 1).sum();
    columns.push((Name, usize::from(cells).saturating_sub(used).max(LEAST_NAME)));
    columns
}

impl Top {
    pub(super) fn draw_table(&mut self, area: Rect, buffer: &mut Buffer) {
        let page = usize::from(area.height.saturating_sub(1)).max(1);
        if page != self.page {
            // The terminal was resized.
            self.page = page;
            self.sort_and_filter();
        }
        let (index, offset) = self.screen().place();
        let rows: Vec<Row> = self.shown_rows().skip(offset).take(page).copied().collect();
        if rows.is_empty() {
            let (what, why) = self.why_empty();
            explain(buffer, area, &what, &why);
            return;
        }
        let of_all = matches!(self.screen(), Screen::Sites { of: None, .. });
        let columns = columns(area.width, of_all && self.shown_snapshot().profiles.len() > 1);
        self.draw_heads(&columns, area, buffer);
        let lines = area.top() + 1..area.bottom();
        for (y, (number, row)) in lines.zip((offset..).zip(&rows)) {
            let line = Rect { y, height: 1, ..area };
            self.draw_row(row, &columns, line, buffer);
            if number == index {
                buffer.set_style(line, Style::reset().patch(Theme::selected()));
            }
        }
    }

    fn draw_heads(&self, columns: &Columns, area: Rect, buffer: &mut Buffer) {
        let is_processes = matches!(self.screen(), Screen::Processes(_));
        let sorted = match (self.sort, self.value) {
            (Sort::Verdict, _) => Column::Verdict,
            (Sort::Count, _) | (Sort::Size, Value::Objects) => Column::Objects,
            (Sort::Size, Value::Bytes) => Column::Live,
            (Sort::Growth, _) => Column::Delta,
            (Sort::Rate, _) => Column::Rate,
            (Sort::Age, _) => Column::Age,
        };
        let words = self.shown_snapshot().words();
        let mut x = area.x;
        buffer.set_style(Rect { height: 1, ..area }, Theme::head());
        for (column, cells) in columns {
            let mut text = head(*column, self.value, is_processes, words).to_owned();
            let mut style = Theme::head();
            if *column == sorted {
                text.push(if self.is_reversed { '▴' } else { '▾' });
                style = style.add_modifier(Modifier::BOLD);
            }
            let text = if is_right(*column) { right(&text, *cells) } else { left(&text, *cells) };
            buffer.set_stringn(x, area.y, text, room(area, x), style);
            x = x.saturating_add(u16::try_from(cells + 1).unwrap_or(u16::MAX));
        }
    }

    fn draw_row(&self, row: &Row, columns: &Columns, area: Rect, buffer: &mut Buffer) {
        let is_wide = area.width >= WIDE;
        let mut x = area.x;
        for (column, cells) in columns {
            if x >= area.right() {
                break;
            }
            let (text, style) = self.cell(row, *column, *cells, is_wide);
            let text = if is_right(*column) { right(&text, *cells) } else { left(&text, *cells) };
            buffer.set_stringn(x, area.y, text, room(area, x), style);
            x = x.saturating_add(u16::try_from(cells + 1).unwrap_or(u16::MAX));
        }
        self.draw_callers(row, columns, area, buffer);
    }

    fn cell(&self, row: &Row, column: Column, cells: usize, is_wide: bool) -> (String, Style) {
        let snapshot = self.shown_snapshot();
        let size = if is_wide { bytes } else { short_bytes };
        let count = |count: u64| if is_wide { grouped(count) } else { short_count(count) };
        let plain = Style::new();
        match column {
            Column::Verdict => (row.assessment.label().to_owned(), self.theme.assessment(row.assessment)),
            Column::Live => (size(row.live.bytes), plain),
            Column::Delta if self.instants < 2 => (String::new(), plain),
            Column::Delta => match self.value {
                Value::Bytes => (signed(row.delta.bytes, size), plain),
                Value::Objects => (signed(row.delta.objects, count), plain),
            },
            Column::Rate => (rate(row.rate, size), plain),
            Column::Trend => (self.trend(row, cells), self.theme.trend()),
            Column::Objects => (count(row.live.objects), plain),
            Column::Age => (row.oldest.map(short_age).unwrap_or_default(), plain),
            Column::Process => {
                let profile = snapshot.profile(row);
                let pid = format!(" {}", profile.process.pid);
                let name = safe(&profile.process.comm);
                (format!("{}{pid}", cut_end(&name, cells.saturating_sub(width(&pid)))), plain)
            }
            Column::Name => {
                let mut name = self.row_name(row);
                if width(&name) > cells {
                    // A function name says more than its location, and a PID more than a name that several processes share.
                    name = match row.verdict {
                        Some(_) => self.function(row),
                        None => self.short_row_name(row, cells),
                    };
                }
                (cut_middle(&name, cells).into_owned(), plain)
            }
        }
    }

    fn trend(&self, row: &Row, cells: usize) -> String {
        let snapshot = self.shown_snapshot();
        if let Some(verdict) = snapshot.verdict(row) {
            return trend::line(&verdict.series, cells);
        }
        trend::line(&trend::of_all(snapshot.profile(row)), cells)
    }

    fn row_name(&self, row: &Row) -> String {
        let snapshot = self.shown_snapshot();
        if row.verdict.is_some() {
            return self.site_name(row);
        }
        let profile = snapshot.profile(row);
        match &profile.ended {
            // Only commands have an exit status, and there are many other processes.
            Some(ended) if ended.contains("unknown") => format!("{} ended", process_name(profile)),
            Some(ended) => format!("{} ended: {}", process_name(profile), safe(ended)),
            None => process_name(profile),
        }
    }

    /// The row of a process, with the end of its name cut off.
    fn short_row_name(&self, row: &Row, cells: usize) -> String {
        let profile = self.shown_snapshot().profile(row);
        let ended = if profile.ended.is_some() { " ended" } else { "" };
        let number = format!(" (pid {}){ended}", profile.process.pid);
        let comm = safe(&profile.process.comm);
        format!("{}{number}", cut_end(&comm, cells.saturating_sub(width(&number)).max(1)))
    }

    /// The function of a call site.
    fn function(&self, row: &Row) -> String {
        let verdict = self.shown_snapshot().verdict(row);
        let caller = verdict.and_then(|verdict| verdict.frames.get(verdict.caller));
        let name = caller.map_or_else(|| NO_STACK.to_owned(), |caller| safe(&label(caller)).into_owned());
        // A Java class is no function: what calls it says who allocates it.
        let class =
            verdict.and_then(|verdict| verdict.frames.first()).filter(|frame| frame.kind == FrameKind::Class);
        match class {
            Some(class) if verdict.is_some_and(|verdict| verdict.caller > 0) => {
                format!("{} ← {name}", safe(&class.symbol))
            }
            _ => name,
        }
    }

    /// The function of a call site, and its location.
    pub(super) fn site_name(&self, row: &Row) -> String {
        let name = self.function(row);
        let verdict = self.shown_snapshot().verdict(row);
        let caller = verdict.and_then(|verdict| verdict.frames.get(verdict.caller));
        let place = caller.map(|caller| place(caller)).unwrap_or_default();
        if place.is_empty() { name } else { format!("{name} {place}") }
    }

    /// Appends the callers, or the executable of a process, where there is room.
    fn draw_callers(&self, row: &Row, columns: &Columns, area: Rect, buffer: &mut Buffer) {
        let used: usize = columns.iter().take(columns.len() - 1).map(|(_, width)| width + 1).sum();
        let x = used + width(&self.row_name(row)) + 1;
        let left = usize::from(area.width).saturating_sub(x);
        if left < LEAST_NAME {
            return;
        }
        let snapshot = self.shown_snapshot();
        let more = match snapshot.verdict(row) {
            Some(verdict) => callers(verdict),
            None => safe(&snapshot.profile(row).process.exe).into_owned(),
        };
        let x = area.x + u16::try_from(x).unwrap_or(u16::MAX);
        buffer.set_stringn(x, area.y, cut_end(&more, left), left, Theme::quiet());
    }

    /// Reason why the list is empty.
    fn why_empty(&self) -> (String, String) {
        let snapshot = self.shown_snapshot();
        let (screen, words) = (self.screen(), |what: &str, why: &str| (what.to_owned(), why.to_owned()));
        if let Some(filter) = screen.filter()
            && !filter.is_empty()
        {
            return (format!("Nothing matches {}", safe(filter.text())), "Esc clears the filter.".to_owned());
        }
        if self.instants == 0 {
            let first = format!("First figures in {}.", duration(self.about.interval));
            return ("Accounting has started.".to_owned(), first);
        }
        if snapshot.profiles.is_empty() {
            return words("No processes yet.", "Profiled processes appear here.");
        }
        let scope = screen.scope();
        let profiles = || snapshot.profiles.iter().filter(|profile| scope.has(profile));
        let seen: Totals = profiles().map(|profile| profile.allocated()).sum();
        if seen.objects > 0 {
            let seen = figures::counted(seen.objects, "allocation");
            return (format!("No live blocks: {seen}, all freed."), String::new());
        }
        let since = profiles().map(|profile| profile.started_at).min().unwrap_or_default();
        let since = since.to_zoned(self.about.time_zone.clone()).strftime("%H:%M:%S");
        let why = format!(
            "Allocations since {since} count. Older blocks are unknown, so those that are never freed do not show."
        );
        ("No allocations yet.".to_owned(), why)
    }
}

/// Callers of a call site: `← load_page ← handle_request`.
fn callers(verdict: &Verdict) -> String {
    let callers = verdict.frames.iter().skip(verdict.caller + 1).take(8);
    let callers: Vec<_> = callers.map(|frame| format!("← {}", safe(&label(frame)))).collect();
    callers.join(" ")
}

/// Location of a frame: `demo.c:108`; empty if unknown.
pub(super) fn place(frame: &Frame) -> String {
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    match (safe(file), frame.line) {
        (file, _) if file.is_empty() => String::new(),
        (file, 0) => file.into_owned(),
        (file, line) => format!("{file}:{line}"),
    }
}

const fn head(column: Column, value: Value, is_processes: bool, words: &Words) -> &'static str {
    match (column, value) {
        (Column::Verdict, _) => "VERDICT",
        (Column::Live, _) => words.live_head,
        (Column::Delta, Value::Bytes) => "DELTA",
        (Column::Delta, Value::Objects) => words.new_objects_head,
        (Column::Rate, _) => "RATE",
        (Column::Trend, _) => "TREND",
        (Column::Objects, _) => words.objects_head,
        (Column::Age, _) => "AGE",
        (Column::Process, _) => "PROCESS",
        (Column::Name, _) if is_processes => "PROCESS",
        (Column::Name, _) => "CALL SITE",
    }
}

const fn is_right(column: Column) -> bool {
    matches!(column, Column::Live | Column::Delta | Column::Rate | Column::Objects | Column::Age)
}

/// Number of cells from `x` to the end of the line.
fn room(area: Rect, x: u16) -> usize {
    area.right().saturating_sub(x).into()
}
