//! Colours and styles.

use ratatui::style::{Color, Modifier, Style};

use super::assessment::Assessment;
use crate::profile::FrameKind;
use crate::render::frame_color;

/// Colours that the terminal supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colors {
    /// No colours: emphasis is bold, reversed or underlined, and always in words as well.
    None,
    /// The 16 colours of every terminal.
    Sixteen,
    /// True colour: frames have the colours of flame graphs.
    True,
}

/// Styles of the elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    pub(super) colors: Colors,
}

impl Theme {
    fn colored(self, color: Color) -> Style {
        if self.colors == Colors::None { Style::new() } else { Style::new().fg(color) }
    }

    pub(super) fn assessment(self, assessment: Assessment) -> Style {
        match assessment {
            Assessment::Leaking => self.alarm(),
            Assessment::Growing => self.colored(Color::Yellow),
            Assessment::CacheLike => self.colored(Color::Cyan),
            Assessment::TooEarly | Assessment::Unjudged => Style::new(),
            Assessment::StartUp | Assessment::SteadyChurn => Self::quiet(),
        }
    }

    /// For alarms.
    pub(super) fn alarm(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn good(self) -> Style {
        self.colored(Color::Green)
    }

    /// For minor details.
    pub(super) fn quiet() -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn strong() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// For key names.
    pub(super) fn key(self) -> Style {
        self.colored(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// For the title line.
    pub(super) fn title() -> Style {
        Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD)
    }

    /// For the selected row.
    pub(super) fn selected() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// For column headings.
    pub(super) fn head() -> Style {
        Style::new().add_modifier(Modifier::UNDERLINED)
    }

    pub(super) fn trend(self) -> Style {
        self.colored(Color::Cyan)
    }

    /// A frame of this kind as a box in the tree.
    pub(super) fn frame(self, kind: FrameKind, depth: usize) -> Style {
        match self.colors {
            Colors::None => Style::new().add_modifier(Modifier::UNDERLINED),
            Colors::Sixteen => Style::new().fg(Color::Black).bg(sixteen(kind, depth)),
            Colors::True => {
                let (r, g, b) = frame_color(kind);
                // Alternate two shades, so that adjacent boxes of one kind differ.
                let lighter = |c: u8| if depth.is_multiple_of(2) { c } else { c.saturating_add(40) };
                Style::new().fg(Color::Black).bg(Color::Rgb(lighter(r), lighter(g), lighter(b)))
            }
        }
    }

    /// A frame of this kind as text.
    pub(super) fn frame_text(self, kind: FrameKind) -> Style {
        match (self.colors, kind) {
            (Colors::None, _) | (_, FrameKind::Native) => Style::new(),
            (Colors::Sixteen | Colors::True, kind) => Style::new().fg(sixteen(kind, 0)),
        }
    }
}

/// Nearest of the 16 colours, in two shades where there are two.
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
        (FrameKind::Memory | FrameKind::Class, true) => Color::Blue,
        (FrameKind::Memory | FrameKind::Class, false) => Color::LightBlue,
        (FrameKind::Kernel | FrameKind::Unknown | FrameKind::Signal | FrameKind::Thread, true) => Color::Gray,
        (FrameKind::Kernel | FrameKind::Unknown | FrameKind::Signal | FrameKind::Thread, false) => {
            Color::White
        }
    }
}
