//! Web page with processes, findings and profiles. It needs no script.

use std::fmt::{self, Write};

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::Served;
use super::profiles::{blocking, error_response, internal_error, parse};
use super::view::{FindingView, ProcessView, processes};
use crate::daemon::history::{Entry, Error, History};
use crate::profile::Rate;
use crate::render::{escaped, humane_bytes, pace, percent};

/// Maximum number of series on the page; the API has all.
const MAX_PROFILES: usize = 50;
/// Maximum number of profiles on the page of a series.
const MAX_SERIES: usize = 1000;
/// Size of a memory graph.
const WIDTH: f64 = 160.;
const HEIGHT: f64 = 28.;

const STYLE: &str = include_str!("page.css");
const HTML: &str = "text/html; charset=utf-8";
/// Head of a table of profiles.
const PROFILES: &str = "<table id=\"profiles\"><thead><tr><th>Time</th><th>Process</th><th class=\"n\">Live</th><th>Why</th>\
                        <th>Verdict</th><th>Open</th></tr></thead><tbody>";

/// Contents of the page.
pub(super) struct Contents {
    /// Summary of the daemon in one line.
    pub(super) line: String,
    pub(super) processes: Vec<ProcessView>,
    /// Reason why profiles cannot be stored, if they cannot.
    pub(super) storage_error: Option<String>,
    /// The last profile of each series, latest first, and the length of the series.
    pub(super) profiles: Vec<(Entry, usize)>,
}

pub(super) async fn page(State(served): State<Served>) -> Response {
    let page = blocking(&served, |served| {
        let processes = processes(&served.shared);
        let line = served.shared.core().describe();
        // Release the history before rendering.
        let (storage_error, profiles) = {
            let history = served.shared.history();
            (history.last_error().1.map(str::to_owned), series(&history))
        };
        write(&Contents { line, processes, storage_error, profiles })
    });
    match page.await {
        Some(Ok(page)) => ([(header::CONTENT_TYPE, HTML)], page).into_response(),
        _ => internal_error(),
    }
}

/// Series of profiles, each from one run.
pub(super) fn series(history: &History) -> Vec<(Entry, usize)> {
    let mut series: Vec<(Entry, usize)> = Vec::new();
    for entry in history.entries().rev() {
        match series.iter().position(|(last, _)| last.is_same_series(entry)) {
            Some(known) => series[known].1 += 1,
            None if series.len() == MAX_PROFILES => break,
            None => series.push((entry.clone(), 1)),
        }
    }
    series
}

/// Page with the profiles of one series.
pub(super) async fn snapshots(State(served): State<Served>, Path(id): Path<String>) -> Response {
    let page = blocking(&served, move |served| {
        let id = parse(&id)?;
        let history = served.shared.history();
        let of = history.get(&id).ok_or(Error::Unknown(id))?;
        let series: Vec<_> = history
            .entries()
            .rev()
            .filter(|entry| entry.is_same_series(of))
            .take(MAX_SERIES + 1)
            .cloned()
            .collect();
        drop(history);
        Ok(write_series(&series))
    });
    match page.await {
        Some(Ok(Ok(page))) => ([(header::CONTENT_TYPE, HTML)], page).into_response(),
        Some(Err(error)) => error_response(&error),
        Some(Ok(Err(_))) | None => internal_error(),
    }
}

/// Profiles are listed latest first.
fn write_series(series: &[Entry]) -> Result<String, fmt::Error> {
    let mut page = String::new();
    let of = series.first().map(|last| format!("{} (pid {})", last.comm, last.pid)).unwrap_or_default();
    head(&format!("Series of profiles of {of}"), &mut page)?;
    page.push_str(PROFILES);
    series.iter().take(MAX_SERIES).try_for_each(|entry| kept(entry, None, &mut page))?;
    page.push_str("</tbody></table>");
    if series.len() > MAX_SERIES {
        write!(page, "<p class=\"none\">The latest {MAX_SERIES} profiles; there are more.</p>")?;
    }
    page.push_str("<footer><a href=\"/\">all processes</a></footer></body></html>");
    Ok(page)
}

/// Writes the beginning of a page.
fn head(line: &str, page: &mut String) -> fmt::Result {
    write!(
        page,
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>jjleak</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><link rel=\"icon\" href=\"data:,\">\
         <style>{STYLE}</style></head><body><header><h1>jjleak</h1><p>{}</p></header>",
        escaped(line)
    )
}

pub(super) fn write(contents: &Contents) -> Result<String, fmt::Error> {
    let mut page = String::new();
    head(&contents.line, &mut page)?;
    if let Some(storage_error) = &contents.storage_error {
        write!(page, "<p class=\"bad\">Cannot store profiles: {}</p>", escaped(storage_error))?;
    }
    page.push_str("<h2>Processes</h2>");
    if contents.processes.is_empty() {
        page.push_str("<p class=\"none\">No process matches [watch] in the configuration.</p>");
    } else {
        page.push_str(
            "<table id=\"processes\"><thead><tr><th>Process</th><th class=\"n\">Resident</th><th>Over time \
             <small><span class=\"of-resident\">resident</span>, <span class=\"of-live\">profiled&nbsp;live</span></small></th><th>Limit</th>\
             <th>State</th><th>Found</th></tr></thead><tbody>",
        );
        contents.processes.iter().try_for_each(|process| row(process, &mut page))?;
        page.push_str("</tbody></table>");
    }
    page.push_str("<h2>Profiles</h2>");
    if contents.profiles.is_empty() {
        page.push_str("<p class=\"none\">No process has been profiled yet.</p>");
    } else {
        page.push_str(PROFILES);
        contents.profiles.iter().try_for_each(|(entry, count)| kept(entry, Some(*count), &mut page))?;
        page.push_str("</tbody></table>");
    }
    page.push_str(
        "<footer><a href=\"/metrics\">metrics</a> <a href=\"/api/v1/openapi.json\">API</a></footer>\
         </body></html>",
    );
    Ok(page)
}

fn row(process: &ProcessView, page: &mut String) -> fmt::Result {
    let ProcessView { pid, comm, resident_bytes, state, growth_bytes_per_s: growth, .. } = process;
    write!(page, "<tr><td><b>{}</b> <small class=\"one\">pid {pid}</small>", escaped(comm))?;
    if let Some(command_line) = &process.command_line {
        write!(page, "<br><small class=\"command\">{}</small>", escaped(command_line))?;
    }
    write!(page, "</td><td class=\"n\">{}", bytes(*resident_bytes))?;
    if *growth > 0. {
        let rate = Rate { per_second: *growth, low: *growth, high: *growth };
        write!(page, "<br><small>{}</small>", escaped(&pace(rate)))?;
    }
    page.push_str("</td><td>");
    curves(process, page)?;
    page.push_str("</td><td>");
    limit(process, page)?;
    write!(page, "</td><td><span class=\"state {state}\">{}</span>", state.replace('_', "-"))?;
    if let Some(why) = &process.why {
        write!(page, "<br><small>{}</small>", escaped(why))?;
    }
    page.push_str("</td><td>");
    if let Some(finding) = &process.finding {
        found(finding, page)?;
    }
    page.push_str("</td></tr>");
    Ok(())
}

fn found(finding: &FindingView, page: &mut String) -> fmt::Result {
    let class = if finding.leaking > 0 { " class=\"bad\"" } else { "" };
    let about = if finding.estimate.is_some() { "about " } else { "" };
    write!(
        page,
        "<span{class}>{}</span><br><small>live in the last profile: {about}{}</small>",
        escaped(&finding.verdict),
        bytes(finding.live_bytes)
    )?;
    if let Some(id) = &finding.profile {
        page.push_str("<br>");
        links(id, page)?;
    }
    Ok(())
}

/// Writes how much of which limit is used.
fn limit(process: &ProcessView, page: &mut String) -> fmt::Result {
    let (Some(limit), Some(left)) = (process.limit_bytes, process.available_bytes) else { return Ok(()) };
    let taken = percent(limit.saturating_sub(left), limit);
    let of = if process.limit_of == Some("cgroup") { "control group" } else { "machine" };
    write!(
        page,
        "<meter min=\"0\" max=\"100\" high=\"90\" value=\"{taken:.0}\"></meter><br><small class=\"one\">{taken:.0} % of {}, {of}</small>",
        bytes(limit)
    )
}

/// Writes the row of a profile, with the length of its series if it stands for one.
fn kept(entry: &Entry, count: Option<usize>, page: &mut String) -> fmt::Result {
    let class = if entry.leaking.is_empty() { "" } else { " class=\"bad\"" };
    let snapshots = match count {
        None => String::new(),
        Some(1) => "<br><small>1 snapshot</small>".to_owned(),
        Some(count) => {
            format!("<br><small><a href=\"/profiles/{}/series\">{count} snapshots</a></small>", entry.id)
        }
    };
    let about = if entry.estimate.is_some() { "about " } else { "" };
    write!(
        page,
        "<tr><td class=\"t\">{}{snapshots}</td><td><b>{}</b> <small class=\"one\">pid {}</small></td>\
         <td class=\"n\">{about}{}</td><td>{}</td><td{class}>{}",
        time(entry.time),
        escaped(&entry.comm),
        entry.pid,
        bytes(entry.live_bytes),
        escaped(&entry.why),
        escaped(&entry.verdict)
    )?;
    for site in &entry.leaking {
        write!(page, "<br><small>{}</small>", escaped(site))?;
    }
    page.push_str("</td><td>");
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

/// Draws resident memory over time, and the live bytes of profiles, on a common scale from zero.
fn curves(process: &ProcessView, page: &mut String) -> fmt::Result {
    let resident = &process.history;
    #[expect(clippy::cast_precision_loss, reason = "memory is less than 2^53 bytes")]
    let live: Vec<_> = process.live_history.iter().map(|(at, bytes)| (*at, *bytes as f64)).collect();
    let times = || resident.iter().chain(&live).map(|point| point.0);
    let (first, last) = (times().fold(f64::INFINITY, f64::min), times().fold(f64::NEG_INFINITY, f64::max));
    if resident.len() < 2 {
        return Ok(());
    }
    let most = resident.iter().chain(&live).map(|point| point.1).fold(1., f64::max);
    let span = (last - first).max(1.);
    write!(
        page,
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"memory over time\">\
         <title>resident memory, and live bytes allocated while profiled</title>"
    )?;
    for (class, points) in [("resident", resident), ("live", &live)] {
        write!(page, "<polyline class=\"{class}\" points=\"")?;
        for (time, bytes) in points {
            let (x, y) =
                ((time - first) / span * (WIDTH - 4.) + 2., (1. - bytes / most) * (HEIGHT - 4.) + 2.);
            write!(page, "{x:.1},{y:.1} ")?;
        }
        page.push_str("\"/>");
    }
    page.push_str("</svg>");
    Ok(())
}

/// Local time to the second.
fn time(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

fn bytes(bytes: u64) -> String {
    humane_bytes(bytes).unwrap_or_else(|| format!("{bytes} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::history::Id;
    use crate::render::sample;

    fn contents() -> Contents {
        Contents { line: String::new(), processes: Vec::new(), storage_error: None, profiles: Vec::new() }
    }

    #[test]
    fn each_series_is_one_row() {
        let folder = tempfile::tempdir().unwrap();
        let (mut history, _) = History::open(folder.path()).unwrap();
        let mut keep = |began: i64, taken: i64| {
            let mut profile = sample::profile();
            profile.started_at = Timestamp::from_millisecond(began * 1000 + taken % 7).unwrap();
            profile.taken_at = Timestamp::from_second(taken).unwrap();
            history.keep(&profile, Entry::of(Id::of(&profile), &profile, "a test"), b"").unwrap();
        };
        for (began, taken) in [(100, 110), (100, 120), (200, 210)] {
            keep(began, taken);
        }
        let rows: Vec<_> =
            series(&history).into_iter().map(|(last, count)| (last.time.as_second(), count)).collect();
        assert_eq!(rows, [(210, 1), (120, 2)]);
    }

    #[test]
    fn a_long_series_lists_the_latest_and_says_that_there_are_more() {
        let profile = sample::profile();
        let entry = Entry::of(Id::of(&profile), &profile, "a test");
        let rows = |count| {
            let page = write_series(&vec![entry.clone(); count]).unwrap();
            (page.matches("flame.svg").count(), page.contains("there are more"))
        };
        assert_eq!([1000, 1001].map(rows), [(1000, false), (1000, true)]);
    }

    #[test]
    fn an_empty_page_says_so() {
        let page = write(&contents()).unwrap();
        assert!(
            page.contains("No process matches [watch]") && page.contains("No process has been profiled yet"),
            "{page}"
        );
        let storage_error = Some("<disk> full".to_owned());
        let page = write(&Contents { storage_error, ..contents() }).unwrap();
        assert!(page.contains("Cannot store profiles: &lt;disk&gt; full"), "{page}");
    }
}
