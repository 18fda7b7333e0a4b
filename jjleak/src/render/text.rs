//! The report for a terminal.
//!
//! The lines of bcc's memleak are kept word for word, so that scripts and eyes trained on it still work:
//! `[HH:MM:SS] Top N stacks with outstanding allocations:` and `<bytes> bytes in <n> allocations from stack`.

use std::io::{self, Write};

use jiff::tz::TimeZone;
use jjleak_common::stack::StackStatus;

use super::counters::{Counted, losses, notes};
use super::label::{NO_STACK, label, module, printable};
use super::units;
use crate::analyze::Selection;
use crate::profile::{Frame, Profile, StackProfile, Totals};

/// Writes the report.
pub(super) fn write(
    profile: &Profile,
    selection: Selection,
    time_zone: &TimeZone,
    out: &mut impl Write,
) -> io::Result<()> {
    write_header(profile, out)?;
    write_stacks(profile, selection, time_zone, out)?;
    write_walks(profile, out)?;
    write_counters(profile, out)
}

fn write_header(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let (live, allocated) = (profile.live(), profile.allocated());
    writeln!(
        out,
        "{} (pid {}) over {}: {} live in {} objects; {} allocated in {} objects",
        printable(&profile.process.comm),
        profile.process.pid,
        units::duration(profile.elapsed()),
        units::bytes(live.bytes),
        live.objects,
        units::bytes(allocated.bytes),
        allocated.objects,
    )?;
    match &profile.ended {
        Some(ended) => writeln!(out, "the process has ended: {}", printable(ended)),
        None => Ok(()),
    }
}

fn write_stacks(
    profile: &Profile,
    selection: Selection,
    time_zone: &TimeZone,
    out: &mut impl Write,
) -> io::Result<()> {
    let ranking = selection.rank(profile);
    let time = profile.taken_at.to_zoned(time_zone.clone()).strftime("%H:%M:%S");
    if ranking.top.is_empty() && ranking.rest.is_empty() {
        return match profile.allocated().objects {
            0 => writeln!(out, "[{time}] Nothing outstanding: no allocation was seen."),
            seen => {
                writeln!(out, "[{time}] Nothing outstanding: all {seen} allocations seen have been freed.")
            }
        };
    }
    writeln!(out, "[{time}] Top {} stacks with outstanding allocations:", ranking.top.len())?;
    let live = profile.live();
    for stack in &ranking.top {
        write_stack(stack, live, out)?;
    }
    if !ranking.rest.is_empty() {
        let rest: Totals = ranking.rest.iter().map(|stack| stack.live).sum();
        let (stacks, bytes) = (ranking.rest.len(), units::bytes(rest.bytes));
        writeln!(out, "and {stacks} more stacks: {bytes} in {} allocations", rest.objects)?;
    }
    Ok(())
}

fn write_stack(stack: &StackProfile, live: Totals, out: &mut impl Write) -> io::Result<()> {
    let Totals { bytes, objects } = stack.live;
    write!(out, "\t{bytes} bytes in {objects} allocations from stack (")?;
    if let Some(humane) = units::humane_bytes(bytes) {
        write!(out, "{humane}, ")?;
    }
    write!(out, "{} of live", share(bytes, live.bytes))?;
    if let Some(ages) = stack.ages {
        let (oldest, newest) = (units::duration(ages.oldest), units::duration(ages.newest));
        if oldest == newest {
            write!(out, ", {oldest} old")?;
        } else {
            write!(out, ", {newest} to {oldest} old")?;
        }
    }
    writeln!(out, ")")?;
    if stack.frames.is_empty() {
        writeln!(out, "\t\t{NO_STACK}")?;
    }
    stack.frames.iter().try_for_each(|frame| write_frame(frame, out))
}

fn write_frame(frame: &Frame, out: &mut impl Write) -> io::Result<()> {
    write!(out, "\t\t{}", label(frame))?;
    // The label of unknown code already names the module.
    if !frame.symbol.is_empty()
        && let Some(module) = module(frame)
    {
        write!(out, " [{module}]")?;
    }
    match (printable(&frame.file), frame.line) {
        (file, _) if file.is_empty() => {}
        (file, 0) => write!(out, " {file}")?,
        (file, line) => write!(out, " {file}:{line}")?,
    }
    writeln!(out, "{}", if frame.inlined { " (inlined)" } else { "" })
}

/// Says how the walks of the outstanding stacks ended, unless all are complete.
fn write_walks(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let outstanding: Vec<_> = profile.stacks.iter().filter(|stack| stack.live.objects > 0).collect();
    let live = profile.live();
    for status in StackStatus::ALL.iter().filter(|status| **status != StackStatus::Complete) {
        let ended_so = || outstanding.iter().filter(|stack| stack.status == *status);
        let stacks = ended_so().count();
        if stacks > 0 {
            let bytes = ended_so().map(|stack| stack.live.bytes).sum();
            writeln!(
                out,
                "stacks: {stacks} of {} with status {} ({} of live bytes): {}",
                outstanding.len(),
                status.name(),
                share(bytes, live.bytes),
                status.meaning(),
            )?;
        }
    }
    Ok(())
}

/// Names every counter that is not zero and what it means, those first for which the figures miss something.
fn write_counters(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    for Counted { count, name, meaning } in losses(profile) {
        writeln!(out, "lost: {count} {}: {meaning}", printable(name))?;
    }
    for Counted { count, name, meaning } in notes(profile) {
        writeln!(out, "note: {count} {name}: {meaning}")?;
    }
    Ok(())
}

/// `81.0 %`; a part is never shown as nothing.
fn share(part: u64, whole: u64) -> String {
    match units::percent(part, whole) {
        percent if part > 0 && percent < 0.05 => "< 0.1 %".to_owned(),
        percent => format!("{percent:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::SortBy;
    use crate::render::sample;

    fn text(profile: &Profile, top: usize) -> String {
        let mut out = Vec::new();
        write(profile, Selection { sort: SortBy::Size, top }, &sample::time_zone(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sample_profile() {
        insta::assert_snapshot!(text(&sample::profile(), 10));
    }

    #[test]
    fn stacks_below_the_top_are_summed_up() {
        insta::assert_snapshot!(text(&sample::profile(), 1));
    }

    #[test]
    fn nothing_outstanding_is_said_plainly() {
        let mut profile = sample::empty_profile();
        assert_eq!(
            text(&profile, 10),
            "leaky (pid 4242) over 4 min 12 s: 0 bytes live in 0 objects; 0 bytes allocated in 0 objects\n\
             [10:04:12] Nothing outstanding: no allocation was seen.\n"
        );
        let allocated = Totals { bytes: 2048, objects: 2 };
        profile.stacks.push(StackProfile { allocated, ..sample::empty_stack() });
        assert!(
            text(&profile, 10).ends_with("Nothing outstanding: all 2 allocations seen have been freed.\n")
        );
    }

    #[test]
    fn what_bcc_readers_match_is_there_word_for_word() {
        let text = text(&sample::profile(), 2);
        assert!(text.contains("[10:04:12] Top 2 stacks with outstanding allocations:\n"));
        assert!(text.contains("\t1536000 bytes in 12 allocations from stack"));
    }
}
