//! The help screen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::Top;
use super::super::keys::HELP;
use super::super::text::{cut_end, left};
use super::super::theme::Theme;

/// Width of the key column, where there is room.
const KEYS: usize = 22;
const NARROW_KEYS: usize = 12;
const WIDE: u16 = 60;

impl Top {
    pub(super) fn draw_help(&self, area: Rect, buffer: &mut Buffer) {
        let keys = if area.width >= WIDE { KEYS } else { NARROW_KEYS };
        let cells = usize::from(area.width);
        let mut lines = vec![Line::default()];
        lines.extend(HELP.iter().map(|help| {
            let does = cut_end(help.does, cells.saturating_sub(keys + 3)).into_owned();
            Line::from(vec![
                Span::raw(" "),
                Span::styled(left(help.keys, keys), self.theme.key()),
                Span::raw(format!("  {does}")),
            ])
        }));
        lines.push(Line::default());
        lines.push(Line::styled(" Press any key to return.", Theme::quiet()));
        for (y, line) in (area.top()..area.bottom()).zip(&lines) {
            buffer.set_line(area.x, y, line, area.width);
        }
    }
}
