//! Web page with processes, findings and profiles. It needs no script.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::Served;
use super::profiles::{blocking, error_response, internal_error, parse};
use super::view::{FindingView, ProcessView, processes};
use crate::daemon::dumps::{Dumped, Source, lock};
use crate::daemon::history::{Entry, Error, History};
use crate::profile::{Rate, SourceKind};
use crate::render::{humane_bytes, pace, percent, printable};

/// Maximum number of series on the page; the API has all.
const MAX_PROFILES: usize = 50;
/// Maximum number of profiles on the page of a series.
const MAX_SERIES: usize = 1000;
/// Size of a memory graph.
const WIDTH: f64 = 160.;
const HEIGHT: f64 = 28.;

const STYLE: &str = include_str!("page.css");

/// Contents of the page.
pub(super) struct Contents {
    /// Summary of the daemon in one line.
    pub(super) line: String,
    pub(super) processes: Vec<ProcessView>,
    /// Reason why profiles cannot be stored, if they cannot.
    pub(super) storage_error: Option<String>,
    /// Sources of heap profiles that programs write themselves, by name.
    pub(super) dumps: BTreeMap<String, Source>,
    /// The last profile of each series, latest first, and the length of the series.
    pub(super) profiles: Vec<(Entry, usize)>,
}

pub(super) async fn page(State(served): State<Served>) -> Response {
    let page = blocking(&served, |served| {
        let processes = processes(&served);
        let line = served.shared.core().describe();
        let dumps = lock(&served.shared.dumps).clone();
        // Release the history before rendering.
        let (storage_error, profiles) = {
            let history = served.shared.history();
            (history.last_error().1.map(str::to_owned), series(&history))
        };
        write(&Contents { line, processes, storage_error, dumps, profiles })
    });
    page.await.map_or_else(internal_error, IntoResponse::into_response)
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
        Some(Ok(page)) => page.into_response(),
        Some(Err(error)) => error_response(&error),
        None => internal_error(),
    }
}

/// Profiles are listed latest first.
fn write_series(series: &[Entry]) -> Markup {
    let of = series.first().map(|last| format!("{} (pid {})", last.comm, last.pid)).unwrap_or_default();
    let profiles = series.iter().take(MAX_SERIES).map(|entry| (entry, None));
    let body = html! {
        (table_of_profiles(profiles))
        @if series.len() > MAX_SERIES {
            p.none { "The latest " (MAX_SERIES) " profiles; there are more." }
        }
        footer { a href="/" { "all processes" } }
    };
    document(&format!("Series of profiles of {of}"), &body)
}

/// A page with this line below its title.
fn document(line: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "jjleak" }
                meta name="viewport" content="width=device-width, initial-scale=1";
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { h1 { "jjleak" } p { (printable(line)) } }
                (body)
            }
        }
    }
}

pub(super) fn write(contents: &Contents) -> Markup {
    let profiles = contents.profiles.iter().map(|(entry, count)| (entry, Some(*count)));
    let body = html! {
        @if let Some(storage_error) = &contents.storage_error {
            p.bad { "Cannot store profiles: " (printable(storage_error)) }
        }
        h2 { "Processes" }
        @if contents.processes.is_empty() {
            p.none { "No process matches [watch] in the configuration." }
        } @else {
            (table_of_processes(&contents.processes))
        }
        @if !contents.dumps.is_empty() {
            h2 { "Heap profiles" }
            (table_of_dumps(&contents.dumps))
        }
        h2 { "Profiles" }
        @if contents.profiles.is_empty() {
            p.none { "No process has been profiled yet." }
        } @else {
            (table_of_profiles(profiles))
        }
        footer { a href="/metrics" { "metrics" } " " a href="/api/v1/openapi.json" { "API" } }
    };
    document(&contents.line, &body)
}

/// Table of heap profiles, each process in its row, and a row for a source without any.
fn table_of_dumps(sources: &BTreeMap<String, Source>) -> Markup {
    html! {
        table #dumps {
            thead { tr { th { "Source" } th { "Process" } th.n { "Live" } th { "Verdict" } th { "Open" } } }
            tbody {
                @for (from, source) in sources {
                    @if source.processes.is_empty() || source.error.is_some() {
                        tr {
                            td { (printable(from)) }
                            td.bad colspan="4" {
                                @match &source.error {
                                    Some(error) => (printable(error)),
                                    None => "no heap profile yet",
                                }
                            }
                        }
                    }
                    @for dumped in source.processes.values() { (dump(from, dumped)) }
                }
            }
        }
    }
}

fn dump(from: &str, dumped: &Dumped) -> Markup {
    html! {
        tr {
            td { (printable(from)) br; small { (time(dumped.time)) } }
            td { b { (printable(&dumped.name())) } }
            td.n data-is="live " { (bytes(dumped.live_bytes)) }
            td class=[(dumped.leaking > 0).then_some("bad")] {
                (printable(&dumped.verdict))
                @for site in &dumped.leaking_sites { br; small { (printable(site)) } }
            }
            td { @if let Some(id) = &dumped.profile { (links(&id.to_string())) } }
        }
    }
}

fn table_of_processes(processes: &[ProcessView]) -> Markup {
    html! {
        table #processes {
            thead {
                tr {
                    th { "Process" }
                    th.n { "Resident" }
                    th {
                        "Over time "
                        small {
                            span.of-resident { "resident" } ", " span.of-live { "profiled\u{a0}live" }
                        }
                    }
                    th { "Limit" } th { "State" } th { "Found" }
                }
            }
            tbody { @for process in processes { (row(process)) } }
        }
    }
}

fn row(process: &ProcessView) -> Markup {
    let ProcessView { pid, comm, resident_bytes, state, growth_bytes_per_s: growth, .. } = process;
    html! {
        tr {
            td {
                b { (printable(comm)) } " " small.one { "pid " (pid) }
                @if let Some(line) = &process.command_line { br; small.command { (printable(line)) } }
            }
            td.n data-is="resident " {
                (bytes(*resident_bytes))
                @if *growth > 0. {
                    br;
                    small { (pace(Rate { per_second: *growth, low: *growth, high: *growth })) }
                }
            }
            td { (curves(process)) }
            td { (limit(process)) }
            td {
                span.state.(state) { (state.replace('_', "-")) }
                @if let Some(why) = &process.why { br; small { (printable(why)) } }
            }
            td {
                @if let Some(finding) = &process.finding { (found(finding)) }
                @for other in process.java_heap.iter().chain(&process.growth) {
                    p {
                        (printable(&other.summary))
                        @if let Some(id) = &other.profile { br; (links(id)) }
                    }
                }
            }
        }
    }
}

fn found(finding: &FindingView) -> Markup {
    html! {
        span class=[(finding.leaking > 0).then_some("bad")] { (printable(&finding.verdict)) }
        br;
        small {
            "live in the last profile: "
            @if finding.estimate.is_some() { "about " }
            (bytes(finding.live_bytes))
        }
        @if let Some(id) = &finding.profile { br; (links(id)) }
    }
}

/// Used share of the memory limit.
fn limit(process: &ProcessView) -> Markup {
    let (Some(limit), Some(left)) = (process.limit_bytes, process.available_bytes) else {
        return Markup::default();
    };
    let taken = format!("{:.0}", percent(limit.saturating_sub(left), limit));
    let of = if process.limit_of == Some("cgroup") { "control group" } else { "machine" };
    html! {
        meter min="0" max="100" high="90" value=(taken) {}
        br;
        small.one { (taken) " % of " (bytes(limit)) ", " (of) }
    }
}

/// Table of profiles, each with the length of its series if it represents one.
fn table_of_profiles<'a>(profiles: impl Iterator<Item = (&'a Entry, Option<usize>)>) -> Markup {
    html! {
        table #profiles {
            thead {
                tr {
                    th { "Time" } th { "Process" } th.n { "Live" } th { "Why" } th { "Verdict" } th { "Open" }
                }
            }
            tbody { @for (entry, count) in profiles { (kept(entry, count)) } }
        }
    }
}

/// Row of a profile.
fn kept(entry: &Entry, count: Option<usize>) -> Markup {
    html! {
        tr {
            td.t {
                (time(entry.time))
                @if let Some(count) = count { br; small { (snapshots_of(entry, count)) } }
            }
            td {
                b { (printable(&entry.comm)) }
                // A heap profile of another tool need not say.
                @if entry.pid != 0 { " " small.one { "pid " (entry.pid) } }
            }
            td.n data-is="live " {
                @if entry.source() != SourceKind::JavaHeap {
                    @if entry.estimate.is_some() { "about " }
                    (bytes(entry.live_bytes))
                }
            }
            td { (printable(&entry.why)) }
            td class=[(!entry.leaking.is_empty()).then_some("bad")] {
                (printable(&entry.verdict))
                @for site in &entry.leaking { br; small { (printable(site)) } }
            }
            td { (links(&entry.id.to_string())) }
        }
    }
}

/// Length of the series of a profile, with a link if there are others.
fn snapshots_of(entry: &Entry, count: usize) -> Markup {
    html! {
        @if count == 1 {
            "1 snapshot"
        } @else {
            a href={ "/profiles/" (entry.id) "/series" } { (count) " snapshots" }
        }
    }
}

fn links(id: &str) -> Markup {
    html! {
        a href={ "/profiles/" (id) "/report.html" } { "report" } " "
        a href={ "/profiles/" (id) "/flame.svg" } { "flame\u{a0}graph" } " "
        a href={ "/profiles/" (id) "/profile.pb.gz" } { "pprof" }
    }
}

/// Draws resident memory over time, and the live bytes of profiles, on a common scale from zero.
fn curves(process: &ProcessView) -> Markup {
    let resident = &process.history;
    #[expect(clippy::cast_precision_loss, reason = "memory is less than 2^53 bytes")]
    let live: Vec<_> = process.live_history.iter().map(|(at, bytes)| (*at, *bytes as f64)).collect();
    let times = || resident.iter().chain(&live).map(|point| point.0);
    let (first, last) = (times().fold(f64::INFINITY, f64::min), times().fold(f64::NEG_INFINITY, f64::max));
    if resident.len() < 2 {
        return Markup::default();
    }
    let most = resident.iter().chain(&live).map(|point| point.1).fold(1., f64::max);
    let span = (last - first).max(1.);
    let place = |(time, bytes): &(f64, f64)| {
        let (x, y) = ((time - first) / span * (WIDTH - 4.) + 2., (1. - bytes / most) * (HEIGHT - 4.) + 2.);
        format!("{x:.1},{y:.1}")
    };
    html! {
        svg width=(WIDTH) height=(HEIGHT) role="img" aria-label="memory over time" {
            title { "resident memory, and live bytes allocated while profiled" }
            @for (class, points) in [("resident", resident), ("live", &live)] {
                polyline.(class) points=(points.iter().map(place).collect::<Vec<_>>().join(" ")) {}
            }
        }
    }
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
        Contents {
            line: String::new(),
            processes: Vec::new(),
            storage_error: None,
            dumps: BTreeMap::new(),
            profiles: Vec::new(),
        }
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
            let page = write_series(&vec![entry.clone(); count]).into_string();
            (page.matches("flame.svg").count(), page.contains("there are more"))
        };
        assert_eq!([1000, 1001].map(rows), [(1000, false), (1000, true)]);
    }

    #[test]
    fn an_empty_page_says_so() {
        let page = write(&contents()).into_string();
        assert!(
            page.contains("No process matches [watch]") && page.contains("No process has been profiled yet"),
            "{page}"
        );
        let storage_error = Some("<disk> full".to_owned());
        let page = write(&Contents { storage_error, ..contents() }).into_string();
        assert!(page.contains("Cannot store profiles: &lt;disk&gt; full"), "{page}");
    }
}
