//! A flame graph of what lives, drawn by inferno: search, zoom and tooltips work in any browser.
//!
//! inferno knows one value for a frame and picks colours at random. [`tree`] therefore merges the stacks itself and
//! hands inferno a name for each frame that is its alone, under which title and colour are looked up; [`legend`]
//! finishes the picture.

use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, Color};
use inferno::flamegraph::{self, TextTruncateDirection};
use jiff::tz::TimeZone;

use super::Value;
use super::counters;
use super::label::printable;
use super::units::{self, grouped};
use crate::profile::{FrameKind, Profile, Totals};

mod legend;
mod tree;

/// The colour of a kind of frame, the same wherever jjleak draws frames: red, green and blue.
pub(crate) const fn frame_color(kind: FrameKind) -> (u8, u8, u8) {
    let Color { r, g, b } = legend::color(kind);
    (r, g, b)
}

const WHITE: Color = Color { r: 0xff, g: 0xff, b: 0xff };

/// Writes the flame graph.
pub(super) fn write(
    profile: &Profile,
    value: Value,
    time_zone: &TimeZone,
    out: &mut impl Write,
) -> io::Result<()> {
    let (title, subtitle) = (title(profile, value), subtitle(profile, time_zone));
    let total = profile.live();
    if value.of(total) == 0 {
        return write_empty(&title, &subtitle, value, &losses(profile), out);
    }
    let tree = tree::FlameTree::new(profile);
    let mut palette = tree.palette();
    let mut options = flamegraph::Options::default();
    options.title = title;
    options.subtitle = Some(subtitle);
    options.bgcolors = Some(BackgroundColor::Flat(WHITE));
    options.palette_map = Some(&mut palette);
    options.func_frameattrs = tree.attributes(value)?;
    options.text_truncate_direction = TextTruncateDirection::Right;
    // The frame of everything gets its title from inferno: all (<value> <count name>, 100%).
    options.count_name = match value {
        Value::Bytes => format!("bytes, {} objects", grouped(total.objects)),
        Value::Objects => format!("objects, {} bytes", grouped(total.bytes)),
    };
    let mut drawn = Vec::new();
    flamegraph::from_lines(&mut options, tree.lines(value).iter().map(String::as_str), &mut drawn)?;
    let drawn = String::from_utf8(drawn).map_err(io::Error::other)?;
    let finished = legend::finish(&tree::without_marks(&drawn), &tree.kinds(), &losses(profile))?;
    out.write_all(finished.as_bytes())
}

fn title(profile: &Profile, value: Value) -> String {
    let process = &profile.process;
    format!("jjleak: live {} of {} (pid {})", value.name(), printable(&process.comm), process.pid)
}

/// Time span and totals: `2026-01-15 10:00:00 to 10:04:12 CET (4 min 12 s): 1,536 bytes (1.5 KiB) live in 3 objects`.
fn subtitle(profile: &Profile, time_zone: &TimeZone) -> String {
    let start = profile.started_at.to_zoned(time_zone.clone());
    let end = profile.taken_at.to_zoned(time_zone.clone());
    let end_format = if start.date() == end.date() { "%H:%M:%S %Z" } else { "%Y-%m-%d %H:%M:%S %Z" };
    let Totals { bytes, objects } = profile.live();
    let humane = units::humane_bytes(bytes).map(|humane| format!(" ({humane})")).unwrap_or_default();
    format!(
        "{} to {} ({}): {} bytes{humane} live in {} objects",
        start.strftime("%Y-%m-%d %H:%M:%S"),
        end.strftime(end_format),
        units::duration(profile.elapsed()),
        grouped(bytes),
        grouped(objects),
    )
}

/// `lost: 3 stale_pending`, if the figures miss something; empty otherwise.
fn losses(profile: &Profile) -> String {
    let losses: Vec<_> =
        counters::losses(profile).map(|lost| format!("{} {}", lost.count, lost.name)).collect();
    if losses.is_empty() { String::new() } else { format!("lost: {}", printable(&losses.join(", "))) }
}

/// The picture when there is nothing to draw, for which inferno has only an error.
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

/// The text as XML spells it.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;
    use proptest::prelude::*;

    fn svg(profile: &Profile, value: Value) -> String {
        let mut out = Vec::new();
        write(profile, value, &sample::time_zone(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The picture without inferno's script and with a line for each frame.
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
        assert!(svg.contains("<title>grow_list (12 objects, 1,536,000 bytes, 46.15%)</title>"));
    }

    #[test]
    fn names_that_are_hostile_to_xml_come_out_right() {
        let svg = svg(&sample::profile(), Value::Objects);
        let name = "&lt;[u8; 8] as leaky::Copies &amp; &quot;more&quot;&gt;::copies";
        assert!(svg.contains(&format!("<title>{name} (8 objects, 64 bytes, 30.77%)</title>")));
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
            subtitle(&profile, &sample::time_zone()),
            "2026-01-15 00:00:00 to 2026-01-16 00:00:01 +01 (1 d 0 h): 0 bytes live in 0 objects"
        );
    }

    proptest! {
        #[test]
        fn any_profile_can_be_drawn_and_no_mark_is_left(profile in sample::arbitrary_profile()) {
            for value in [Value::Bytes, Value::Objects] {
                let svg = svg(&profile, value);
                prop_assert!(svg.trim_end().ends_with("</svg>"));
                prop_assert!(!svg.contains(tree::MARK));
            }
        }
    }
}
