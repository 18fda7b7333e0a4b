//! A page on the difference between two profiles.

use std::io::{self, Write};

use maud::{Markup, html};

use super::super::difference::text::{change, pace_between};
use super::super::label::printable;
use super::super::verdicts::{approximate, pace_of};
use super::super::words::words;
use super::super::{Options, live_or_allocated, svg, units};
use super::sections::{MAX_SITES, caller, frames};
use super::{data, flame_tools, whole_page};
use crate::analyze::{Change, Difference, StackDifference};
use crate::profile::{Profile, Totals};

/// Writes the page.
pub(in crate::render) fn write(
    difference: &Difference<'_>,
    options: &Options,
    out: &mut impl Write,
) -> io::Result<()> {
    let data = data::json_of_difference(difference, options)?;
    let title = format!("{} and {}", difference.before.process, difference.after.process);
    let main = html! {
        (conclusion(difference, options))
        (flame(difference))
        (stacks(difference))
    };
    writeln!(out, "{}", whole_page(&title, &head(difference, options), &main, &data).into_string())
}

fn head(difference: &Difference<'_>, options: &Options) -> Markup {
    let (before, after) = (&difference.before.process, &difference.after.process);
    html! {
        header {
            p.brand { "jjleak" }
            h1 {
                "Difference: " (printable(&before.to_string()))
                @if before != after { " and " (printable(&after.to_string())) }
            }
            @if !options.view.is_empty() { p.sub { "shown: " (printable(&options.view)) } }
        }
    }
}

/// The change of the whole, and both profiles.
fn conclusion(difference: &Difference<'_>, options: &Options) -> Markup {
    let (before, after) = difference.live();
    let figure = live_or_allocated(&difference.after.coverage);
    let measured = if difference.scale.is_some() { difference.before.live() } else { before };
    html! {
        section #conclusion {
            h2 { "Change of " (figure) " memory: " (change(before, after)) (pace_between(difference, before, after)) }
            (side("before", difference.before, measured, options))
            (side("after", difference.after, after, options))
            @if let Some(scale) = difference.scale {
                p.note { "All figures before are multiplied by " (format_args!("{scale:.3}")) ", as if both had run for the same time." }
            }
            @for kind in [Change::New, Change::Grew, Change::Shrank, Change::Gone] {
                @let of_kind: Vec<_> = difference.stacks.iter().filter(|stack| stack.change() == kind).collect();
                @if !of_kind.is_empty() {
                    @let (before, after) = (of_kind.iter().map(|it| it.before).sum(), of_kind.iter().map(|it| it.after).sum());
                    p.note { (kind.name()) ": " (of_kind.len()) @if of_kind.len() == 1 { " stack, " } @else { " stacks, " } (change(before, after)) }
                }
            }
        }
    }
}

/// `before: 12.0 MiB live in 100 objects at 2026-01-15 10:00:00, after 4 min 12 s`.
fn side(name: &str, profile: &Profile, totals: Totals, options: &Options) -> Markup {
    let figure = live_or_allocated(&profile.coverage);
    html! {
        p.note {
            (name) ": " (approximate(totals.bytes)) " " (figure) " in " (units::grouped(totals.objects)) " "
            (words(profile.coverage.source).objects) "; " (svg::span(profile, &options.time_zone))
        }
    }
}

fn flame(difference: &Difference<'_>) -> Markup {
    html! {
        section #graph {
            h2 { "What has changed" }
            (flame_tools(false))
            #flame {}
            .legend #kinds {
                @for change in Change::ALL {
                    span { svg { rect width="12" height="12" fill=(svg::change_color(change)) {} } (change.name()) }
                }
            }
            p.note {
                "The width of a frame is the larger of its " (live_or_allocated(&difference.after.coverage))
                " memory before and after; the stronger its colour, the larger the part that has changed. Click to zoom, Escape to go back."
            }
        }
    }
}

/// The stacks that have changed most.
fn stacks(difference: &Difference<'_>) -> Markup {
    let changed: Vec<_> = difference.stacks.iter().filter(|stack| stack.change() != Change::Same).collect();
    let shown = &changed[..changed.len().min(MAX_SITES)];
    let objects = words(difference.after.coverage.source).objects;
    html! {
        section #sites {
            h2 { "Stacks that have changed" }
            @if shown.is_empty() { p { "Nothing has changed." } }
            @else {
                table.changes {
                    thead {
                        tr {
                            th.number { "change" }
                            @if difference.between().is_some() { th.number { "rate" } }
                            th.number { "before" } th.number { "after" } th.number { (objects) } th { "allocated by" }
                        }
                    }
                    tbody { @for stack in shown { (row(stack, difference)) } }
                }
            }
            @if changed.len() > shown.len() { p.note { "And " (changed.len() - shown.len()) " more." } }
        }
    }
}

fn row(stack: &StackDifference, difference: &Difference<'_>) -> Markup {
    let StackDifference { frames: of_stack, before, after } = stack;
    let sign = if after.bytes < before.bytes { "−" } else { "+" };
    html! {
        tr {
            td.number {
                (sign) (approximate(before.bytes.abs_diff(after.bytes))) br; small { (stack.change().name()) }
            }
            @if let Some(pace) = difference.per_second(*before, *after) { td.number { (pace_of(pace)) } }
            td.number { (approximate(before.bytes)) }
            td.number { (approximate(after.bytes)) }
            td.number { (units::grouped(before.objects)) br; (units::grouped(after.objects)) }
            td { details { summary { code { (caller(of_stack)) } } (frames(of_stack)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::Matching;
    use crate::render::sample;
    use std::time::Duration;

    #[test]
    fn the_page_begins_with_the_change_and_its_rate_and_lists_the_stacks() {
        let before = sample::profile();
        let mut after = before.clone();
        after.stacks[1].live.bytes *= 2;
        after.stacks.remove(0);
        after.taken_at += Duration::from_mins(2);
        let difference = Difference::new(&before, &after, Matching::default(), false).unwrap();
        let mut out = Vec::new();
        write(&difference, &sample::options(), &mut out).unwrap();
        let page = String::from_utf8(out).unwrap();
        for part in [
            "Change of live memory: +1535360 bytes (+1.5 MiB), -2 objects; +749.7 KiB/min over 2 min 0 s",
            "<td class=\"number\">+1.5 MiB<br><small>grew</small></td><td class=\"number\">+750.0 KiB/min</td>",
            "gone: 1 stack, ",
            "\"changes\":{\"stacks\":[[1536000,12,3072000,12]",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }
}
