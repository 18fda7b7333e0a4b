//! Colours, and the legend below the frames.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;

use inferno::flamegraph::color::Color;

use super::escape;
use crate::profile::FrameKind;

/// Colour of the root frame, which has no kind.
pub(super) const EVERYTHING: Color = rgb(0xe8_eaee);

/// Height of the legend in pixels: a line of text and a margin.
const STRIP_HEIGHT: u32 = 26;

/// Side of a colour's box in pixels, about the height of a frame.
const BOX: u32 = 12;

/// Advance of a character in pixels: 12 px monospace type, rounded up.
const CHARACTER: u32 = 8;

/// Left edge of the legend in pixels, that of inferno's frames.
const LEFT: u32 = 10;

/// Colour of a kind of frame, the same in all of jjleak's views.
pub(super) const fn color(kind: FrameKind) -> Color {
    rgb(match kind {
        FrameKind::Native => 0xf0_3c15,
        FrameKind::Java => 0x5b_c236,
        FrameKind::JavaInlined => 0x00_a5ff,
        FrameKind::Jvm => 0xff_eb2a,
        FrameKind::JvmGenerated => 0xc9_7a43,
        FrameKind::Kernel => 0x90_9090,
        FrameKind::Unknown => 0xd3_d3d3,
        FrameKind::Signal => 0xe0_8fb0,
        FrameKind::Memory => 0x7f_c8c2,
        FrameKind::Class => 0x5f_a8d3,
        FrameKind::Thread => 0xb3_a6dc,
    })
}

const fn rgb(color: u32) -> Color {
    let [_, r, g, b] = color.to_be_bytes();
    Color { r, g, b }
}

pub(super) const fn name(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::Native => "native",
        FrameKind::Java => "Java",
        FrameKind::JavaInlined => "Java, inlined",
        FrameKind::Jvm => "JVM",
        FrameKind::JvmGenerated => "JVM, generated",
        FrameKind::Kernel => "kernel",
        FrameKind::Unknown => "unknown",
        FrameKind::Signal => "signal",
        FrameKind::Memory => "memory",
        FrameKind::Class => "Java class",
        FrameKind::Thread => "thread",
    }
}

/// Frames of one kind have one colour, so a thin light border separates neighbours. Inferno's search button is too faint.
const STYLE: &str = r"<style>
#search { opacity:0.6; }
#frames rect { stroke:#fff; stroke-width:0.5px; }
#frames > *:hover { stroke:none; }
#frames > *:hover rect { stroke:#000; stroke-width:1px; }
</style>";

/// Kinds of frame that occur, always with native.
pub(super) fn of_kinds(kinds: &BTreeSet<FrameKind>) -> Vec<(Color, &'static str)> {
    let occurs = |kind: &FrameKind| *kind == FrameKind::Native || kinds.contains(kind);
    FrameKind::ALL.into_iter().filter(occurs).map(|kind| (color(kind), name(kind))).collect()
}

/// Adds the legend to inferno's picture: colours and losses.
pub(super) fn finish(svg: &str, colors: &[(Color, &str)], losses: &str) -> io::Result<String> {
    let unexpected = || io::Error::other("inferno's picture does not look as expected");
    let (_, height) = svg.split_once("height=\"").ok_or_else(unexpected)?;
    let (height, _) = height.split_once('"').ok_or_else(unexpected)?;
    let old: u32 = height.parse().map_err(io::Error::other)?;
    let new = old + STRIP_HEIGHT;
    // The height is in the root element, in its view box and in the background.
    let svg = svg.replacen(&format!("height=\"{old}\""), &format!("height=\"{new}\""), 2).replacen(
        &format!(" {old}\" xmlns"),
        &format!(" {new}\" xmlns"),
        1,
    );
    let (picture, _) = svg.rsplit_once("</svg>").ok_or_else(unexpected)?;
    let strip = strip(old, colors, losses).map_err(io::Error::other)?;
    Ok(format!("{picture}{STYLE}{strip}</svg>\n"))
}

fn strip(top: u32, colors: &[(Color, &str)], losses: &str) -> Result<String, std::fmt::Error> {
    let mut strip = String::from("<g id=\"legend\">");
    let (box_top, baseline) = (top, top + BOX - 2);
    let mut left = LEFT;
    for (Color { r, g, b }, name) in colors {
        let text_left = left + BOX + 4;
        write!(
            strip,
            r##"<rect x="{left}" y="{box_top}" width="{BOX}" height="{BOX}" fill="#{r:02x}{g:02x}{b:02x}"/>"##
        )?;
        write!(strip, r#"<text x="{text_left}" y="{baseline}">{name}</text>"#)?;
        left = text_left + name.chars().fold(0, |width, _| width + CHARACTER) + BOX;
    }
    write!(strip, r#"<text x="{left}" y="{baseline}" font-weight="bold">{}</text>"#, escape(losses))?;
    strip.push_str("</g>");
    Ok(strip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legend_names_the_kinds_that_occur_and_native_always() {
        let strip =
            |kinds: &[FrameKind]| strip(100, &of_kinds(&kinds.iter().copied().collect()), "").unwrap();
        assert!(strip(&[]).contains(">native<"));
        assert!(!strip(&[]).contains(">Java<"));
        let java = strip(&[FrameKind::Java, FrameKind::Unknown]);
        assert!(java.contains("#5bc236\"/><text") && java.contains(">Java<") && java.contains(">unknown<"));
    }

    #[test]
    fn a_picture_of_unknown_make_is_an_error() {
        assert!(finish("<svg/>", &[], "").is_err());
    }
}
