//! A page with everything: figures, flame graph, stacks, history, losses, and method of measurement.
//!
//! It is self-contained and makes no requests. Its only script is its own: the content security policy names the script by its
//! hash, so that names in a profiled program cannot run as script even if they were not escaped.

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use super::label::printable;
use super::marks::MARKS;
use super::{Options, live_or_allocated, svg};
use crate::profile::{FrameKind, Profile, SourceKind};

mod chart;
mod data;
pub(super) mod difference;
mod objects;
mod sections;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Writes the page.
pub(super) fn write(profile: &Profile, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let data = data::json(profile, options)?;
    writeln!(out, "{}", page(profile, options, &data).into_string())
}

fn page(profile: &Profile, options: &Options, data: &Markup) -> Markup {
    let main = html! {
        (sections::conclusion(profile, options))
        (flame(profile))
        (sections::cards(profile))
        @if let Some(chart) = chart::draw(profile, &options.time_zone) {
            section #history { h2 { "Live bytes over time" } (chart) }
        }
        (sections::verdicts(profile))
        (sections::sites(profile, options))
        (sections::counted(profile))
        (sections::measured(profile))
    };
    whole_page(&profile.process.to_string(), &head(profile, options), &main, data)
}

/// A page with a flame graph, whose data the script reads.
fn whole_page(title: &str, head: &Markup, main: &Markup, data: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head_of(title))
            body {
                (head)
                main { (main) }
                (footer())
                #tip role="tooltip" hidden {}
                script type="application/json" id="data" { (data) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// A page without a script, in the same style.
pub(crate) fn plain_page(title: &str, header: &Markup, main: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (head_of(title))
            body {
                header { p.brand { "jjleak" } (header) }
                main { (main) }
                (footer())
            }
        }
    };
    page.into_string()
}

fn head_of(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta http-equiv="Content-Security-Policy" content=(policy());
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="referrer" content="no-referrer";
            title { "jjleak: " (printable(title)) }
            style { (PreEscaped(STYLE)) }
        }
    }
}

fn footer() -> Markup {
    html! { footer { "Written by " (super::TOOL) ". This page is whole: it loads nothing from anywhere." } }
}

/// Content security policy: only the page's own script and style.
fn policy() -> String {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
}

fn head(profile: &Profile, options: &Options) -> Markup {
    let process = &profile.process;
    html! {
        header {
            p.brand { "jjleak" }
            h1 {
                (printable(&process.comm))
                @if process.pid != 0 { " " small { "pid " (process.pid) } }
            }
            p.sub { (svg::span(profile, &options.time_zone)) }
            @if !options.view.is_empty() { p.sub { "shown: " (printable(&options.view)) } }
        }
    }
}

fn flame(profile: &Profile) -> Markup {
    let occurs = |kind: &FrameKind| match kind {
        FrameKind::Thread => profile.coverage.threads,
        FrameKind::Memory => profile.coverage.source == SourceKind::Growth,
        FrameKind::Class => profile.coverage.source == SourceKind::JavaHeap,
        _ => true,
    };
    let is_of_objects = profile.coverage.source == SourceKind::JavaHeap;
    html! {
        section #graph {
            h2 { @if is_of_objects { "What allocates in the Java heap" } @else { "What holds the memory" } }
            (flame_tools(!profile.verdicts.is_empty()))
            #flame {}
            .legend #kinds {
                @for kind in FrameKind::ALL.into_iter().filter(occurs) {
                    span {
                        svg { rect width="12" height="12" fill=(svg::kind_color(kind)) {} }
                        (svg::kind_name(kind))
                    }
                }
            }
            .legend #marks hidden {
                @for (verdict, color) in MARKS {
                    span { svg { rect width="12" height="12" fill=(color) {} } (verdict) }
                }
            }
            p.note {
                @if is_of_objects { "The width of a frame is what was allocated below it. " }
                @else {
                    "The width of a frame is the " (live_or_allocated(&profile.coverage)) " memory allocated below it. "
                }
                "Click to zoom, Escape to go back."
                @if !is_of_objects { " What leaks has a dark red edge." }
            }
        }
    }
}

/// Controls of the flame graph.
fn flame_tools(judged: bool) -> Markup {
    html! {
        .tools {
            input #search type="search" aria-label="search"
                placeholder="Search functions and modules (/)";
            button #reset type="button" { "Reset zoom" }
            button type="button" data-by="bytes" { "Bytes" }
            button type="button" data-by="objects" { "Objects" }
            button #invert type="button" { "From the allocation" }
            @if judged { button #verdict type="button" { "Colour by verdict" } }
            button #link type="button" { "Copy link" }
            span #matched aria-live="polite" {}
        }
    }
}

#[cfg(test)]
mod tests;
