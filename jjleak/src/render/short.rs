//! The default report for a terminal: what makes memory grow, a line or three for each cause, within a screen.
//!
//! Before the verdicts it lists what grows fastest. Stacks fill the lines that remain, without the frames below `main` or the start
//! of a thread.

use std::fmt::Write as _;
use std::io::{self, Write};

use jjleak_common::counter::Counter;
use jjleak_common::stack::StackStatus;

use super::Options;
use super::advice::advice;
use super::cost::cost_in_words;
use super::counters::{Counted, losses, notes};
use super::findings::{Causes, called_from, figures, sentences, title};
use super::fold::{folded, line_of};
use super::label::printable;
use super::text::write_header;
use super::threads::ThreadShares;
use super::verdicts::{approximate, is_judged, of_what_is_shown, others, too_early};
use crate::analyze::Finding;
use crate::profile::{Profile, Totals, VerdictKind};

/// Number of lines of a report: of a terminal of 24 lines or more, all but the prompt.
const LINES: usize = 25;
/// Columns of a narrow terminal, where longer lines wrap.
const COLUMNS: usize = 80;
/// Maximum number of causes with their evidence; the others are a line each.
const EXPLAINED: usize = 3;
/// Maximum number of causes.
const LISTED: usize = 6;
/// Number of call sites to list before the verdicts.
const FASTEST: usize = 3;
/// Minimum number of lines for a stack.
const SHORTEST_STACK: usize = 3;
/// Maximum number of lines for a stack.
const LONGEST_STACK: usize = 8;
/// Width of a tab in a terminal.
const TAB: usize = 8;

/// Writes the report.
pub(super) fn write(profile: &Profile, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let causes = Causes::of(profile, &options.rules);
    let time = profile.taken_at.to_zoned(options.time_zone.clone()).strftime("%H:%M:%S");
    let headline = of_what_is_shown(&causes.headline_with_cause(profile), &options.view);
    let mut head = vec![format!("[{time}] {}, {headline}", printable(&profile.process.to_string()))];
    head.extend(profile.growth.iter().map(|line| printable(line).into_owned()));
    let tail = tail(profile, options, &causes)?;
    let (body, stacks_of) = if is_judged(profile) {
        judged(profile, &causes, options.selection.top.min(LISTED))
    } else {
        early(profile, &causes)
    };
    head.extend(body);
    // What is shown last of the verdicts matters least.
    while rows(&head) + rows(&tail) > LINES && head.len() > profile.growth.len() + 2 {
        head.pop();
    }
    let used = rows(&head) + rows(&tail);
    let mut left = LINES.saturating_sub(used);
    for (index, line) in head.iter().enumerate() {
        writeln!(out, "{line}")?;
        let stack = stacks_of.iter().find(|(after, _)| *after + profile.growth.len() == index);
        if let Some((_, finding)) = stack
            && left >= SHORTEST_STACK
        {
            let stack = stack_of(finding, left.min(LONGEST_STACK));
            left = left.saturating_sub(rows(&stack));
            stack.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
    }
    tail.iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// Lines, and the findings whose stacks follow a line, by the line's index in the report.
type Body<'a, 'b> = (Vec<String>, Vec<(usize, &'b Finding<'a>)>);

fn judged<'a, 'b>(profile: &Profile, causes: &'b Causes<'a>, top: usize) -> Body<'a, 'b> {
    let (mut lines, mut stacks_of) = (Vec::new(), Vec::new());
    let shares = ThreadShares::of(profile);
    let mut shown = 0;
    for finding in causes.material().take(top) {
        lines.push(title(finding));
        if shown < EXPLAINED {
            lines.push(format!("\t{}", figures(finding)));
            lines.extend(sentences(finding).map(|evidence| format!("\t{evidence}")));
            lines.extend(shares.words(finding.verdicts[0]).map(|words| format!("\tallocated {words}")));
            // The headline is the first line of the report.
            stacks_of.push((lines.len(), finding));
        }
        shown += 1;
    }
    lines.extend(causes.rest_in_a_line(shown));
    lines.extend(causes.small_in_a_line());
    let settled = [VerdictKind::CacheLike, VerdictKind::StartUp, VerdictKind::SteadyChurn];
    lines.extend(settled.into_iter().filter_map(|kind| others(profile, kind, 0)));
    lines.extend(too_early(profile));
    (lines, stacks_of)
}

/// Before the verdicts, or if the process has ended too early for them.
fn early<'a, 'b>(profile: &Profile, causes: &'b Causes<'a>) -> Body<'a, 'b> {
    let has_ended = profile.ended.is_some();
    let count = if has_ended { LISTED } else { FASTEST };
    let listed: Vec<_> = causes.fastest.iter().take(count).collect();
    let Some(first) = listed.first() else { return (Vec::new(), Vec::new()) };
    let title = match (has_ended, first.rate) {
        (true, _) => "not freed, largest first:",
        (false, Some(rate)) if rate.per_second > 0. => "fastest so far:",
        (false, _) => "holds most so far:",
    };
    let mut lines = vec![title.to_owned()];
    lines.extend(listed.iter().map(|finding| format!("\t{}", called_from(finding))));
    let rest = &causes.fastest[listed.len()..];
    if !rest.is_empty() {
        let live: Totals = rest.iter().map(|finding| finding.live).sum();
        lines.push(format!(
            "\tand {} more: {} in {} blocks",
            rest.len(),
            approximate(live.bytes),
            live.objects
        ));
    }
    (lines, vec![(2, *first)])
}

/// Sums, losses, notes, costs and the next step.
fn tail(profile: &Profile, options: &Options, causes: &Causes<'_>) -> io::Result<Vec<String>> {
    let mut header = Vec::new();
    write_header(profile, &options.view, &mut header)?;
    let mut lines: Vec<String> = String::from_utf8_lossy(&header).lines().map(str::to_owned).collect();
    lines.extend(incomplete(profile));
    let lost: Vec<_> = losses(profile).collect();
    lines.extend(
        lost.iter()
            .take(2)
            .map(|Counted { count, name, meaning }| format!("lost: {count} {}: {meaning}", printable(name))),
    );
    if lost.len() > 2 {
        let names: Vec<_> = lost[2..].iter().map(|lost| format!("{} {}", lost.count, lost.name)).collect();
        lines.push(format!("lost, too: {} (--full explains)", printable(&names.join(", "))));
    }
    lines.extend(notes_in_a_line(profile));
    lines.extend(profile.cost.as_ref().map(|cost| format!("cost: {}", cost_in_words(cost))));
    lines.push(of_what_is_shown(&advice(profile, causes), &options.view));
    Ok(lines)
}

/// `stacks: 3 of 40 are incomplete, with 0.2 % of live bytes (--full says why)`.
fn incomplete(profile: &Profile) -> Option<String> {
    let holding = || profile.stacks.iter().filter(|stack| !stack.live.is_nothing());
    let ends_early = || holding().filter(|stack| stack.status != StackStatus::Complete);
    let (count, all) = (ends_early().count(), holding().count());
    let bytes: u64 = ends_early().map(|stack| stack.live.bytes).sum();
    let share = super::text::share(bytes, profile.live().bytes);
    (count > 0).then(|| {
        format!("stacks: {count} of {all} may be incomplete, with {share} of live bytes (--full says why)")
    })
}

/// `500 frees of older blocks (normal); 7 filtered`.
fn notes_in_a_line(profile: &Profile) -> Option<String> {
    let notes: Vec<_> = notes(profile)
        .filter(|note| note.name != Counter::FreedByCLibrary.name())
        .map(|Counted { count, name, .. }| {
            if name == Counter::UnknownFree.name() {
                let whose = if profile.coverage.some_sizes { "blocks not counted" } else { "older blocks" };
                format!("{count} frees of {whose} (normal)")
            } else {
                format!("{count} {}", printable(&name.replace('_', " ")))
            }
        })
        .collect();
    (!notes.is_empty()).then(|| format!("notes: {}", notes.join("; ")))
}

/// The stack that holds the most, in at most this many rows.
fn stack_of(finding: &Finding<'_>, most: usize) -> Vec<String> {
    let frames = finding.verdicts[0].frames.list();
    let mut lines: Vec<String> = Vec::new();
    for shown in (1..=most).rev() {
        lines = folded(&frames, finding.frame, shown)
            .into_iter()
            .map(|frame| match frame {
                Some(frame) => format!("\t\t{}", line_of(&frames[frame])),
                None => "\t\t...".to_owned(),
            })
            .collect();
        if rows(&lines) <= most {
            break;
        }
    }
    lines
}

/// Rows that the lines take in a narrow terminal.
pub(super) fn rows(lines: &[String]) -> usize {
    let width = |line: &String| -> usize { line.chars().map(|c| if c == '\t' { TAB } else { 1 }).sum() };
    lines.iter().map(|line| width(line).div_ceil(COLUMNS).max(1)).sum()
}

/// Joins parts with semicolons, in lines of a wide terminal.
pub(super) fn joined(parts: impl IntoIterator<Item = String>, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.len() + part.len() + 2 <= columns => {
                // Writing to a string cannot fail.
                let _ = write!(line, "; {part}");
            }
            _ => lines.push(part),
        }
    }
    lines
}

#[cfg(test)]
mod tests;
