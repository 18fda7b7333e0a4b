//! Trend of live bytes, in blocks of an eighth of a line.

use std::time::Duration;

use crate::profile::{Moment, Point, Profile};

const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Lines of blocks, the top one first, `cells` wide, over the whole time of the points. The highest point fills all lines.
pub(super) fn lines(points: &[Point], cells: usize, height: usize) -> Vec<String> {
    let heights = heights(points, cells, height * 8);
    let line = |row: usize| {
        let block = |height: &usize| EIGHTHS[height.saturating_sub(row * 8).min(8)];
        heights.iter().map(block).collect()
    };
    (0..height).rev().map(line).collect()
}

/// [`lines`] with a height of one.
pub(super) fn line(points: &[Point], cells: usize) -> String {
    lines(points, cells, 1).pop().unwrap_or_default()
}

/// Heights in eighths of a line; at least one eighth for values above zero.
fn heights(points: &[Point], cells: usize, full: usize) -> Vec<usize> {
    let (Some(last), Some(highest)) = (points.last(), points.iter().map(|point| point.bytes).max()) else {
        return vec![0; cells];
    };
    let end = last.at.as_nanos();
    let height = |cell: usize| {
        let at = end * (cell as u128 + 1) / cells as u128;
        let known = points.partition_point(|point| point.at.as_nanos() <= at);
        let bytes = known.checked_sub(1).map_or(0, |index| points[index].bytes);
        let eighths = u128::from(bytes) * full as u128 / u128::from(highest.max(1));
        usize::try_from(eighths).unwrap_or(full).max(usize::from(bytes > 0))
    };
    (0..cells).map(height).collect()
}

/// Trend of the live bytes of a whole process.
pub(super) fn of_all(profile: &Profile) -> Vec<Point> {
    let point = |moment: &Moment| Point {
        at: Duration::try_from(moment.at.duration_since(profile.started_at)).unwrap_or_default(),
        bytes: moment.live.bytes,
    };
    profile.history.iter().map(point).collect()
}

/// Time that the points cover.
pub(super) fn span(points: &[Point]) -> Duration {
    points.last().map_or(Duration::ZERO, |point| point.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(bytes: &[u64]) -> Vec<Point> {
        (1..).zip(bytes).map(|(second, &bytes)| Point { at: Duration::from_secs(second), bytes }).collect()
    }

    #[test]
    fn a_line_rises_with_live_bytes_from_zero() {
        assert_eq!(line(&points(&[0, 1, 50, 100]), 4), " ▁▄█");
        assert_eq!(line(&points(&[10]), 3), "  █");
        assert_eq!(line(&[], 3), "   ");
    }

    #[test]
    fn several_lines_show_more_of_it() {
        assert_eq!(lines(&points(&[25, 50, 75, 100]), 4, 2), ["  ▄█", "▄███"]);
    }
}
