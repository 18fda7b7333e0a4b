//! A call site: its verdict and the evidence, its trend, and its stacks.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::Top;
use super::super::assessment::Assessment;
use super::super::figures::{bytes, counted, exact_bytes, short_age};
use super::super::screen::Screen;
use super::super::snapshot::{Row, Snapshot};
use super::super::text::{cut_end, cut_middle, safe, width};
use super::super::theme::Theme;
use super::table::place;
use super::{explain, trend, wrapped};
use crate::profile::{
    Basis, Frame, JUDGED_SPANS, MemoryKind, Profile, SharedFrame, StackProfile, Verdict, VerdictKind,
};
use crate::render::words::words;
use crate::render::{NO_STACK, ThreadShares, duration, evidence, label, module, percent};

/// Minimum height at which the figures stay while frames scroll. Lower screens scroll everything.
const TALL: u16 = 14;
/// Minimum height for a trend of several lines.
const VERY_TALL: u16 = 28;
const TREND_LINES: usize = 3;
/// Maximum width of the trend: a series has no more points.
const TREND_CELLS: usize = 72;

impl Top {
    pub(super) fn draw_site(&mut self, area: Rect, buffer: &mut Buffer) {
        let Screen::Site { key, stack, scroll } = *self.screen() else { return };
        let snapshot = self.shown_snapshot();
        let Some(row) = snapshot.find_site(key).copied() else {
            explain(
                buffer,
                area,
                "This call site is gone.",
                "All its blocks have been freed. Press Esc to go back.",
            );
            return;
        };
        let head = self.site_lines(&row, area);
        let stacks = snapshot.stacks(&row);
        let frames = self.stack_lines(&row, &stacks, stack, area.width);
        // The line above the frames stays with the figures.
        let fixed =
            if area.height >= TALL { (head.len() + 1).min(usize::from(area.height) / 4 * 3) } else { 0 };
        let lines: Vec<_> = head.into_iter().chain(frames).collect();
        let page = usize::from(area.height).saturating_sub(fixed).max(1);
        let scroll = scroll.min(lines.len().saturating_sub(fixed + page));
        let shown = lines.iter().take(fixed).chain(lines.iter().skip(fixed + scroll));
        for (y, line) in (area.top()..area.bottom()).zip(shown) {
            buffer.set_line(area.x, y, line, area.width);
        }
        self.page = page;
        if let Screen::Site { scroll: kept, .. } = self.screen_mut() {
            *kept = scroll;
        }
    }

    /// Verdict on the call site, and the evidence.
    fn site_lines(&self, row: &Row, area: Rect) -> Vec<Line<'static>> {
        let snapshot = self.shown_snapshot();
        let Some(verdict) = snapshot.verdict(row) else { return Vec::new() };
        let cells = usize::from(area.width);
        let sure = match row.assessment {
            Assessment::Growing | Assessment::TooEarly | Assessment::Unjudged => String::new(),
            _ => format!("  {:.0} % sure", verdict.confidence * 100.),
        };
        let mut lines = vec![
            Line::styled(cut_middle(&self.site_name(row), cells).into_owned(), Theme::strong()),
            Line::from(vec![
                Span::styled(verdict.words(), self.theme.assessment(row.assessment)),
                Span::styled(sure, Theme::quiet()),
            ]),
        ];
        let shares = ThreadShares::of_stacks(snapshot.stacks(row).into_iter());
        let threads = shares.words(verdict).map(|words| format!("allocated {words}"));
        for text in sentences(verdict, snapshot.profile(row)).into_iter().chain(threads) {
            lines.extend(wrapped(&text, cells).into_iter().map(Line::from));
        }
        if area.height >= VERY_TALL {
            lines.push(Line::default());
            lines.extend(self.trend_lines(verdict, cells));
            lines.push(Line::default());
        } else {
            let words = format!("  over {}", duration(trend::span(&verdict.series)));
            let blocks = trend::line(&verdict.series, cells.saturating_sub(width(&words)).min(TREND_CELLS));
            lines.push(Line::from(vec![
                Span::styled(blocks, self.theme.trend()),
                Span::styled(words, Theme::quiet()),
            ]));
        }
        lines
    }

    fn trend_lines(&self, verdict: &Verdict, cells: usize) -> Vec<Line<'static>> {
        let highest = verdict.series.iter().map(|point| point.bytes).max().unwrap_or_default();
        let labels =
            [bytes(highest), String::new(), format!("over {}", duration(trend::span(&verdict.series)))];
        let label_cells = labels.iter().map(|label| width(label)).max().unwrap_or_default() + 2;
        let blocks =
            trend::lines(&verdict.series, cells.saturating_sub(label_cells).min(TREND_CELLS), TREND_LINES);
        let line = |(blocks, label): (String, String)| {
            Line::from(vec![
                Span::styled(blocks, self.theme.trend()),
                Span::styled(format!("  {label}"), Theme::quiet()),
            ])
        };
        blocks.into_iter().zip(labels).map(line).collect()
    }

    /// Heading of a stack, and its frames.
    fn stack_lines(
        &self,
        row: &Row,
        stacks: &[&StackProfile],
        number: usize,
        cells: u16,
    ) -> Vec<Line<'static>> {
        let number = number.min(stacks.len().saturating_sub(1));
        let Some(stack) = stacks.get(number) else { return vec![Line::from("its stacks are gone")] };
        let share = percent(self.value.of(stack.live), self.value.of(row.live));
        let which = match stacks.len() {
            1 => "only stack".to_owned(),
            all => format!("stack {} of {all} (n p), {share:.1} % of the call site", number + 1),
        };
        let head = format!("{which}, {}", stack.status.name().replace('_', " "));
        let head = cut_end(&head, cells.into()).into_owned();
        let mut lines = vec![Line::styled(head, Theme::head())];
        if stack.frames.is_empty() {
            lines.push(Line::from(NO_STACK));
        }
        let caller =
            self.shown_snapshot().verdict(row).and_then(|verdict| verdict.frames.get(verdict.caller));
        let lines_of = |frame: &SharedFrame| self.frame_line(frame, caller == Some(frame), cells.into());
        lines.extend(stack.frames.iter().map(lines_of));
        lines
    }

    fn frame_line(&self, frame: &Frame, is_caller: bool, cells: usize) -> Line<'static> {
        let mut details = String::new();
        if !frame.symbol.is_empty()
            && let Some(module) = module(frame)
        {
            details = format!(" [{}]", safe(&module));
        }
        let place = place(frame);
        if !place.is_empty() {
            details = format!("{details} {place}");
        }
        if frame.inlined {
            details.push_str(" (inlined)");
        }
        if frame.tail_call {
            details.push_str(" (tail call)");
        }
        if frame.by_frame_pointer {
            details.push_str(" (by frame pointer)");
        }
        // Shorten the location before the name.
        let name = safe(&label(frame)).into_owned();
        let room = cells.saturating_sub(2);
        let details = cut_end(&details, room.saturating_sub(width(&name)).max(room / 3)).into_owned();
        let name = cut_middle(&name, room.saturating_sub(width(&details))).into_owned();
        let mut style = self.theme.frame_text(frame.kind);
        if is_caller {
            style = style.patch(Theme::strong());
        }
        Line::from(vec![
            Span::styled(if is_caller { "▸ " } else { "  " }, style),
            Span::styled(name, style),
            Span::styled(details, Theme::quiet()),
        ])
    }

    /// Exact figures of the row that is selected in a list.
    pub(super) fn draw_selected(&self, area: Rect, buffer: &mut Buffer) {
        if area.height == 0 || !matches!(self.screen(), Screen::Processes(_) | Screen::Sites { .. }) {
            return;
        }
        let Some(row) = self.selected_row() else { return };
        let objects = counted(row.live.objects, self.shown_snapshot().words().object);
        let live = format!("{} in {objects}", exact_bytes(row.live.bytes));
        let pieces = [(live, Style::new()), (reason(self.shown_snapshot(), &row), Theme::quiet())];
        buffer.set_line(area.x, area.y, &super::fitting(pieces, area.width), area.width);
    }
}

/// Main evidence for the verdict, in a few words.
fn reason(snapshot: &Snapshot, row: &Row) -> String {
    let Some(verdict) = snapshot.verdict(row) else { return String::new() };
    match (verdict.survival, verdict.flat_for) {
        (Some(survival), _) if verdict.kind == VerdictKind::Leaking => {
            let older = short_age(survival.older_than);
            format!("{:.0} % survive past {older}", survival.share() * 100.)
        }
        (_, Some(flat_for)) => format!("flat for {}", duration(flat_for)),
        _ => verdict.words().to_owned(),
    }
}

/// Live and allocated totals, and the evidence as reports word it.
fn sentences(verdict: &Verdict, profile: &Profile) -> Vec<String> {
    let Verdict { live, allocated, .. } = verdict;
    let words = words(profile.coverage.source);
    let mut lines = vec![format!(
        "{} {} in {}; {} {} in {}",
        exact_bytes(live.bytes),
        words.live,
        counted(live.objects, words.object),
        exact_bytes(allocated.bytes),
        words.allocated,
        counted(allocated.objects, words.object),
    )];
    lines.extend(evidence(verdict));
    if let Some(memory) = profile.memory
        && let Some(time) = verdict.rate.and_then(|rate| rate.time_to_fill(memory.available))
    {
        let what = match memory.kind {
            MemoryKind::Cgroup => "its control group's limit",
            MemoryKind::Ram => "RAM",
        };
        lines.push(format!(
            "at this rate the {} left of {what} will be used up in {}",
            bytes(memory.available),
            duration(time)
        ));
    }
    let watched = format!("watched for {}", duration(verdict.watched));
    lines.push(match verdict.basis {
        Basis::ShortHistory => {
            format!("{watched}; a verdict takes {}", duration(profile.coverage.settle * JUDGED_SPANS))
        }
        Basis::LongHistory | Basis::Nothing => watched,
    });
    lines
}
