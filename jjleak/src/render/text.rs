//! The report for a terminal.
//!
//! It begins with verdicts and ends with advice. The list of stacks with outstanding allocations has exactly the wording of bcc's
//! memleak, for scripts and readers that know it: `[HH:MM:SS] Top N stacks with outstanding allocations:` and `<bytes> bytes in
//! <n> allocations from stack`.

use std::io::{self, Write};

use jjleak_common::stack::StackStatus;

use super::advice::advice;
use super::cost::cost_in_words;
use super::counters::{Counted, losses, notes};
use super::findings::Causes;
use super::label::{NO_STACK, label, module, printable};
use super::threads::ThreadShares;
use super::verdicts::{evidence, is_judged, is_watched, of_what_is_shown, others, site, too_early};
use super::words::words;
use super::{Options, objects, short, units};
use crate::analyze::SortBy;
use crate::profile::{
    Block, Coverage, Frame, Profile, SourceKind, StackProfile, Totals, Verdict, VerdictKind,
};

/// Writes the report.
pub(super) fn write(profile: &Profile, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let Options { contents, selection, time_zone, .. } = options;
    if profile.coverage.source == SourceKind::JavaHeap && !options.full {
        return objects::write(profile, options, out);
    }
    let judges = contents.verdicts && is_watched(profile);
    if judges && !contents.outstanding && !options.full {
        return short::write(profile, options, out);
    }
    let causes = Causes::of(profile, &options.rules);
    let lists = contents.outstanding || !judges || !is_judged(profile);
    if judges {
        let time = profile.taken_at.to_zoned(time_zone.clone()).strftime("%H:%M:%S");
        let headline = of_what_is_shown(&causes.headline(profile), &options.view);
        writeln!(out, "[{time}] {}, {headline}", printable(&profile.process.to_string()))?;
        write_growth(profile, out)?;
        if is_judged(profile) {
            write_verdicts(profile, selection.top, out)?;
        }
    }
    if !judges && profile.coverage.source == SourceKind::Growth {
        write_growth(profile, out)?;
    }
    write_header(profile, &options.view, out)?;
    if !judges && profile.coverage.source != SourceKind::Growth {
        write_growth(profile, out)?;
    }
    if lists {
        write_stacks(profile, options, out)?;
    }
    write_walks(profile, out)?;
    write_counters(profile, out)?;
    if let Some(cost) = &profile.cost {
        writeln!(out, "cost: {}", cost_in_words(cost))?;
    }
    if judges {
        writeln!(out, "{}", of_what_is_shown(&advice(profile, &causes), &options.view))
    } else {
        Ok(())
    }
}

fn write_growth(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    profile.growth.iter().try_for_each(|line| writeln!(out, "{}", printable(line)))
}

/// Writes leaking and growing call sites, each with its evidence and a stack; the others in a line for each kind.
fn write_verdicts(profile: &Profile, top: usize, out: &mut impl Write) -> io::Result<()> {
    let mut shown = [0; VerdictKind::ALL.len()];
    let is_shown = |verdict: &&Verdict| verdict.kind <= VerdictKind::Growing;
    let shares = ThreadShares::of(profile);
    for verdict in profile.verdicts.iter().filter(is_shown).take(top) {
        shown[verdict.kind as usize] += 1;
        write_verdict(verdict, &shares, out)?;
    }
    for kind in VerdictKind::ALL {
        if let Some(line) = others(profile, kind, shown[kind as usize]) {
            writeln!(out, "{line}")?;
        }
    }
    too_early(profile).map_or(Ok(()), |line| writeln!(out, "{line}"))
}

fn write_verdict(verdict: &Verdict, shares: &ThreadShares, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}: {}", verdict.words(), site(verdict))?;
    for line in evidence(verdict) {
        writeln!(out, "\t{line}")?;
    }
    let Totals { bytes, objects } = verdict.live;
    let mut since = String::new();
    if !verdict.first_seen.is_zero() {
        since = format!("; first seen {} after the start", units::duration(verdict.first_seen));
    }
    let (bytes, confidence) = (units::bytes(bytes), verdict.confidence * 100.);
    writeln!(out, "\t{bytes} live in {objects} objects{since}; confidence {confidence:.0} %")?;
    if let Some(words) = shares.words(verdict) {
        writeln!(out, "\tallocated {words}")?;
    }
    let paths = verdict.stacks.len();
    if paths > 1 {
        writeln!(out, "\tthrough {paths} stacks; this one holds the most:")?;
    }
    verdict.frames.iter().try_for_each(|frame| write_frame(frame, out))
}

pub(super) fn write_header(profile: &Profile, view: &str, out: &mut impl Write) -> io::Result<()> {
    let (live, allocated) = (profile.live(), profile.allocated());
    write!(out, "{}{}: ", printable(&profile.process.to_string()), units::over(profile.elapsed()))?;
    let words = words(profile.coverage.source);
    if profile.coverage.knows_live() {
        write!(out, "{} {} in {} {}; ", units::bytes(live.bytes), words.live, live.objects, words.objects)?;
    }
    let (bytes, objects) = (units::bytes(allocated.bytes), allocated.objects);
    writeln!(out, "{bytes} {} in {objects} {}", words.allocated, words.objects)?;
    write_scope(profile, out)?;
    if !view.is_empty() {
        writeln!(out, "shown: {}", printable(view))?;
    }
    match &profile.ended {
        Some(ended) => writeln!(out, "the process has ended: {}", printable(ended)),
        None => Ok(()),
    }
}

/// Writes the scope of the figures, if it is not everything.
fn write_scope(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let coverage = &profile.coverage;
    if !coverage.older.is_zero() {
        writeln!(out, "live: only what is at least {} ms old", coverage.older.as_millis())?;
    }
    if let Some(why) = super::live_unknown(coverage) {
        writeln!(out, "{why}")?;
    }
    let Some(from) = super::estimated_from(coverage) else { return Ok(()) };
    write!(out, "estimates from {from}")?;
    let (of, error) = match (profile.live_error(), profile.allocated_error()) {
        (Some(error), _) => ("live", error),
        (None, Some(error)) => ("allocated", error),
        (None, None) => return writeln!(out),
    };
    let (bytes, objects) = (units::bytes(error.bytes), error.objects);
    writeln!(out, "; standard error of {of} figures: {bytes}, {objects} objects")
}

fn write_stacks(profile: &Profile, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let selection = options.selection;
    let ranking = selection.rank(profile);
    let words = words(profile.coverage.source);
    let time = profile.taken_at.to_zoned(options.time_zone.clone()).strftime("%H:%M:%S");
    if ranking.top.is_empty() && ranking.rest.is_empty() {
        return match profile.allocated().objects {
            _ if !profile.coverage.older.is_zero() => {
                writeln!(out, "[{time}] Nothing outstanding that is as old.")
            }
            _ if !options.view.is_empty() => writeln!(out, "[{time}] Nothing outstanding in what is shown."),
            0 => writeln!(out, "[{time}] {}", words.never),
            _ if profile.coverage.source == SourceKind::Growth => {
                writeln!(out, "[{time}] No page that was touched is resident any more.")
            }
            seen => {
                writeln!(out, "[{time}] Nothing outstanding: all {seen} allocations seen have been freed.")
            }
        };
    }
    let number = ranking.top.len();
    if profile.coverage.knows_live() {
        writeln!(out, "[{time}] Top {number} {}:", words.listed)?;
    } else {
        writeln!(out, "[{time}] Top {number} stacks by what they have allocated:")?;
    }
    for stack in &ranking.top {
        write_stack(stack, profile, selection.sort, out)?;
        write_blocks(stack, profile.coverage, out)?;
    }
    if !ranking.rest.is_empty() {
        let rest: Totals = ranking.rest.iter().map(|stack| stack.live).sum();
        let (stacks, bytes) = (ranking.rest.len(), units::bytes(rest.bytes));
        writeln!(out, "and {stacks} more stacks: {bytes} in {} {}", rest.objects, words.parts)?;
    }
    Ok(())
}

fn write_stack(
    stack: &StackProfile,
    profile: &Profile,
    sort: SortBy,
    out: &mut impl Write,
) -> io::Result<()> {
    let Totals { bytes, objects } = stack.live;
    write!(out, "\t{bytes} bytes in {objects} {} from stack (", words(profile.coverage.source).parts)?;
    if let Some(humane) = units::humane_bytes(bytes) {
        write!(out, "{humane}, ")?;
    }
    let of = super::live_or_allocated(&profile.coverage);
    write!(out, "{} of {of}", share(bytes, profile.live().bytes))?;
    if let Some(error) = stack.live_error.totals() {
        write!(out, ", standard error {} bytes", error.bytes)?;
    }
    if sort == SortBy::Growth {
        write!(out, ", {:+} bytes since the last report", stack.details.growth)?;
    }
    if let Some(ages) = stack.details.ages {
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

/// Lists blocks like bcc's memleak, and the number of further blocks.
fn write_blocks(stack: &StackProfile, coverage: Coverage, out: &mut impl Write) -> io::Result<()> {
    for block in &stack.details.blocks {
        let Block { address, size, age } = *block;
        writeln!(out, "\taddr = {address:x} size = {size} ({} old)", units::duration(age))?;
    }
    // With sampling, the number of further blocks is unknown.
    let more = stack.live.objects.saturating_sub(stack.details.blocks.len() as u64);
    if coverage.blocks_per_stack > 0 && more > 0 && !coverage.is_estimate() {
        writeln!(out, "\tand {more} more allocations from this stack")?;
    }
    Ok(())
}

pub(super) fn write_frame(frame: &Frame, out: &mut impl Write) -> io::Result<()> {
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
    let by_frame_pointer = if frame.by_frame_pointer { " (by frame pointer)" } else { "" };
    let tail_call = if frame.tail_call { " (tail call)" } else { "" };
    writeln!(out, "{}{tail_call}{by_frame_pointer}", if frame.inlined { " (inlined)" } else { "" })
}

/// Writes the status of incomplete outstanding stacks.
fn write_walks(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let outstanding: Vec<_> = profile.stacks.iter().filter(|stack| !stack.live.is_nothing()).collect();
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
    for (file, totals) in profile.without_unwind_information() {
        let file = if file.is_empty() { "code in no file".into() } else { printable(file) };
        let share = share(totals.bytes, live.bytes);
        writeln!(out, "stacks: {file} lacks unwind information ({share} of live bytes are below it)")?;
    }
    Ok(())
}

/// Writes all nonzero counters with their meaning, losses first.
fn write_counters(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    for Counted { count, name, meaning } in losses(profile) {
        writeln!(out, "lost: {count} {}: {meaning}", printable(name))?;
    }
    for Counted { count, name, meaning } in notes(profile) {
        writeln!(out, "note: {count} {name}: {meaning}")?;
    }
    Ok(())
}

/// `81.0 %`; a nonzero part is never shown as zero.
pub(super) fn share(part: u64, whole: u64) -> String {
    match units::percent(part, whole) {
        percent if part > 0 && percent < 0.05 => "< 0.1 %".to_owned(),
        percent => format!("{percent:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::analyze::Selection;
    use crate::profile::Sampling;
    use crate::render::{Contents, sample};

    fn text(profile: &Profile, top: usize) -> String {
        let mut out = Vec::new();
        let selection = Selection { sort: SortBy::Size, top };
        let contents = Contents { verdicts: false, outstanding: true };
        write(profile, &Options { contents, selection, ..sample::options() }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sample_profile() {
        insta::assert_snapshot!(text(&sample::profile(), 10));
    }

    fn judged(profile: &Profile) -> String {
        let mut out = Vec::new();
        write(profile, &Options { full: true, ..sample::options() }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn verdicts_come_first_and_what_to_do_last() {
        insta::assert_snapshot!(judged(&sample::judged()));
    }

    #[test]
    fn while_it_is_too_early_stacks_are_listed() {
        let mut profile = sample::judged();
        profile.taken_at = profile.started_at + Duration::from_secs(20);
        let text = judged(&profile);
        assert!(text.starts_with("[10:00:20] leaky (pid 4242), watched for 20.0 s: "), "{text}");
        assert!(text.contains("] Top 5 stacks with outstanding allocations:\n"), "{text}");
        assert!(text.ends_with("\nVerdict in 40 s.\n"), "{text}");
    }

    #[test]
    fn a_process_without_leaks_is_reported_so_and_one_that_was_not_watched_is_not() {
        let mut profile = sample::judged();
        profile.verdicts.clear();
        assert!(judged(&profile).contains(", watched for 4 min 12 s: nothing leaks\n"));
        let options = Options { view: "0 of 6 stacks".to_owned(), ..sample::options() };
        let mut text = Vec::new();
        write(&profile, &options, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(", of what is shown: watched for 4 min 12 s: nothing leaks\n"), "{text}");
        profile.coverage.settle = Duration::ZERO;
        assert!(judged(&profile).starts_with("leaky (pid 4242) over"));
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
    fn what_the_figures_are_of_stands_below_the_sums() {
        let mut profile = sample::empty_profile();
        profile.coverage.older = Duration::from_millis(500);
        profile.coverage.sampling = Sampling::Rate(10);
        let live_error = Totals { bytes: 300, objects: 4 }.into();
        let live = Totals { bytes: 1000, objects: 20 };
        profile.stacks = vec![StackProfile { live, live_error, ..sample::empty_stack() }];
        let text = text(&profile, 10);
        assert!(text.contains("\nlive: only what is at least 500 ms old\n"), "{text}");
        let estimate =
            "\nestimates from one allocation in 10; standard error of live figures: 300 bytes, 4 objects\n";
        assert!(text.contains(estimate), "{text}");
        assert!(text.contains("(100.0 % of live, standard error 300 bytes)"), "{text}");
    }

    #[test]
    fn blocks_are_listed_below_their_stack_and_the_others_counted() {
        let mut profile = sample::empty_profile();
        profile.coverage.blocks_per_stack = 1;
        let block = Block { address: 0x55d0_1234, size: 64, age: Duration::from_millis(1_250) };
        let live = Totals { bytes: 80, objects: 3 };
        profile.stacks = vec![StackProfile { live, ..sample::empty_stack() }];
        profile.stacks[0].details.blocks.push(block);
        let text = text(&profile, 10);
        let blocks = "\taddr = 55d01234 size = 64 (1.2 s old)\n\tand 2 more allocations from this stack\n";
        assert!(text.contains(blocks), "{text}");
    }

    #[test]
    fn growth_is_reported_when_it_is_the_order() {
        let mut profile = sample::profile();
        profile.stacks[0].details.growth = -64;
        let mut out = Vec::new();
        let selection = Selection { sort: SortBy::Growth, top: 10 };
        let contents = Contents { verdicts: false, outstanding: true };
        write(&profile, &Options { contents, selection, ..sample::options() }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(", -64 bytes since the last report"), "{text}");
        assert!(text.contains(", +0 bytes since the last report"), "{text}");
    }

    #[test]
    fn what_bcc_readers_match_is_there_word_for_word() {
        let text = text(&sample::profile(), 2);
        assert!(text.contains("[10:04:12] Top 2 stacks with outstanding allocations:\n"));
        assert!(text.contains("\t1536000 bytes in 12 allocations from stack"));
    }
}
