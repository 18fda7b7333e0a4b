//! Tables of the page, as HTML that can be read and printed without the script.

use std::fmt::{self, Write};

use super::super::cost::{cost_in_words, share_in_words};
use super::super::counters::{Counted, losses, notes};
use super::super::label::{NO_STACK, label, module, printable};
use super::super::threads::ThreadShares;
use super::super::verdicts::of_what_is_shown;
use super::super::{Options, svg::escape, units};
use crate::profile::{Basis, FrameKind, Profile, Sampling, SharedFrame, StackProfile, Totals};
use jjleak_common::stack::StackStatus;

/// Maximum number of call sites in the table; the flame graph has all.
const MAX_SITES: usize = 100;

/// Text escaped for content and attributes.
pub(super) fn text(text: &str) -> String {
    escape(&printable(text)).replace('\'', "&#39;")
}

/// The main figures.
pub(super) fn cards(profile: &Profile, out: &mut String) -> fmt::Result {
    let (live, allocated) = (profile.live(), profile.allocated());
    out.push_str("<div class=\"cards\">");
    for (name, totals) in [("Live: not freed yet", live), ("Allocated since the start", allocated)] {
        let big = units::humane_bytes(totals.bytes).unwrap_or_else(|| format!("{} bytes", totals.bytes));
        let (bytes, objects) = (units::grouped(totals.bytes), units::grouped(totals.objects));
        let exact = format!("{bytes} bytes in {objects} objects");
        card(name, &big, &exact, "", out)?;
    }
    if let [first, .., last] = &profile.history[..] {
        let bytes = crate::analyze::delta(first.live.bytes, last.live.bytes);
        let sign = if bytes < 0 { "−" } else { "+" };
        let amount = bytes.unsigned_abs();
        let big = units::humane_bytes(amount).unwrap_or_else(|| format!("{amount} bytes"));
        let reports = format!("over {} reports", profile.history.len());
        card("Change of live bytes", &format!("{sign}{big}"), &reports, "", out)?;
    }
    let lost = losses(profile).count();
    let (big, class) =
        if lost == 0 { ("nothing".to_owned(), "good") } else { (format!("{lost} kinds"), "bad") };
    let exact = match lost {
        0 if profile.coverage.is_estimate() => "but the figures are estimates",
        0 => "every allocation was counted",
        _ => "the figures miss something, see below",
    };
    card("Lost", &big, exact, class, out)?;
    if let Some(cost) = &profile.cost {
        let big = cost.of_cpu().map_or_else(|| "unknown".to_owned(), share_in_words);
        card("Cost, of the process's CPU time", &big, &cost_in_words(cost), "", out)?;
    }
    out.push_str("</div>");
    Ok(())
}

fn card(name: &str, big: &str, exact: &str, class: &str, out: &mut String) -> fmt::Result {
    write!(
        out,
        r#"<div class="card"><div class="name">{}</div><div class="big {class}">{}</div><div class="exact">{}</div></div>"#,
        text(name),
        text(big),
        text(exact)
    )
}

/// Verdicts on call sites, worst first, and the advice; nothing without verdicts.
pub(super) fn verdicts(profile: &Profile, options: &Options, out: &mut String) -> fmt::Result {
    if profile.verdicts.is_empty() {
        return Ok(());
    }
    write!(
        out,
        "<section id=\"verdicts\"><h2>{}</h2>",
        text(&of_what_is_shown(&super::super::headline(profile), &options.view))
    )?;
    out.push_str(
        "<table><thead><tr><th>verdict</th><th class=\"number\">live bytes</th><th>over time</th>\
         <th>allocated by</th></tr></thead><tbody>",
    );
    let shares = ThreadShares::of(profile);
    for verdict in profile.verdicts.iter().take(MAX_SITES) {
        let humane = units::humane_bytes(verdict.live.bytes);
        let humane = humane.map(|humane| format!("<br><small>{humane}</small>")).unwrap_or_default();
        let sure = match verdict.basis {
            Basis::LongHistory => format!("{:.0} % sure", verdict.confidence * 100.),
            Basis::ShortHistory | Basis::Nothing => String::new(),
        };
        write!(
            out,
            r#"<tr><td><span class="tag {}">{}</span><br><small>{sure}</small></td><td class="number">{}{humane}</td><td>{}</td><td><details><summary><code>{}</code></summary>"#,
            verdict.kind.name(),
            text(verdict.words()),
            units::grouped(verdict.live.bytes),
            super::chart::sparkline(&verdict.series),
            text(&super::super::site(verdict)),
        )?;
        frames(&verdict.frames, out)?;
        out.push_str("</details>");
        let threads = shares.words(verdict).map(|words| format!("allocated {words}"));
        for sentence in super::super::evidence(verdict).into_iter().chain(threads) {
            write!(out, "<div class=\"note\">{}</div>", text(&sentence))?;
        }
        out.push_str("</td></tr>");
    }
    write!(
        out,
        "</tbody></table><p><strong>{}</strong></p></section>",
        text(&of_what_is_shown(&super::super::advice(profile), &options.view))
    )
}

/// The call sites with most live memory, with their stacks.
pub(super) fn sites(profile: &Profile, options: &Options, out: &mut String) -> fmt::Result {
    let stacks = options.selection.sort.order(profile);
    let outstanding: Vec<_> = stacks.into_iter().filter(|stack| !stack.live.is_nothing()).collect();
    out.push_str("<section id=\"sites\"><h2>Stacks with outstanding allocations</h2>");
    if outstanding.is_empty() {
        out.push_str("<p>Nothing lives.</p></section>");
        return Ok(());
    }
    out.push_str(
        "<table><thead><tr><th class=\"number\">live bytes</th><th>share</th><th class=\"number\">objects</th>\
         <th>age</th><th>allocated by</th></tr></thead><tbody>",
    );
    let live = profile.live();
    for stack in outstanding.iter().take(MAX_SITES) {
        site(stack, live, out)?;
    }
    out.push_str("</tbody></table>");
    if outstanding.len() > MAX_SITES {
        let rest: Totals = outstanding[MAX_SITES..].iter().map(|stack| stack.live).sum();
        let (more, bytes) = (outstanding.len() - MAX_SITES, units::bytes(rest.bytes));
        write!(out, "<p class=\"note\">And {more} more, with {bytes} in {} objects.</p>", rest.objects)?;
    }
    out.push_str("</section>");
    Ok(())
}

fn site(stack: &StackProfile, live: Totals, out: &mut String) -> fmt::Result {
    let Totals { bytes, objects } = stack.live;
    let percent = units::percent(bytes, live.bytes);
    let age = stack.ages.map(|ages| {
        let (oldest, newest) = (units::duration(ages.oldest), units::duration(ages.newest));
        if oldest == newest { oldest } else { format!("{newest} to {oldest}") }
    });
    let exact = units::humane_bytes(bytes).map(|humane| format!("<br><small>{humane}</small>"));
    write!(
        out,
        r#"<tr><td class="number">{}{}</td><td class="share"><svg role="img" aria-label="{percent:.1} %"><rect class="all" width="100%" height="10" rx="2"/><rect class="of" width="{percent:.2}%" height="10" rx="2"/></svg><br><small>{percent:.1} %</small></td><td class="number">{}</td><td>{}</td><td><details><summary><code>{}</code></summary>"#,
        units::grouped(bytes),
        exact.unwrap_or_default(),
        units::grouped(objects),
        age.unwrap_or_default(),
        text(&caller(stack)),
    )?;
    frames(&stack.frames, out)?;
    if stack.status != StackStatus::Complete {
        write!(out, "<p class=\"note\">{}: {}</p>", stack.status.name(), text(stack.status.meaning()))?;
    }
    out.push_str("</details></td></tr>");
    Ok(())
}

/// Callers of the allocation function.
fn caller(stack: &StackProfile) -> String {
    let code: Vec<_> = stack.frames.iter().filter(|frame| frame.kind != FrameKind::Thread).take(3).collect();
    let callers: Vec<_> = code.iter().skip(1).map(|frame| label(frame)).collect();
    let caller = match (&callers[..], code.first()) {
        ([], None) => NO_STACK.to_owned(),
        ([], Some(only)) => label(only).into_owned(),
        _ => callers.join(" ← "),
    };
    match stack.thread() {
        Some(thread) => format!("{caller} in {}", printable(&thread.to_string())),
        None => caller,
    }
}

pub(super) fn frames(frames: &[SharedFrame], out: &mut String) -> fmt::Result {
    out.push_str("<ol class=\"stack\">");
    for frame in frames {
        write!(out, "<li>{}<span class=\"place\">", text(&label(frame)))?;
        if !frame.symbol.is_empty()
            && let Some(module) = module(frame)
        {
            write!(out, " [{}]", text(&module))?;
        }
        match (frame.file.as_str(), frame.line) {
            ("", _) => {}
            (file, 0) => write!(out, " {}", text(file))?,
            (file, line) => write!(out, " {}:{line}", text(file))?,
        }
        if frame.inlined || frame.kind == FrameKind::JavaInlined {
            out.push_str(" (inlined)");
        }
        if frame.tail_call {
            out.push_str(" (tail call)");
        }
        out.push_str("</span></li>");
    }
    out.push_str("</ol>");
    Ok(())
}

/// Losses, and other counters.
pub(super) fn counted(profile: &Profile, out: &mut String) -> fmt::Result {
    out.push_str("<section id=\"losses\"><h2>Losses and notes</h2>");
    let rows: Vec<_> =
        losses(profile).map(|lost| ("lost", lost)).chain(notes(profile).map(|note| ("note", note))).collect();
    if rows.is_empty() {
        out.push_str("<p class=\"good\">Nothing was lost.</p></section>");
        return Ok(());
    }
    if losses(profile).next().is_none() {
        out.push_str("<p class=\"good\">Nothing was lost. What was counted besides:</p>");
    }
    out.push_str("<table><tbody>");
    for (what, Counted { count, name, meaning }) in rows {
        let class = if what == "lost" { "bad" } else { "" };
        write!(
            out,
            r#"<tr><td class="{class}">{what}</td><td class="number">{}</td><td><code>{}</code></td><td>{}</td></tr>"#,
            units::grouped(count),
            text(name),
            text(meaning)
        )?;
    }
    out.push_str("</tbody></table></section>");
    Ok(())
}

/// Method of measurement.
pub(super) fn measured(profile: &Profile, out: &mut String) -> fmt::Result {
    out.push_str("<section id=\"measured\"><h2>How it was measured</h2><dl>");
    let mut row = |name: &str, value: &str| write!(out, "<dt>{}</dt><dd>{}</dd>", text(name), text(value));
    row("program", &profile.process.exe)?;
    row("tool", super::super::TOOL)?;
    let coverage = &profile.coverage;
    row(
        "allocations",
        &match coverage.sampling {
            Sampling::Rate(rate @ 2..) => format!("one in {rate}, at random: the figures are estimates"),
            Sampling::Bytes(bytes) => format!("one in {bytes} bytes, at random: the figures are estimates"),
            _ if coverage.windows.is_some() => {
                "those in windows of time, at random: the figures are estimates".to_owned()
            }
            _ => "every one since the start; bytes are as requested".to_owned(),
        },
    )?;
    if let Some(error) = profile.live_error() {
        row(
            "standard error",
            &format!("{} of live bytes, {} objects", units::bytes(error.bytes), error.objects),
        )?;
    }
    if !coverage.older.is_zero() {
        row("live", &format!("only what is at least {} ms old", coverage.older.as_millis()))?;
    }
    if coverage.combined {
        row("live", "sums that the kernel keeps: no ages are known")?;
    }
    if let Some(ended) = &profile.ended {
        row("end of the process", ended)?;
    }
    let outstanding = || profile.stacks.iter().filter(|stack| !stack.live.is_nothing());
    for status in StackStatus::ALL {
        let number = outstanding().filter(|stack| stack.status == *status).count();
        if number > 0 {
            let name = format!("stacks {}", status.name());
            row(&name, &format!("{number} of {}: {}", outstanding().count(), status.meaning()))?;
        }
    }
    for file in profile.without_unwind_information().into_keys().filter(|file| !file.is_empty()) {
        row("lacks unwind information", file)?;
    }
    out.push_str("</dl></section>");
    Ok(())
}
