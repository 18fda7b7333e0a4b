//! The difference as text for a terminal.

use std::io::{self, Write};

use super::super::label::{NO_STACK, printable};
use super::super::text::write_frame;
use super::super::verdicts::pace_of;
use super::super::words::{Words, words};
use super::super::{Options, live_or_allocated, units};
use crate::analyze::{Change, Difference, StackDifference, delta};
use crate::profile::Totals;

/// Writes the changes, largest first.
pub(super) fn write(difference: &Difference<'_>, options: &Options, out: &mut impl Write) -> io::Result<()> {
    write_header(difference, options, out)?;
    let changed: Vec<_> = difference.stacks.iter().filter(|stack| stack.change() != Change::Same).collect();
    let same = difference.stacks.len() - changed.len();
    if changed.is_empty() {
        return writeln!(out, "Nothing has changed: {same} stacks hold the same in both.");
    }
    let top = changed.len().min(options.selection.top);
    writeln!(out, "Top {top} of {} stacks that changed ({same} are the same):", changed.len())?;
    for stack in &changed[..top] {
        write_stack(stack, words(difference.after.coverage.source), out)?;
    }
    write_sum(&changed, out)
}

fn write_header(difference: &Difference<'_>, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let sides = [("before", difference.before), ("after", difference.after)];
    let (before, after) = difference.live();
    // The unscaled figures come first, then the scaling.
    let of = live_or_allocated(&difference.after.coverage);
    let Words { objects, .. } = words(difference.after.coverage.source);
    let measured = if difference.scale.is_some() { difference.before.live() } else { before };
    for ((side, profile), totals) in sides.into_iter().zip([measured, after]) {
        let time = profile.taken_at.to_zoned(options.time_zone.clone()).strftime("%Y-%m-%d %H:%M:%S");
        writeln!(
            out,
            "{side}: {} at {time}{}: {} {of} in {} {objects}",
            printable(&profile.process.to_string()),
            units::over(profile.elapsed()),
            units::bytes(totals.bytes),
            totals.objects,
        )?;
    }
    if let Some(scale) = difference.scale {
        let after = units::duration(difference.after.elapsed());
        let bytes = units::bytes(before.bytes);
        writeln!(
            out,
            "normalized: all figures before are times {scale:.3} from here on, as if after {after}: {bytes} {of} in {} {objects}",
            before.objects
        )?;
    }
    if !options.view.is_empty() {
        writeln!(out, "shown: {}", printable(&options.view))?;
    }
    writeln!(out, "change: {}{}", change(before, after), pace_between(difference, before, after))
}

/// `; +1.5 MiB/min over 4 min 12 s`, or nothing if the time between the profiles is not known.
pub(in crate::render) fn pace_between(difference: &Difference<'_>, before: Totals, after: Totals) -> String {
    let pace = difference.per_second(before, after).zip(difference.between());
    pace.map(|(pace, between)| format!("; {} over {}", pace_of(pace), units::duration(between)))
        .unwrap_or_default()
}

/// `+4096 bytes (+4.0 KiB), +12 objects`.
pub(in crate::render) fn change(before: Totals, after: Totals) -> String {
    let bytes = delta(before.bytes, after.bytes);
    let sign = if bytes < 0 { '-' } else { '+' };
    let humane = units::humane_bytes(bytes.unsigned_abs());
    let humane = humane.map(|humane| format!(" ({sign}{humane})")).unwrap_or_default();
    format!("{bytes:+} bytes{humane}, {:+} objects", delta(before.objects, after.objects))
}

fn write_stack(stack: &StackDifference, words: &Words, out: &mut impl Write) -> io::Result<()> {
    let StackDifference { frames, before, after } = stack;
    writeln!(
        out,
        "\t{} ({}): {} bytes in {} {} before, {} in {} after",
        change(*before, *after),
        stack.change().name(),
        before.bytes,
        before.objects,
        words.parts,
        after.bytes,
        after.objects,
    )?;
    if frames.is_empty() {
        writeln!(out, "\t\t{NO_STACK}")?;
    }
    frames.iter().try_for_each(|frame| write_frame(frame, out))
}

/// Writes a summary line for each kind of change.
fn write_sum(changed: &[&StackDifference], out: &mut impl Write) -> io::Result<()> {
    for kind in Change::ALL {
        let of_kind = || changed.iter().filter(|stack| stack.change() == kind);
        if of_kind().count() > 0 {
            let (before, after) = (of_kind().map(|it| it.before).sum(), of_kind().map(|it| it.after).sum());
            let stacks = match of_kind().count() {
                1 => "1 stack".to_owned(),
                several => format!("{several} stacks"),
            };
            writeln!(out, "{}: {stacks}, {}", kind.name(), change(before, after))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::Matching;
    use crate::profile::Profile;
    use crate::render::sample;
    use std::time::Duration;

    fn text(before: &Profile, after: &Profile, normalize: bool) -> String {
        let difference = Difference::new(before, after, Matching::default(), normalize).unwrap();
        let mut out = Vec::new();
        write(&difference, &sample::options(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_changed_most_comes_first_and_kinds_of_change_are_summed_up() {
        let before = sample::profile();
        let mut after = before.clone();
        after.stacks[1].live.bytes *= 2;
        after.stacks.remove(0);
        insta::assert_snapshot!(text(&before, &after, false));
    }

    #[test]
    fn normalized_figures_are_said_to_be() {
        let before = sample::profile();
        let mut after = before.clone();
        after.taken_at += Duration::from_millis(252_500);
        let text = text(&before, &after, true);
        let normalized =
            "normalized: all figures before are times 2.000 from here on, as if after 8 min 25 s: ";
        assert!(text.contains(normalized), "{text}");
        assert!(text.contains("change: -1537052 bytes"), "{text}");
    }

    #[test]
    fn no_change_is_said_plainly() {
        let profile = sample::profile();
        assert!(
            text(&profile, &profile, false)
                .ends_with("Nothing has changed: 5 stacks hold the same in both.\n")
        );
    }
}
