//! The first lines: title and totals.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use super::super::Top;
use super::super::assessment::Assessment;
use super::super::figures::{bytes, counted, exact_bytes, signed};
use super::super::screen::{Scope, Screen};
use super::super::snapshot::{Row, assessments};
use super::super::text::{cut_middle, left, safe, width};
use super::super::theme::{Colors, Theme};
use super::{Piece, fitting};
use crate::profile::{Profile, Totals};
use crate::render::{Value, duration};

/// Minimum width for full figures.
const WIDE: u16 = 60;

impl Top {
    pub(super) fn draw_title(&self, area: Rect, buffer: &mut Buffer) {
        let state = self.state();
        let room = usize::from(area.width).saturating_sub(width(&state) + 2);
        let place = cut_middle(&self.place(), room.saturating_sub(1)).into_owned();
        let mut style = Theme::title();
        if self.frozen.is_some() && self.theme.colors != Colors::None {
            style = style.fg(Color::Yellow);
        }
        let line = format!(" {}{state} ", left(&place, room));
        buffer.set_stringn(area.x, area.y, line, area.width.into(), style);
    }

    /// Breadcrumbs: `jjleak top › leaky (pid 4242) › cache_insert`.
    fn place(&self) -> String {
        let snapshot = self.shown_snapshot();
        let mut place = "jjleak top".to_owned();
        let only = match &snapshot.profiles[..] {
            [profile] => Some(profile),
            _ => None,
        };
        let profile = match self.screen().scope() {
            Scope::Everything => only,
            Scope::Process(process) => snapshot.find_process(process),
            Scope::Site(site) => snapshot.find_process(site.process),
        };
        match profile {
            Some(profile) => place = format!("{place} › {}", process_name(profile)),
            None if !snapshot.profiles.is_empty() => {
                place = format!("{place} › {} processes", snapshot.profiles.len());
            }
            None => {}
        }
        if let Scope::Site(key) = self.screen().scope()
            && let Some(row) = snapshot.find_site(key)
        {
            place = format!("{place} › {}", self.site_name(row));
        }
        match self.screen() {
            Screen::Tree { .. } => format!("{place} › tree"),
            Screen::Memory { .. } => format!("{place} › resident memory"),
            _ => place,
        }
    }

    /// Right part of the title: state and time.
    fn state(&self) -> String {
        let latest = self.shown_snapshot().profiles.iter().map(|profile| profile.taken_at).max();
        let time =
            latest.map(|at| at.to_zoned(self.about.time_zone.clone()).strftime("%H:%M:%S").to_string());
        let time = time.unwrap_or_default();
        if self.frozen.is_some() {
            format!("FROZEN at {time}")
        } else if self.has_ended {
            format!("ENDED at {time}")
        } else {
            time
        }
    }

    pub(super) fn draw_sums(&self, area: Rect, buffer: &mut Buffer) {
        let snapshot = self.shown_snapshot();
        let scope = self.screen().scope();
        let mut rows = snapshot.processes.iter().filter(|row| scope.has(snapshot.profile(row)));
        let Some(first) = rows.next() else { return };
        let rows: Vec<&Row> = std::iter::once(first).chain(rows).collect();
        let profiles = || rows.iter().map(|row| snapshot.profile(row));
        buffer.set_line(area.x, area.y, &fitting(self.live(&rows, area.width), area.width), area.width);
        if area.height > 1 {
            let sites = snapshot.sites.iter().filter(|row| scope.has(snapshot.profile(row)));
            let mut pieces = self.assessments(&assessments(sites));
            pieces.push((self.about.view.clone(), Theme::quiet()));
            pieces.push((early(profiles()), Theme::quiet()));
            buffer.set_line(area.x, area.y + 1, &fitting(pieces, area.width), area.width);
        }
    }

    /// Live totals and their change.
    fn live(&self, rows: &[&Row], cells: u16) -> Vec<Piece> {
        let snapshot = self.shown_snapshot();
        let live: Totals = rows.iter().map(|row| row.live).sum();
        let delta: i64 = rows.iter().map(|row| row.delta.bytes).sum();
        let delta_objects: i64 = rows.iter().map(|row| row.delta.objects).sum();
        let profile = snapshot.profile(rows[0]);
        let words = snapshot.words();
        let change = match self.value {
            _ if self.instants < 2 => String::new(),
            Value::Bytes => signed(delta, bytes),
            Value::Objects => match delta_objects {
                0 => "·".to_owned(),
                change => format!("{change:+} {}", words.objects),
            },
        };
        let ended = match (&profile.ended, rows) {
            (Some(ended), [_]) => format!("ended: {}", safe(ended)),
            _ => String::new(),
        };
        let objects = counted(live.objects, words.object);
        let figures = if cells < WIDE {
            format!("{} {}, {objects}", bytes(live.bytes), words.live)
        } else {
            format!("{} {} in {objects}", exact_bytes(live.bytes), words.live)
        };
        let longest = rows.iter().map(|row| snapshot.profile(row).elapsed()).max().unwrap_or_default();
        let elapsed = format!("over {}", duration(longest));
        let every = format!("every {}", duration(self.next_in));
        // The requested interval was shorter.
        let is_slowed = self.next_in > self.about.interval;
        let slowed = if is_slowed { format!("slowed to {}", duration(self.next_in)) } else { String::new() };
        vec![
            (figures, Theme::strong()),
            (ended, self.theme.alarm()),
            (slowed, Theme::strong()),
            (change, Style::new()),
            (elapsed, Theme::quiet()),
            (if self.has_ended || is_slowed { String::new() } else { every }, Theme::quiet()),
        ]
    }

    fn assessments(&self, counts: &[usize; Assessment::ALL.len()]) -> Vec<Piece> {
        let assessments = Assessment::ALL.into_iter().zip(counts).filter(|(_, count)| **count > 0);
        let piece = |(assessment, count): (Assessment, &usize)| {
            (format!("{count} {}", assessment.plural_label()), self.theme.assessment(assessment))
        };
        let mut pieces: Vec<_> = assessments.map(piece).collect();
        if pieces.is_empty() {
            pieces.push(("no call sites yet".to_owned(), Theme::quiet()));
        }
        pieces
    }
}

/// `leaky (pid 4242)`.
pub(super) fn process_name(profile: &Profile) -> String {
    format!("{} (pid {})", safe(&profile.process.comm), profile.process.pid)
}

/// Time until the first verdict.
fn early<'a>(profiles: impl Iterator<Item = &'a Profile>) -> String {
    match profiles.map(Profile::judged_in).min() {
        None | Some(Duration::ZERO) => String::new(),
        Some(left) => format!("verdicts in {}", counted(left.as_secs() + 1, "second")),
    }
}
