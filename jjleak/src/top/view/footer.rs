//! The last lines: losses and costs, and keys.

use std::collections::BTreeMap;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::Top;
use super::super::figures::{counted, short_count, whole};
use super::super::screen::Screen;
use super::super::text::{cut_end, safe, width};
use super::super::theme::Theme;
use super::{Piece, fitting};
use crate::profile::{Cost, Coverage, InWindows, Sampling, add_count};
use crate::render::{grouped, losses, share_in_words};

/// Minimum width for full key labels.
const WIDE: u16 = 60;
/// Minimum width for full sentences in the status line.
const SPACIOUS: u16 = 110;

impl Top {
    pub(super) fn draw_status(&self, area: Rect, buffer: &mut Buffer) {
        let line = if self.notice.is_empty() {
            fitting(self.status(area.width >= SPACIOUS), area.width)
        } else {
            Line::styled(cut_end(&safe(&self.notice), area.width.into()).into_owned(), Theme::strong())
        };
        buffer.set_line(area.x, area.y, &line, area.width);
    }

    /// Losses, coverage and costs, abbreviated unless there is room.
    fn status(&self, is_spacious: bool) -> Vec<Piece> {
        let snapshot = self.shown_snapshot();
        let mut lost: BTreeMap<&str, u64> = BTreeMap::new();
        for profile in &snapshot.profiles {
            for loss in losses(profile) {
                add_count(lost.entry(loss.name).or_default(), loss.name, loss.count);
            }
        }
        let mut pieces = Vec::new();
        if lost.is_empty() {
            pieces.push(("nothing lost".to_owned(), self.theme.good()));
        } else {
            let words: Vec<_> = lost.iter().map(|(name, count)| format!("{count} {}", safe(name))).collect();
            pieces.push((format!("LOST: {}", words.join(", ")), self.theme.alarm()));
        }
        if let Some(profile) = snapshot.profiles.first() {
            pieces.push((coverage(&profile.coverage), self.theme.alarm()));
        }
        let rate = whole(snapshot.allocations);
        let rate = if is_spacious {
            format!("{} {}/s", grouped(rate), snapshot.words().calls)
        } else {
            format!("{} {}/s", short_count(rate), snapshot.words().calls_shortly)
        };
        if self.instants > 1 && !self.has_ended {
            pieces.push((rate, Style::new()));
        }
        let costs = snapshot.profiles.iter().filter_map(|profile| profile.cost);
        if let Some(of_cpu) = costs.reduce(Cost::and).and_then(|cost| cost.of_cpu()) {
            let share = share_in_words(of_cpu);
            let words = if is_spacious {
                format!("probes take about {share} of its CPU time")
            } else {
                format!("probes {share} of its CPU")
            };
            pieces.push((words, Style::new()));
        }
        if let Some(cpu) = snapshot.cost.cpu {
            let takes = if is_spacious { "takes " } else { "" };
            pieces.push((format!("jjleak {takes}{:.1} % of a core", cpu * 100.), Style::new()));
        }
        if self.forgotten > 0 {
            let gone = counted(self.forgotten as u64, "process").replace("processs", "processes");
            pieces.push((format!("{gone} ended"), Theme::quiet()));
        }
        pieces
    }

    pub(super) fn draw_keys(&self, area: Rect, buffer: &mut Buffer) {
        let cells = usize::from(area.width);
        let mut spans: Vec<Span<'static>> = Vec::new();
        if self.is_typing_filter {
            let text = safe(self.typed()).into_owned();
            spans.push(Span::styled(format!("/{text}"), Theme::strong()));
            spans.push(Span::styled(" ", Theme::selected()));
            let what =
                if self.screen().filter().is_some() { "Enter applies, Esc clears" } else { "Enter ends" };
            spans.push(Span::styled(format!("  {what}"), Theme::quiet()));
        } else {
            self.add_filter(&mut spans);
            for (key, does) in self.useful_keys() {
                let words = if area.width >= WIDE { does } else { does.split(' ').next().unwrap_or(does) };
                let used: usize = spans.iter().map(|span| width(&span.content)).sum();
                if used + width(key) + 1 + width(words) > cells {
                    break;
                }
                spans.push(Span::styled(key, self.theme.key()));
                spans.push(Span::raw(format!(" {words}  ")));
            }
        }
        buffer.set_line(area.x, area.y, &Line::from(spans), area.width);
    }

    /// Adds the filter and the number of rows that match.
    fn add_filter(&self, spans: &mut Vec<Span<'static>>) {
        let Some(filter) = self.screen().filter() else { return };
        if !filter.is_empty() {
            let text = format!("/{} shows {}", safe(filter.text()), counted(self.rows.len() as u64, "row"));
            spans.push(Span::styled(text, Theme::strong()));
            spans.push(Span::raw("  "));
        }
    }

    /// Keys of the current screen, most useful first.
    fn useful_keys(&self) -> Vec<(&'static str, &'static str)> {
        let freeze = ("Space", if self.frozen.is_some() { "resume" } else { "freeze" });
        let mut keys = vec![("q", "quit"), ("?", "help")];
        if self.shows_help {
            return keys;
        }
        match self.screen() {
            Screen::Processes(_) => {
                keys.extend([("Enter", "call sites"), ("a", "all sites"), ("/", "filter"), ("s", "sort")]);
                keys.extend([("m", "memory"), ("t", "tree"), freeze, ("b", "bytes/objects"), ("e", "SVG")]);
            }
            Screen::Sites { .. } => {
                keys.extend([("Enter", "stack"), ("m", "memory"), ("/", "filter"), ("s", "sort")]);
                keys.extend([("t", "tree"), freeze, ("b", "bytes/objects"), ("e", "SVG")]);
            }
            Screen::Site { .. } => {
                keys.extend([("Esc", "back"), ("↑↓", "scroll"), ("n p", "stacks"), ("t", "tree"), freeze]);
                keys.push(("e", "SVG"));
            }
            Screen::Tree { .. } => {
                keys.extend([("Esc", "back"), ("←↓↑→", "move"), ("Enter", "zoom"), ("/", "find"), freeze]);
                keys.extend([("b", "bytes/objects"), ("e", "SVG")]);
            }
            Screen::Memory { .. } => keys.extend([("Esc", "back"), ("↑↓", "scroll")]),
        }
        keys
    }
}

/// Warning that the figures are not of everything.
fn coverage(coverage: &Coverage) -> String {
    let older_ms = coverage.older.as_millis();
    let mut words = match coverage.sampling {
        Sampling::Off => match coverage.windows {
            Some(InWindows { windows, .. }) => {
                let windows = counted(windows.into(), "window");
                if coverage.knows_live() {
                    format!("ESTIMATES from {windows} of time")
                } else {
                    format!(
                        "ALLOCATED, not live: following frees exceeds --max-overhead; ESTIMATES from {windows} of time"
                    )
                }
            }
            None => String::new(),
        },
        Sampling::Rate(rate) => format!("ESTIMATES from 1 allocation in {rate}"),
        Sampling::Announced => "ESTIMATES from samples that the program draws itself".to_owned(),
        Sampling::Bytes(bytes) => format!("ESTIMATES from 1 allocation in {bytes} bytes"),
    };
    if older_ms > 0 {
        let only = format!("only blocks of {older_ms} ms or older");
        words = if words.is_empty() { only } else { format!("{words}, {only}") };
    }
    words
}
