//! A page with everything: figures, flame graph, stacks, history, losses, and method of measurement.
//!
//! It is self-contained and makes no requests. Its only script is its own: the content security policy names the script by its
//! hash, so that names in a profiled program cannot run as script even if they were not escaped.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::label::printable;
use super::{Options, svg};
use crate::profile::{FrameKind, Profile};

mod chart;
mod data;
mod sections;

use sections::text;

/// Text escaped for content and attributes of a page.
pub(crate) fn escaped(shown: &str) -> String {
    text(shown)
}

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Writes the page.
pub(super) fn write(profile: &Profile, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let data = data::json(profile, options)?;
    let page = page(profile, options, &data).map_err(io::Error::other)?;
    out.write_all(page.as_bytes())
}

fn page(profile: &Profile, options: &Options, data: &str) -> Result<String, fmt::Error> {
    let mut page = String::new();
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>jjleak: {}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        policy(),
        text(&profile.process.to_string()),
    )?;
    head(profile, options, &mut page)?;
    page.push_str("<main>\n");
    sections::cards(profile, &mut page)?;
    sections::verdicts(profile, options, &mut page)?;
    if let Some(chart) = chart::draw(profile, &options.time_zone) {
        writeln!(page, "<section id=\"history\"><h2>Live bytes over time</h2>{chart}</section>")?;
    }
    flame(profile, &mut page)?;
    sections::sites(profile, options, &mut page)?;
    sections::counted(profile, &mut page)?;
    sections::measured(profile, &mut page)?;
    write!(
        page,
        "</main>\n<footer>Written by {}. This page is whole: it loads nothing from anywhere.</footer>\n\
         <div id=\"tip\" role=\"tooltip\" hidden></div>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        super::TOOL
    )?;
    Ok(page)
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

fn head(profile: &Profile, options: &Options, page: &mut String) -> fmt::Result {
    let process = &profile.process;
    let pid = if process.pid == 0 { String::new() } else { format!(" <small>pid {}</small>", process.pid) };
    write!(
        page,
        "<header><p class=\"brand\">jjleak</p><h1>{}{pid}</h1><p class=\"sub\">{}</p>",
        text(&process.comm),
        text(&svg::span(profile, &options.time_zone)),
    )?;
    if !options.view.is_empty() {
        write!(page, "<p class=\"sub\">shown: {}</p>", text(&printable(&options.view)))?;
    }
    page.push_str("</header>\n");
    Ok(())
}

fn flame(profile: &Profile, page: &mut String) -> fmt::Result {
    page.push_str(
        "<section id=\"graph\"><h2>What holds the memory</h2><div class=\"tools\">\
         <input id=\"search\" type=\"search\" placeholder=\"Search functions and modules (/)\" aria-label=\"search\">\
         <button id=\"reset\" type=\"button\">Reset zoom</button>\
         <button type=\"button\" data-by=\"bytes\">Bytes</button>\
         <button type=\"button\" data-by=\"objects\">Objects</button>\
         <button id=\"invert\" type=\"button\">From the allocation</button>\
         <span id=\"matched\" aria-live=\"polite\"></span></div><div id=\"flame\"></div><div class=\"legend\">",
    );
    let occurs = |kind: &FrameKind| *kind != FrameKind::Thread || profile.coverage.threads;
    for kind in FrameKind::ALL.into_iter().filter(occurs) {
        let (name, color) = (svg::kind_name(kind), svg::kind_color(kind));
        write!(page, r#"<span><svg><rect width="12" height="12" fill="{color}"/></svg>{name}</span>"#)?;
    }
    page.push_str(
        "</div><p class=\"note\">The width of a frame is the live memory allocated below it. Click to zoom, \
         Escape to go back.</p></section>\n",
    );
    Ok(())
}

#[cfg(test)]
mod tests;
