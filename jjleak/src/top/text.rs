//! Text in cells: fits its width, and cannot control the terminal.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::render::printable;

const ELLIPSIS: &str = "…";

/// Text without control characters, and without characters of zero width, such as joiners and marks that change the
/// direction of text.
pub(super) fn safe(text: &str) -> Cow<'_, str> {
    let invisible = |c: char| c.width() == Some(0);
    match printable(text) {
        Cow::Borrowed(text) if !text.contains(invisible) => Cow::Borrowed(text),
        text => Cow::Owned(text.replace(invisible, "\u{fffd}")),
    }
}

/// Width of a text in cells.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// Shortens a text to this many cells, keeping its beginning.
pub(super) fn cut_end(text: &str, cells: usize) -> Cow<'_, str> {
    if width(text) <= cells {
        return Cow::Borrowed(text);
    }
    match cells {
        0 => Cow::Borrowed(""),
        _ => Cow::Owned(format!("{}{ELLIPSIS}", beginning(text, cells - 1))),
    }
}

/// Shortens a text to this many cells, keeping its beginning and end, where names differ most.
pub(super) fn cut_middle(text: &str, cells: usize) -> Cow<'_, str> {
    /// In fewer cells, one piece is more readable than two.
    const TWO_PIECES: usize = 8;
    if width(text) <= cells || cells < TWO_PIECES {
        return cut_end(text, cells);
    }
    let last = (cells - 1) / 2;
    Cow::Owned(format!("{}{ELLIPSIS}{}", beginning(text, cells - 1 - last), ending(text, last)))
}

fn beginning(text: &str, cells: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > cells
    });
    &text[..end.map_or(text.len(), |(index, _)| index)]
}

fn ending(text: &str, cells: usize) -> &str {
    let mut used = 0;
    let begin = text.char_indices().rev().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > cells
    });
    &text[begin.map_or(0, |(index, c)| index + c.len_utf8())..]
}

/// Right-aligns a text in this many cells.
pub(super) fn right(text: &str, cells: usize) -> String {
    let text = cut_end(text, cells);
    format!("{}{text}", " ".repeat(cells - width(&text)))
}

/// Left-aligns a text in this many cells.
pub(super) fn left(text: &str, cells: usize) -> String {
    let text = cut_end(text, cells);
    format!("{text}{}", " ".repeat(cells - width(&text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_names_keep_their_beginning_and_their_end() {
        assert_eq!(cut_middle("std::vector<int>::push_back", 13), "std::v…h_back");
        assert_eq!(cut_middle("main", 13), "main");
        assert_eq!(cut_end("handle_request", 7), "handle…");
    }

    #[test]
    fn wide_characters_are_never_halved() {
        assert_eq!(cut_end("漢字漢字", 4), "漢…");
        assert_eq!(cut_end("漢字", 4), "漢字");
        assert_eq!(right("漢", 4), "  漢");
    }

    #[test]
    fn control_and_invisible_characters_are_replaced() {
        assert_eq!(
            safe("\u{1b}[2J\u{202e}evil\u{200b}\u{9b}1m"),
            "\u{fffd}[2J\u{fffd}evil\u{fffd}\u{fffd}1m"
        );
        assert!(matches!(safe("plain"), Cow::Borrowed("plain")));
    }

    proptest! {
        #[test]
        fn no_text_is_wider_than_its_place(text in any::<String>(), cells in 0_usize..40) {
            let text = safe(&text);
            prop_assert!(width(&cut_end(&text, cells)) <= cells);
            prop_assert!(width(&cut_middle(&text, cells)) <= cells);
            prop_assert_eq!(width(&left(&text, cells)), cells);
            prop_assert_eq!(width(&right(&text, cells)), cells);
        }
    }
}
