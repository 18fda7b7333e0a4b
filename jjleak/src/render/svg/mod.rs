//! Flame graph of live memory, drawn by inferno: search, zoom and tooltips work in any browser.
//!
//! Inferno supports one value per frame and picks random colours. Therefore [`super::tree`] merges the stacks, [`frames`] gives
//! each frame a unique name by which inferno looks up title and colour, and [`legend`] completes the picture. [`difference`]
//! draws two profiles in one.

use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, Color};
use inferno::flamegraph::{self, TextTruncateDirection};
use jiff::tz::TimeZone;

use self::frames::{Frames, Shown, without_marks};
use super::counters;
use super::label::printable;
use super::tree::FlameTree;
use super::units::{self, grouped};
use super::words::words;
use super::{Options, Value, live_or_allocated};
use crate::analyze::Change;
use crate::profile::{FrameKind, Profile, Totals};

pub(super) mod difference;
mod frames;
mod legend;
mod marks;
mod shades;

/// Colour of a kind of frame, the same in all of jjleak's views: red, green and blue.
pub(crate) const fn frame_color(kind: FrameKind) -> (u8, u8, u8) {
    let Color { r, g, b } = legend::color(kind);
    (r, g, b)
}

const WHITE: Color = Color { r: 0xff, g: 0xff, b: 0xff };

/// Writes the flame graph.
pub(super) fn write(profile: &Profile, asked: &Options, out: &mut impl Write) -> io::Result<()> {
    let value = asked.value;
    let (title, subtitle) = (title(profile, value), subtitle(profile, asked));
    let total = profile.live();
    if value.of(total) == 0 {
        return write_empty(&title, &subtitle, value, &losses(profile), out);
    }
    let tree = FlameTree::of(profile, asked.inverted);
    let words = words(profile.coverage.source);
    let shown = if profile.verdicts.is_empty() { Shown::Kinds } else { Shown::Judged };
    let picture = Picture {
        title,
        subtitle,
        frames: Frames { tree: &tree, shown, value, objects: words.objects },
        inverted: asked.inverted,
        everything: match value {
            Value::Bytes => format!("bytes, {} {}", grouped(total.objects), words.objects),
            Value::Objects => format!("{}, {} bytes", words.objects, grouped(total.bytes)),
        },
        losses: losses(profile),
    };
    draw(picture, out)
}

/// Contents of the picture.
struct Picture<'a> {
    title: String,
    subtitle: String,
    frames: Frames<'a>,
    inverted: bool,
    /// Unit of the root frame, whose title inferno writes: `all (<value> <this>, 100%)`.
    everything: String,
    losses: String,
}

fn draw(picture: Picture<'_>, out: &mut impl Write) -> io::Result<()> {
    let frames = picture.frames;
    let mut palette = frames.palette();
    let mut options = flamegraph::Options::default();
    options.title = picture.title;
    options.subtitle = Some(picture.subtitle);
    options.bgcolors = Some(BackgroundColor::Flat(WHITE));
    options.palette_map = Some(&mut palette);
    options.func_frameattrs = frames.attributes()?;
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.count_name = picture.everything;
    if picture.inverted {
        options.direction = flamegraph::Direction::Inverted;
    }
    let mut drawn = Vec::new();
    flamegraph::from_lines(&mut options, frames.lines().iter().map(String::as_str), &mut drawn)?;
    let drawn = String::from_utf8(drawn).map_err(io::Error::other)?;
    let finished = legend::finish(
        &without_marks(&drawn),
        &frames.legend(),
        frames.shown == Shown::Judged,
        &picture.losses,
    )?;
    out.write_all(finished.as_bytes())
}

fn title(profile: &Profile, value: Value) -> String {
    let figure = live_or_allocated(&profile.coverage);
    format!("jjleak: {figure} {} of {}", value.name(), printable(&profile.process.to_string()))
}

/// Colour of a kind of frame in CSS.
pub(super) fn kind_color(kind: FrameKind) -> String {
    css(legend::color(kind))
}

/// Colour of the root frame in CSS.
pub(super) fn everything_color() -> String {
    css(legend::EVERYTHING)
}

/// Colour of a change in CSS.
pub(super) fn change_color(change: Change) -> String {
    css(shades::of(change)[1])
}

/// Weakest and strongest colour of a change: red, green and blue.
pub(super) fn shades(change: Change) -> [(u8, u8, u8); 2] {
    shades::of(change).map(|Color { r, g, b }| (r, g, b))
}

/// Name of a kind of frame in legends.
pub(super) const fn kind_name(kind: FrameKind) -> &'static str {
    legend::name(kind)
}

fn css(Color { r, g, b }: Color) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Time span and totals: `2026-01-15 10:00:00 to 10:04:12 CET (4 min 12 s): 1,536 bytes (1.5 KiB) live in 3 objects`.
fn subtitle(profile: &Profile, asked: &Options) -> String {
    let Totals { bytes, objects } = profile.live();
    let humane = units::humane_bytes(bytes).map(|humane| format!(" ({humane})")).unwrap_or_default();
    let view = if asked.view.is_empty() { String::new() } else { format!(" ({})", printable(&asked.view)) };
    let (span, bytes, objects) = (span(profile, &asked.time_zone), grouped(bytes), grouped(objects));
    let figure = live_or_allocated(&profile.coverage);
    format!(
        "{span}: {bytes} bytes{humane} {figure} in {objects} {}{view}",
        words(profile.coverage.source).objects
    )
}

/// `2026-01-15 10:00:00 to 10:04:12 CET (4 min 12 s)`.
pub(super) fn span(profile: &Profile, time_zone: &TimeZone) -> String {
    let start = profile.started_at.to_zoned(time_zone.clone());
    let end = profile.taken_at.to_zoned(time_zone.clone());
    // Profiles of other tools may lack a duration.
    if profile.elapsed().is_zero() {
        return end.strftime("%Y-%m-%d %H:%M:%S %Z").to_string();
    }
    let end_format = if start.date() == end.date() { "%H:%M:%S %Z" } else { "%Y-%m-%d %H:%M:%S %Z" };
    format!(
        "{} to {} ({})",
        start.strftime("%Y-%m-%d %H:%M:%S"),
        end.strftime(end_format),
        units::duration(profile.elapsed()),
    )
}

/// `lost: 3 stale_pending` if figures are incomplete; otherwise empty.
fn losses(profile: &Profile) -> String {
    let losses: Vec<_> =
        counters::losses(profile).map(|lost| format!("{} {}", lost.count, lost.name)).collect();
    if losses.is_empty() { String::new() } else { format!("lost: {}", printable(&losses.join(", "))) }
}

/// Writes a picture without frames, for which inferno returns an error.
fn write_empty(
    title: &str,
    subtitle: &str,
    value: Value,
    losses: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    let [title, subtitle, losses] = [title, subtitle, losses].map(escape);
    let unit = value.name();
    write!(
        out,
        r##"<?xml version="1.0" standalone="no"?>
<svg version="1.1" width="100%" height="120" xmlns="http://www.w3.org/2000/svg">
<rect width="100%" height="100%" fill="#ffffff"/>
<g font-family="monospace" font-size="12" text-anchor="middle">
<text x="50%" y="24" font-size="17">{title}</text>
<text x="50%" y="48">{subtitle}</text>
<text x="50%" y="84">Nothing to draw: there are no live {unit}.</text>
<text x="50%" y="104" font-weight="bold">{losses}</text>
</g>
</svg>
"##
    )
}

/// The text escaped for XML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;
    use proptest::prelude::*;

    fn svg(profile: &Profile, value: Value) -> String {
        let mut out = Vec::new();
        write(profile, &Options { value, ..sample::options() }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The picture without inferno's script, with one line for each frame.
    fn frames(svg: &str) -> String {
        let (head, rest) = svg.split_once("<script").unwrap();
        let (_, frames) = rest.split_once("</script>").unwrap();
        format!("{head}{frames}").replace("<g>", "\n<g>").replace("<text", "\n<text")
    }

    #[test]
    fn sample_profile() {
        insta::assert_snapshot!(frames(&svg(&sample::profile(), Value::Bytes)));
    }

    #[test]
    fn frames_are_as_wide_as_their_objects_on_request() {
        let svg = svg(&sample::profile(), Value::Objects);
        assert!(svg.contains("jjleak: live objects of leaky (pid 4242)"));
        assert!(svg.contains("<title>all (26 objects, 1,537,052 bytes, 100%)</title>"));
        assert!(svg.contains("<title>grow_list (12 objects, 1,536,000 bytes, 46.15%; "));
    }

    #[test]
    fn names_that_are_hostile_to_xml_come_out_right() {
        let svg = svg(&sample::profile(), Value::Objects);
        let name = "&lt;[u8; 8] as leaky::Copies &amp; &quot;more&quot;&gt;::copies";
        assert!(svg.contains(&format!("<title>{name} (8 objects, 64 bytes, 30.77%")));
    }

    #[test]
    fn frames_carry_the_verdict_on_most_of_their_bytes_and_a_switch_shows_it() {
        let judged = svg(&sample::judged(), Value::Bytes);
        let leaking =
            judged.split("<g class=\"verdict0\"><title>").skip(1).map(|rest| rest.split(' ').next().unwrap());
        assert_eq!(leaking.collect::<Vec<_>>(), ["void", "operator", "malloc"]);
        assert!(judged.contains("%; leaking; list.c:") || judged.contains("%; leaking)"), "{judged}");
        assert!(judged.contains(">Colour by verdict</text>") && judged.contains(">does not grow</text>"));
        assert!(!svg(&sample::profile(), Value::Bytes).contains("Colour by verdict"));
    }

    #[test]
    fn nothing_to_draw_is_a_picture_that_says_so() {
        insta::assert_snapshot!(svg(&sample::empty_profile(), Value::Bytes));
    }

    #[test]
    fn a_span_over_midnight_names_both_days() {
        let mut profile = sample::empty_profile();
        profile.started_at = "2026-01-14T23:00:00Z".parse().unwrap();
        profile.taken_at = "2026-01-15T23:00:01Z".parse().unwrap();
        assert_eq!(
            subtitle(&profile, &sample::options()),
            "2026-01-15 00:00:00 to 2026-01-16 00:00:01 +01 (1 d 0 h): 0 bytes live in 0 objects"
        );
    }

    proptest! {
        #[test]
        fn any_profile_can_be_drawn_and_no_mark_is_left(profile in sample::arbitrary_profile()) {
            for value in [Value::Bytes, Value::Objects] {
                let svg = svg(&profile, value);
                prop_assert!(svg.trim_end().ends_with("</svg>"));
                prop_assert!(!svg.contains(frames::MARK));
            }
        }
    }
}
