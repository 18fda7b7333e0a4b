//! Colours, and the legend below the frames.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::io;

use inferno::flamegraph::color::Color;

use super::super::marks::MARKS;
use super::{escape, marks};
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

/// Adds the legend to inferno's picture: colours, with a switch to those of verdicts, and losses.
pub(super) fn finish(svg: &str, colors: &[(Color, &str)], judged: bool, losses: &str) -> io::Result<String> {
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
    let strip = if judged { judged_strip(old, colors, losses) } else { strip(old, colors, losses) };
    let strip = strip.map_err(io::Error::other)?;
    Ok(format!("{picture}{STYLE}{strip}</svg>\n"))
}

fn strip(top: u32, colors: &[(Color, &str)], losses: &str) -> Result<String, fmt::Error> {
    let mut strip = String::from("<g id=\"legend\">");
    let colors = colors.iter().map(|(Color { r, g, b }, name)| (format!("#{r:02x}{g:02x}{b:02x}"), *name));
    let left = boxes(&mut strip, top, LEFT, colors)?;
    loss(&mut strip, top, left, losses)?;
    strip.push_str("</g>");
    Ok(strip)
}

/// A legend of kinds, and one of verdicts, which the switch before them exchanges.
fn judged_strip(top: u32, colors: &[(Color, &str)], losses: &str) -> Result<String, fmt::Error> {
    let mut strip = String::new();
    let begin = LEFT + width(marks::SWITCH) + BOX;
    write!(
        strip,
        r#"<g id="legend"><text id="switch" x="{LEFT}" y="{}">{}</text>"#,
        baseline(top),
        marks::SWITCH
    )?;
    strip.push_str("<g id=\"kinds\">");
    let colors = colors.iter().map(|(Color { r, g, b }, name)| (format!("#{r:02x}{g:02x}{b:02x}"), *name));
    let of_kinds = boxes(&mut strip, top, begin, colors)?;
    strip.push_str("</g><g id=\"marks\">");
    let of_marks = boxes(&mut strip, top, begin, MARKS.map(|(name, color)| (color.to_owned(), name)))?;
    strip.push_str("</g>");
    loss(&mut strip, top, of_kinds.max(of_marks), losses)?;
    strip.push_str("</g>");
    marks::write(&mut strip)?;
    Ok(strip)
}

/// Draws boxes with names from a left edge on, and returns the edge behind the last.
fn boxes<'a>(
    strip: &mut String,
    top: u32,
    mut left: u32,
    colors: impl IntoIterator<Item = (String, &'a str)>,
) -> Result<u32, fmt::Error> {
    for (color, name) in colors {
        let (text_left, baseline) = (left + BOX + 4, baseline(top));
        write!(strip, r#"<rect x="{left}" y="{top}" width="{BOX}" height="{BOX}" fill="{color}"/>"#)?;
        write!(strip, r#"<text x="{text_left}" y="{baseline}">{name}</text>"#)?;
        left = text_left + width(name) + BOX;
    }
    Ok(left)
}

fn loss(strip: &mut String, top: u32, left: u32, losses: &str) -> fmt::Result {
    write!(strip, r#"<text x="{left}" y="{}" font-weight="bold">{}</text>"#, baseline(top), escape(losses))
}

const fn baseline(top: u32) -> u32 {
    top + BOX - 2
}

fn width(text: &str) -> u32 {
    text.chars().fold(0, |width, _| width + CHARACTER)
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
        assert!(finish("<svg/>", &[], false, "").is_err());
    }
}
