//! The tree of call paths.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::Top;
use super::super::figures::{counted, exact_bytes};
use super::super::screen::Screen;
use super::super::text::{cut_end, cut_middle, left, safe, width};
use super::super::theme::Theme;
use super::super::tree::{Icicle, Path, Place, Tile};
use super::explain;
use crate::render::percent;

impl Top {
    pub(super) fn draw_icicle(&mut self, area: Rect, buffer: &mut Buffer) {
        let rows = usize::from(area.height.saturating_sub(1)).max(1);
        self.lay_out(area.width, rows);
        let Screen::Tree { selected, zoom, .. } = self.screen() else { return };
        if self.icicle.is_empty() {
            let why = "Press Esc to go back.";
            explain(buffer, area, "No live blocks here.", why);
            return;
        }
        let at = self.icicle.find(selected).or_else(|| self.icicle.find(zoom));
        if let Some(tile) = at {
            self.draw_tile_figures(tile, area, buffer);
        }
        let body = Rect { y: area.y + 1, height: area.height - 1, ..area };
        let mut beside = 0;
        for tile in &self.icicle.tiles {
            // Neighbours get different shades.
            beside = if tile.left == 0 { 0 } else { beside + 1 };
            let mut style = self.theme.frame(tile.kind, tile.depth + beside);
            if at.is_some_and(|at| at.path == tile.path) {
                style = Style::reset().patch(Theme::selected()).patch(Theme::strong());
            }
            draw_tile(tile, style, body, buffer);
        }
    }

    /// Lays the tree out, and scrolls it if the selected tile is below the last row.
    fn lay_out(&mut self, cells: u16, rows: usize) {
        let last = self.screens.len() - 1;
        let Screen::Tree { of, zoom, selected } = &self.screens[last] else { return };
        let (of, mut zoom, selected): (_, Path, Path) = (*of, zoom.clone(), selected.clone());
        // The selected tile may be one row below the last.
        if selected.len() >= zoom.len() + rows {
            zoom = selected[..selected.len() - 1].to_vec();
        }
        let stacks = self.stacks_of(of);
        let place = Place { width: cells, rows: rows + 1, value: self.value };
        let mut icicle = Icicle::of(stacks.iter().map(|(_, stack)| *stack), &zoom, place);
        if icicle.is_empty() && !zoom.is_empty() {
            zoom.clear();
            icicle = Icicle::of(stacks.iter().map(|(_, stack)| *stack), &zoom, place);
        }
        self.icicle = icicle;
        if let Screen::Tree { zoom: kept, .. } = &mut self.screens[last] {
            *kept = zoom;
        }
    }

    fn draw_tile_figures(&self, tile: &Tile, area: Rect, buffer: &mut Buffer) {
        let share = percent(self.value.of(tile.live), self.value.of(self.icicle.live));
        let objects = counted(tile.live.objects, self.shown_snapshot().words().object);
        let figures = format!("  {share:.1} %: {} in {objects}", exact_bytes(tile.live.bytes));
        let cells = usize::from(area.width);
        let name = cut_middle(&tile.label, cells.saturating_sub(width(&figures)).max(cells / 3)).into_owned();
        let (x, _) = buffer.set_stringn(area.x, area.y, &name, cells, Theme::strong());
        let left = cells.saturating_sub(width(&name));
        buffer.set_stringn(x, area.y, cut_end(&figures, left), left, Style::new());
    }
}

impl Icicle {
    fn is_empty(&self) -> bool {
        self.tiles.is_empty()
    }
}

fn draw_tile(tile: &Tile, style: Style, area: Rect, buffer: &mut Buffer) {
    let y = area.y.saturating_add(u16::try_from(tile.depth).unwrap_or(u16::MAX));
    if y >= area.bottom() || tile.width == 0 {
        return;
    }
    let text = left(&safe(&tile.label), usize::from(tile.width) - 1);
    buffer.set_stringn(area.x + tile.left, y, format!("▏{text}"), tile.width.into(), style);
}
