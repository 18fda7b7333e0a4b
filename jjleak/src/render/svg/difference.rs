//! Flame graph of the difference between two profiles.

use std::io::{self, Write};

use super::super::label::printable;
use super::super::tree::FlameTree;
use super::super::units::{self, grouped};
use super::frames::{Frames, Shown};
use super::{Options, Picture, draw, write_empty};
use crate::analyze::Difference;
use crate::profile::Totals;

/// Writes the flame graph. The width of a frame is the larger of its live memory before and after.
pub(in crate::render) fn write(
    difference: &Difference<'_>,
    options: &Options,
    out: &mut impl Write,
) -> io::Result<()> {
    let (before, after) = difference.live();
    let title = format!(
        "jjleak: change of live {} from {} to {}",
        options.value.name(),
        printable(&difference.before.process.to_string()),
        printable(&difference.after.process.to_string()),
    );
    let subtitle = subtitle(difference, before, after);
    let tree = FlameTree::of_difference(difference, options.inverted);
    if options.value.of(tree.width) == 0 {
        return write_empty(&title, &subtitle, options.value, "", out);
    }
    let picture = Picture {
        title,
        subtitle,
        frames: Frames { tree: &tree, shown: Shown::Changes, value: options.value, objects: "objects" },
        inverted: options.inverted,
        everything: format!("{} of the larger of both", options.value.name()),
        losses: String::new(),
    };
    draw(picture, out)
}

/// `1,000 bytes before, 3,000 bytes (2.9 KiB) after; the first as of 12.0 s instead of 10.0 s`.
fn subtitle(difference: &Difference<'_>, before: Totals, after: Totals) -> String {
    let side = |totals: Totals| {
        let humane =
            units::humane_bytes(totals.bytes).map(|humane| format!(" ({humane})")).unwrap_or_default();
        format!("{} bytes{humane} in {} objects", grouped(totals.bytes), grouped(totals.objects))
    };
    let normalized = difference.scale.map(|_| {
        let [first, second] = [difference.before, difference.after].map(|it| units::duration(it.elapsed()));
        format!("; the first as of {second} instead of {first}")
    });
    format!("live: {} before, {} after{}", side(before), side(after), normalized.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::Matching;
    use crate::render::{Value, sample};

    #[test]
    fn frames_show_what_became_of_them_and_the_legend_what_colours_mean() {
        let before = sample::profile();
        let mut after = before.clone();
        after.stacks[1].live.bytes *= 2;
        after.stacks.remove(0);
        let difference = Difference::new(&before, &after, Matching::default(), false).unwrap();
        let mut out = Vec::new();
        write(&difference, &Options { value: Value::Bytes, ..sample::options() }, &mut out).unwrap();
        let svg = String::from_utf8(out).unwrap();
        let grew = "<title>grow_list (grew: +1,536,000 bytes, +0 objects; 1,536,000 bytes in 12 objects before, 3,072,000 in 12 after)</title>";
        assert!(svg.contains(grew), "{svg}");
        assert!(svg.contains("<title>operator new(unsigned long) (gone: -640 bytes"), "{svg}");
        assert!(svg.contains(">shrank<") && svg.contains(">new<"));
    }

    #[test]
    fn two_empty_profiles_are_a_picture_that_says_so() {
        let empty = sample::empty_profile();
        let difference = Difference::new(&empty, &empty, Matching::default(), false).unwrap();
        let mut out = Vec::new();
        write(&difference, &sample::options(), &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("Nothing to draw"));
    }
}
