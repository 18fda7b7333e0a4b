//! Tables of the page, as HTML that can be read and printed without the script.

use maud::{Markup, html};

use super::super::advice::advice;
use super::super::cost::{cost_in_words, share_in_words};
use super::super::counters::{Counted, losses, notes};
use super::super::findings::{Causes, called_from, figures, sentences_of, title};
use super::super::label::{NO_STACK, label, module, printable};
use super::super::threads::ThreadShares;
use super::super::verdicts::{approximate, evidence, is_watched, of_what_is_shown};
use super::super::words::{Words, words};
use super::super::{Options, TOOL, live_or_allocated, live_unknown, units};
use super::{chart, objects};
use crate::analyze::Finding;
use crate::profile::{
    Ages, Basis, Coverage, Frame, FrameKind, Frames, Moment, Profile, Sampling, SourceKind, StackProfile,
    Totals, Verdict,
};
use jjleak_common::stack::StackStatus;

/// Maximum number of findings at the top of the page.
const MAX_FINDINGS: usize = 6;
/// Maximum number of call sites that grow fastest, before there are verdicts.
const MAX_FASTEST: usize = 3;
/// Maximum number of call sites in the table; the flame graph has all.
pub(super) const MAX_SITES: usize = 100;

/// The main figures.
pub(super) fn cards(profile: &Profile) -> Markup {
    let words = words(profile.coverage.source);
    html! {
        .cards {
            @if profile.coverage.knows_live() { (totals(words.live_title, profile.live(), words)) }
            @else if profile.coverage.source != SourceKind::JavaHeap { (card("Live: not freed yet", "unknown", "following all frees costs more than --max-overhead allows", "bad")) }
            (totals(words.allocated_title, profile.allocated(), words))
            @if let [first, .., last] = &profile.history[..] && profile.coverage.knows_live() {
                (change(words.live, first, last, profile.history.len()))
            }
            (lost(profile))
            @if let Some(cost) = &profile.cost {
                @let big = cost.of_cpu().map_or_else(|| "unknown".to_owned(), share_in_words);
                (card("Cost, of the process's CPU time", &big, &cost_in_words(cost), ""))
            }
        }
    }
}

fn totals(name: &str, totals: Totals, words: &Words) -> Markup {
    let (bytes, objects) = (units::grouped(totals.bytes), units::grouped(totals.objects));
    card(name, &approximate(totals.bytes), &format!("{bytes} bytes in {objects} {}", words.objects), "")
}

fn change(live: &str, first: &Moment, last: &Moment, reports: usize) -> Markup {
    let bytes = crate::analyze::delta(first.live.bytes, last.live.bytes);
    let sign = if bytes < 0 { "−" } else { "+" };
    let big = format!("{sign}{}", approximate(bytes.unsigned_abs()));
    card(&format!("Change of {live} bytes"), &big, &format!("over {reports} reports"), "")
}

fn lost(profile: &Profile) -> Markup {
    match losses(profile).count() {
        0 if profile.coverage.is_estimate() => {
            card("Lost", "nothing", "but the figures are estimates", "good")
        }
        0 => card("Lost", "nothing", words(profile.coverage.source).all_counted, "good"),
        kinds => card("Lost", &format!("{kinds} kinds"), "the figures miss something, see below", "bad"),
    }
}

fn card(name: &str, big: &str, exact: &str, class: &str) -> Markup {
    html! {
        .card {
            .name { (name) }
            .big.(class) { (big) }
            .exact { (exact) }
        }
    }
}

/// The verdict on the process, the advice, and what leaks or grows, worst first; nothing for a profile that cannot be judged.
pub(super) fn conclusion(profile: &Profile, options: &Options) -> Markup {
    if profile.coverage.source == SourceKind::JavaHeap {
        return objects::conclusion(profile);
    }
    if !is_watched(profile) {
        return growth(profile);
    }
    let causes = Causes::of(profile, &options.rules);
    html! {
        section #conclusion {
            h2 { (of_what_is_shown(&causes.headline_with_cause(profile), &options.view)) }
            p { strong { (of_what_is_shown(&advice(profile, &causes), &options.view)) } }
            @for line in &profile.growth { p.note { (printable(line)) } }
            @for finding in causes.material().take(MAX_FINDINGS) { (cause(finding)) }
            @for line in causes.rest_in_a_line(MAX_FINDINGS).into_iter().chain(causes.small_in_a_line()) {
                p.note { (line) }
            }
            @for finding in causes.fastest.iter().take(MAX_FASTEST) {
                p.note { (called_from(finding)) }
            }
        }
    }
}

/// Growth of the process, for a profile without verdicts.
fn growth(profile: &Profile) -> Markup {
    let [first, rest @ ..] = &profile.growth[..] else { return Markup::default() };
    html! {
        section #conclusion {
            h2 { (printable(first)) }
            @for line in rest { p.note { (printable(line)) } }
        }
    }
}

/// A finding with its line over time, figures, evidence and the stack that holds the most.
fn cause(finding: &Finding<'_>) -> Markup {
    let worst = finding.verdicts[0];
    html! {
        div.cause.(finding.kind.name()) {
            .line { (chart::sparkline(&worst.series)) }
            details {
                summary { code { (title(finding)) } }
                (frames(&worst.frames))
            }
            .note { (figures(finding)) }
            @for sentence in sentences_of(finding) { .note { (sentence) } }
        }
    }
}

/// Verdicts on all call sites, worst first; nothing without verdicts.
pub(super) fn verdicts(profile: &Profile) -> Markup {
    if profile.verdicts.is_empty() {
        return Markup::default();
    }
    let shares = ThreadShares::of(profile);
    html! {
        details.section #verdicts {
            summary { "Verdicts on all call sites" }
            table {
                thead {
                    tr {
                        th { "verdict" } th.number { "live bytes" } th { "over time" }
                        th { "allocated by" }
                    }
                }
                tbody {
                    @for verdict in profile.verdicts.iter().take(MAX_SITES) { (judged(verdict, &shares)) }
                }
            }
        }
    }
}

/// The row of a verdict.
fn judged(verdict: &Verdict, shares: &ThreadShares) -> Markup {
    let sure = verdict.basis == Basis::LongHistory;
    let threads = shares.words(verdict).map(|words| format!("allocated {words}"));
    html! {
        tr {
            td {
                span.tag.(verdict.kind.name()) { (verdict.words()) }
                br;
                small { @if sure { (format_args!("{:.0} % sure", verdict.confidence * 100.)) } }
            }
            td.number { (amount(verdict.live.bytes)) }
            td { (chart::sparkline(&verdict.series)) }
            td {
                details { summary { code { (super::super::site(verdict)) } } (frames(&verdict.frames)) }
                @for sentence in evidence(verdict).into_iter().chain(threads) {
                    .note { (sentence) }
                }
            }
        }
    }
}

/// Bytes, exactly and rounded.
fn amount(bytes: u64) -> Markup {
    html! {
        (units::grouped(bytes))
        @if let Some(humane) = units::humane_bytes(bytes) { br; small { (humane) } }
    }
}

/// The call sites with most live memory, with their stacks.
pub(super) fn sites(profile: &Profile, options: &Options) -> Markup {
    let stacks = options.selection.sort.order(profile);
    let outstanding: Vec<_> = stacks.into_iter().filter(|stack| !stack.live.is_nothing()).collect();
    let (shown, hidden) = outstanding.split_at(outstanding.len().min(MAX_SITES));
    html! {
        details.section #sites open[profile.verdicts.is_empty()] {
            summary {
                @if profile.coverage.source == SourceKind::Growth { "Stacks by the pages that they made resident" }
                @else if profile.coverage.knows_live() { "Stacks with outstanding allocations" }
                @else { "Stacks by what they have allocated" }
            }
            @if shown.is_empty() { p { "Nothing lives." } } @else { (stacks_table(shown, profile)) }
            @if !hidden.is_empty() {
                @let rest: Totals = hidden.iter().map(|stack| stack.live).sum();
                p.note {
                    "And " (hidden.len()) " more, with " (units::bytes(rest.bytes)) " in " (rest.objects)
                    " " (words(profile.coverage.source).objects) "."
                }
            }
        }
    }
}

fn stacks_table(stacks: &[&StackProfile], profile: &Profile) -> Markup {
    let live = profile.live();
    let figure = live_or_allocated(&profile.coverage);
    html! {
        table {
            thead {
                tr {
                    th.number { (figure) " bytes" } th { "share" } th.number { (words(profile.coverage.source).objects) } th { "age" }
                    th { "allocated by" }
                }
            }
            tbody { @for stack in stacks { (site(stack, live)) } }
        }
    }
}

fn site(stack: &StackProfile, live: Totals) -> Markup {
    let share = units::percent(stack.live.bytes, live.bytes);
    let label = format!("{share:.1} %");
    html! {
        tr {
            td.number { (amount(stack.live.bytes)) }
            td.share {
                svg role="img" aria-label=(label) {
                    rect.all width="100%" height="10" rx="2" {}
                    rect.of width=(format_args!("{share:.2}%")) height="10" rx="2" {}
                }
                br;
                small { (label) }
            }
            td.number { (units::grouped(stack.live.objects)) }
            td { @if let Some(ages) = stack.details.ages { (age(ages)) } }
            td {
                details {
                    summary { code { (caller_and_thread(stack)) } }
                    (frames(&stack.frames))
                    @if stack.status != StackStatus::Complete {
                        p.note { (stack.status.name()) ": " (stack.status.meaning()) }
                    }
                }
            }
        }
    }
}

/// Age of the newest and the oldest block.
fn age(ages: Ages) -> String {
    let (oldest, newest) = (units::duration(ages.oldest), units::duration(ages.newest));
    if oldest == newest { oldest } else { format!("{newest} to {oldest}") }
}

/// Callers of the allocation function, with the thread.
fn caller_and_thread(stack: &StackProfile) -> String {
    let caller = caller(&stack.frames);
    match stack.thread() {
        Some(thread) => format!("{caller} in {}", printable(&thread.to_string())),
        None => caller,
    }
}

/// Callers of the allocation function.
pub(super) fn caller(frames: &Frames) -> String {
    let code: Vec<_> = frames.iter().filter(|frame| frame.kind != FrameKind::Thread).take(3).collect();
    let callers: Vec<_> = code.iter().skip(1).map(|frame| label(frame)).collect();
    match (&callers[..], code.first()) {
        ([], None) => NO_STACK.to_owned(),
        ([], Some(only)) => label(only).into_owned(),
        _ => callers.join(" ← "),
    }
}

pub(super) fn frames(frames: &Frames) -> Markup {
    html! {
        ol.stack {
            @for frame in frames.iter() { li { (label(frame)) span.place { (place(frame)) } } }
        }
    }
}

/// Module, file and line of a frame, with notes on inlining and tail calls.
fn place(frame: &Frame) -> Markup {
    html! {
        @if !frame.symbol.is_empty() && let Some(module) = module(frame) { " [" (module) "]" }
        @if !frame.file.is_empty() {
            " " (printable(&frame.file))
            @if frame.line != 0 { ":" (frame.line) }
        }
        @if frame.inlined || frame.kind == FrameKind::JavaInlined { " (inlined)" }
        @if frame.tail_call { " (tail call)" }
    }
}

/// Losses, and other counters.
pub(super) fn counted(profile: &Profile) -> Markup {
    let (lost, notes): (Vec<_>, Vec<_>) = (losses(profile).collect(), notes(profile).collect());
    html! {
        details.section #losses open[!lost.is_empty()] {
            summary { "Losses and notes" }
            @if lost.is_empty() {
                p.good { "Nothing was lost." @if !notes.is_empty() { " What was counted besides:" } }
            }
            @if !lost.is_empty() || !notes.is_empty() {
                table {
                    tbody {
                        @for lost in lost { tr { td.bad { "lost" } (counter(&lost)) } }
                        @for note in notes { tr { td { "note" } (counter(&note)) } }
                    }
                }
            }
        }
    }
}

/// Cells of a counter.
fn counter(counted: &Counted<'_>) -> Markup {
    html! {
        td.number { (units::grouped(counted.count)) }
        td { code { (printable(counted.name)) } }
        td { (counted.meaning) }
    }
}

/// Method of measurement.
pub(super) fn measured(profile: &Profile) -> Markup {
    let coverage = &profile.coverage;
    html! {
        details.section #measured {
            summary { "How it was measured" }
            dl {
                (fact("program", &profile.process.exe))
                (fact("tool", TOOL))
                (fact("allocations", &sampling(coverage)))
                @if let Some(error) = profile.live_error() {
                    @let bytes = units::bytes(error.bytes);
                    (fact("standard error", &format!("{bytes} of live bytes, {} objects", error.objects)))
                }
                @if let Some(error) = profile.allocated_error() {
                    @let bytes = units::bytes(error.bytes);
                    (fact("standard error", &format!("{bytes} of allocated bytes, {} objects", error.objects)))
                }
                @if !coverage.older.is_zero() {
                    (fact("live", &format!("only what is at least {} ms old", coverage.older.as_millis())))
                }
                @if let Some(why) = live_unknown(coverage) { (fact("live", &why)) }
                @if coverage.combined { (fact("live", "sums that the kernel keeps: no ages are known")) }
                @if let Some(ended) = &profile.ended { (fact("end of the process", ended)) }
                (statuses(profile))
                @for file in profile.without_unwind_information().into_keys() {
                    @if !file.is_empty() { (fact("lacks unwind information", file)) }
                }
            }
        }
    }
}

/// A term and its description.
fn fact(name: &str, value: &str) -> Markup {
    html! { dt { (name) } dd { (printable(value)) } }
}

/// Share of allocations that are counted, in words.
fn sampling(coverage: &Coverage) -> String {
    match coverage.sampling {
        Sampling::Rate(rate @ 2..) => format!("one in {rate}, at random: the figures are estimates"),
        Sampling::Bytes(bytes) => format!("one in {bytes} bytes, at random: the figures are estimates"),
        Sampling::Announced => "samples that the program draws itself: the figures are estimates".to_owned(),
        _ if coverage.windows.is_some() => {
            "those in windows of time, at random: the figures are estimates".to_owned()
        }
        _ => "every one since the start; bytes are as requested".to_owned(),
    }
}

/// Number of live stacks of each status.
fn statuses(profile: &Profile) -> Markup {
    let outstanding = || profile.stacks.iter().filter(|stack| !stack.live.is_nothing());
    html! {
        @for status in StackStatus::ALL {
            @let number = outstanding().filter(|stack| stack.status == *status).count();
            @if number > 0 {
                dt { "stacks " (status.name()) }
                dd { (number) " of " (outstanding().count()) ": " (status.meaning()) }
            }
        }
    }
}
