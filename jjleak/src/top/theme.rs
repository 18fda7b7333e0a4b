//! Colours, as far as the terminal has any.

use ratatui::style::{Color, Modifier, Style};

use super::standing::Standing;
use crate::profile::FrameKind;
use crate::render::frame_color;

/// Which colours the terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colors {
    /// None are wanted: what matters is bold, reversed or underlined, and said in words in any case.
    None,
    /// The 16 that every terminal has.
    Sixteen,
    /// All: frames have the colours that they have in flame graphs.
    True,
}

/// How things look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    pub(super) colors: Colors,
}

impl Theme {
    fn colored(self, color: Color) -> Style {
        if self.colors == Colors::None { Style::new() } else { Style::new().fg(color) }
    }

    pub(super) fn standing(self, standing: Standing) -> Style {
        match standing {
            Standing::Leaking => self.alarm(),
            Standing::Growing => self.colored(Color::Yellow),
            Standing::CacheLike => self.colored(Color::Cyan),
            Standing::TooEarly | Standing::Unjudged => Style::new(),
            Standing::StartUp | Standing::SteadyChurn => Self::quiet(),
        }
    }

    /// What must not be overlooked.
    pub(super) fn alarm(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn good(self) -> Style {
        self.colored(Color::Green)
    }

    /// What is beside the point.
    pub(super) fn quiet() -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn strong() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Keys, and other things to use.
    pub(super) fn key(self) -> Style {
        self.colored(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// The line at the top.
    pub(super) fn title() -> Style {
        Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD)
    }

    /// What is chosen.
    pub(super) fn selected() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// The heads of columns.
    pub(super) fn head() -> Style {
        Style::new().add_modifier(Modifier::UNDERLINED)
    }

    pub(super) fn trend(self) -> Style {
        self.colored(Color::Cyan)
    }

    /// A frame of this kind as a box, or as text in its colour.
    pub(super) fn frame(self, kind: FrameKind, depth: usize) -> Style {
        match self.colors {
            Colors::None => Style::new().add_modifier(Modifier::UNDERLINED),
            Colors::Sixteen => Style::new().fg(Color::Black).bg(sixteen(kind, depth)),
            Colors::True => {
                let (r, g, b) = frame_color(kind);
                // Boxes of one kind lie above each other: every other one is a little lighter.
                let lighter = |c: u8| if depth.is_multiple_of(2) { c } else { c.saturating_add(40) };
                Style::new().fg(Color::Black).bg(Color::Rgb(lighter(r), lighter(g), lighter(b)))
            }
        }
    }

    /// The colour of a kind of frame, as text.
    pub(super) fn frame_text(self, kind: FrameKind) -> Style {
        match (self.colors, kind) {
            (Colors::None, _) | (_, FrameKind::Native) => Style::new(),
            (Colors::Sixteen | Colors::True, kind) => Style::new().fg(sixteen(kind, 0)),
        }
    }
}

/// The nearest of 16 colours, in two shades where there are two.
const fn sixteen(kind: FrameKind, depth: usize) -> Color {
    let dark = depth.is_multiple_of(2);
    match (kind, dark) {
        (FrameKind::Native, true) => Color::Red,
        (FrameKind::Native, false) => Color::LightRed,
        (FrameKind::Java, true) => Color::Green,
        (FrameKind::Java, false) => Color::LightGreen,
        (FrameKind::JavaInlined, true) => Color::Cyan,
        (FrameKind::JavaInlined, false) => Color::LightCyan,
        (FrameKind::Jvm, true) => Color::Yellow,
        (FrameKind::Jvm, false) => Color::LightYellow,
        (FrameKind::JvmGenerated, true) => Color::Magenta,
        (FrameKind::JvmGenerated, false) => Color::LightMagenta,
        (FrameKind::Kernel | FrameKind::Unknown | FrameKind::Thread, true) => Color::Gray,
        (FrameKind::Kernel | FrameKind::Unknown | FrameKind::Thread, false) => Color::White,
    }
}
