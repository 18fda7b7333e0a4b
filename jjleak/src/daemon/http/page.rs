//! The page for people: processes, what was found, and where to look further. It needs no script.

use std::fmt::{self, Write};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::Served;
use super::profiles::{blocking, defect};
use super::view::{ProcessView, processes};
use crate::daemon::history::{Entry, History};
use crate::render::{escaped, humane_bytes};

/// Profiles that the page lists; the interface for programs has all.
const MAX_PROFILES: usize = 50;
/// The picture of a process's memory over time.
const WIDTH: f64 = 160.;
const HEIGHT: f64 = 24.;

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#222}\
    table{border-collapse:collapse;width:100%;margin-bottom:2rem}th,td{text-align:left;padding:.3rem .6rem;\
    border-bottom:1px solid #ddd;vertical-align:top}td.n{text-align:right;white-space:nowrap}.bad{color:#b00020;\
    font-weight:600}polyline{fill:none;stroke:#3572b0;stroke-width:1.5}\
    @media(prefers-color-scheme:dark){body{background:#111;color:#ddd}th,td{border-color:#333}a{color:#8ab4f8}.bad{color:#ff6b7a}}";

pub(super) async fn page(State(served): State<Served>) -> Response {
    let page = blocking(&served, |served| {
        let line = served.shared.core().describe();
        write(&processes(&served.shared), &line, &served.shared.history())
    });
    match page.await {
        Some(Ok(page)) => ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response(),
        _ => defect(),
    }
}

pub(super) fn write(processes: &[ProcessView], line: &str, history: &History) -> Result<String, fmt::Error> {
    let mut page = String::new();
    write!(
        page,
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>jjleak</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><style>{STYLE}</style></head><body>\
         <h1>jjleak</h1><p>{}</p>",
        escaped(line)
    )?;
    if let (_, Some(trouble)) = history.trouble() {
        write!(page, "<p class=\"bad\">Profiles cannot be kept: {}</p>", escaped(trouble))?;
    }
    page.push_str(
        "<h2>Processes</h2><table><thead><tr><th>Process</th><th>Resident</th><th>Over time</th><th>State</th>\
         <th>Found</th></tr></thead><tbody>",
    );
    for process in processes {
        row(process, &mut page)?;
    }
    page.push_str(
        "</tbody></table><h2>Profiles</h2><table><thead><tr><th>Time</th><th>Process</th><th>Verdict</th>\
         <th></th></tr></thead><tbody>",
    );
    for entry in history.entries().rev().take(MAX_PROFILES) {
        kept(entry, &mut page)?;
    }
    page.push_str(
        "</tbody></table><p><a href=\"/metrics\">metrics</a> · <a href=\"/api/v1/openapi.json\">interface for programs</a></p>\
         </body></html>",
    );
    Ok(page)
}

fn row(process: &ProcessView, page: &mut String) -> fmt::Result {
    let ProcessView { pid, comm, resident_bytes, state, .. } = process;
    write!(page, "<tr><td>{} <small>pid {pid}</small>", escaped(comm))?;
    if let Some(command_line) = &process.command_line {
        write!(page, "<br><small>{}</small>", escaped(command_line))?;
    }
    write!(page, "</td><td class=\"n\">{}</td><td>", bytes(*resident_bytes))?;
    curve(&process.history, page)?;
    let why = process.why.as_deref().map(|why| format!(": {}", escaped(why))).unwrap_or_default();
    write!(page, "</td><td>{}{why}</td><td>", state.replace('_', "-"))?;
    if let Some(finding) = &process.finding {
        let class = if finding.leaking > 0 { " class=\"bad\"" } else { "" };
        write!(page, "<span{class}>{}</span>", escaped(&finding.verdict))?;
        if let Some(id) = &finding.profile {
            page.push(' ');
            links(id, page)?;
        }
    }
    page.push_str("</td></tr>");
    Ok(())
}

fn kept(entry: &Entry, page: &mut String) -> fmt::Result {
    let class = if entry.leaking.is_empty() { "" } else { " class=\"bad\"" };
    write!(
        page,
        "<tr><td>{}</td><td>{} <small>pid {}</small></td><td{class}>{}</td><td>",
        escaped(&entry.time.to_string()),
        escaped(&entry.comm),
        entry.pid,
        escaped(&entry.verdict)
    )?;
    links(&entry.id.to_string(), page)?;
    page.push_str("</td></tr>");
    Ok(())
}

fn links(id: &str, page: &mut String) -> fmt::Result {
    let id = escaped(id);
    write!(
        page,
        "<a href=\"/profiles/{id}/report.html\">report</a> <a href=\"/profiles/{id}/flame.svg\">flame&nbsp;graph</a> \
         <a href=\"/profiles/{id}/profile.pb.gz\">pprof</a>"
    )
}

/// The course of a process's memory, from nothing at the bottom to the most at the top.
fn curve(points: &[(f64, f64)], page: &mut String) -> fmt::Result {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Ok(()) };
    let most = points.iter().map(|point| point.1).fold(1., f64::max);
    let span = (last.0 - first.0).max(1.);
    write!(
        page,
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"memory over time\"><polyline points=\""
    )?;
    for (time, bytes) in points {
        write!(page, "{:.1},{:.1} ", (time - first.0) / span * WIDTH, HEIGHT - bytes / most * HEIGHT)?;
    }
    page.push_str("\"/></svg>");
    Ok(())
}

fn bytes(bytes: u64) -> String {
    humane_bytes(bytes).unwrap_or_else(|| format!("{bytes} bytes"))
}
