//! Renders profiles in formats for people and tools. Pure: equal profiles give equal bytes.
//!
//! In: a [`Profile`], and its ranking by [`crate::analyze`]. Out: the bytes of a report, for [`crate::store`] or the terminal.

use std::fmt;
use std::io;
use std::str::FromStr;

use jiff::tz::TimeZone;

use crate::analyze::{Rules, Selection};
use crate::pprof;
use crate::profile::{Coverage, Profile, Sampling, SourceKind, Totals};

mod advice;
mod collapsed;
mod cost;
mod counters;
pub mod difference;
mod dot;
mod findings;
mod fold;
mod html;
pub mod json;
mod label;
mod listing;
mod marks;
mod objects;
#[cfg(test)]
pub(crate) mod sample;
mod short;
mod stack_summary;
mod svg;
mod text;
mod threads;
mod tree;
mod units;
mod verdicts;
pub(crate) mod words;

pub(crate) use cost::share_in_words;
pub(crate) use counters::losses;
pub use difference::render_difference;
pub use dot::GraphLimits;
pub use findings::{headline, leaks};
pub(crate) use html::plain_page;
pub(crate) use label::{NO_STACK, label, module, printable};
pub use listing::{ListedFunction, listed_functions, listing};
pub use stack_summary::in_short;
pub(crate) use svg::frame_color;
pub(crate) use threads::ThreadShares;
pub(crate) use units::{duration, grouped, humane_bytes, percent};
pub(crate) use verdicts::approximate;
pub use verdicts::{evidence, pace, site};

/// Producer of a report, for formats with such a field.
pub(crate) const TOOL: &str = concat!("jjleak ", env!("CARGO_PKG_VERSION"));

/// Basis of estimated figures, as text; `None` if they are exact.
pub(crate) fn estimated_from(coverage: &Coverage) -> Option<String> {
    if coverage.source == SourceKind::JavaHeap {
        let of = "one object for each new buffer of a thread, and all outside of buffers";
        return Some(match coverage.sampling {
            Sampling::Bytes(bytes) => format!("{of}; of these, one in {}", approximate(bytes)),
            Sampling::Rate(rate) => format!("{of}; of these, one in {rate}"),
            Sampling::Off | Sampling::Announced => of.to_owned(),
        });
    }
    match (coverage.sampling, coverage.windows) {
        (Sampling::Rate(rate), _) => Some(format!("one allocation in {rate}")),
        (Sampling::Bytes(bytes), _) => Some(format!("one allocation in {bytes} bytes")),
        (Sampling::Announced, _) => Some("samples that the program draws itself".to_owned()),
        (Sampling::Off, Some(windows)) => Some(format!("{} windows of time", windows.windows)),
        (Sampling::Off, None) => None,
    }
}

/// Name of the live figures: they are what was allocated if live memory is unknown.
pub(crate) fn live_or_allocated(coverage: &Coverage) -> &'static str {
    if coverage.knows_live() { words::words(coverage.source).live } else { "allocated" }
}

/// Reason why live memory is unknown, with a remedy; `None` if it is known.
pub(crate) fn live_unknown(coverage: &Coverage) -> Option<String> {
    let windows = coverage.windows.filter(|_| !coverage.knows_live())?;
    if windows.follows_frees {
        let why = "figures have just started over, and no window of time has been counted since";
        return Some(format!("live memory is unknown: {why} (to do: wait longer)"));
    }
    let remedy = match windows.needed_percent {
        None => "a higher --max-overhead, or --sample-bytes".to_owned(),
        Some(percent) => format!("--max-overhead {percent}, or --sample-bytes"),
    };
    Some(format!(
        "live memory is unknown: following all frees costs more than --max-overhead allows (to do: {remedy})"
    ))
}

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text for terminals: the lines of bcc's memleak, with more information.
    Text,
    /// One JSON document on one line.
    Json,
    /// A flame graph of live memory.
    Svg,
    /// A self-contained page with everything.
    Html,
    /// A gzip-compressed pprof profile.
    Pprof,
    /// Collapsed stacks for flame graph tools, a line for each live stack.
    Collapsed,
    /// A call graph in the language of Graphviz.
    Dot,
    /// The same as SVG, drawn by Graphviz.
    Graph,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 8] =
        [Self::Text, Self::Json, Self::Svg, Self::Html, Self::Pprof, Self::Collapsed, Self::Dot, Self::Graph];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Svg => "svg",
            Self::Html => "html",
            Self::Pprof => "pprof",
            Self::Collapsed => "collapsed",
            Self::Dot => "dot",
            Self::Graph => "graph",
        }
    }

    /// The names of all formats, for help texts and errors.
    #[must_use]
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Extension of file names, without the leading dot.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Text => "txt",
            Self::Json => "json",
            Self::Svg => "svg",
            Self::Html => "html",
            Self::Pprof => "pb.gz",
            Self::Collapsed => "collapsed",
            Self::Dot => "dot",
            Self::Graph => "graph.svg",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}

/// A name that no [`Format`] has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown format `{0}`: it must be one of {names}", names = Format::names())]
pub struct UnknownFormat(String);

/// Measure for the width of frames in flame graphs and the figures of collapsed stacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Value {
    /// Live bytes.
    #[default]
    Bytes,
    /// Live objects.
    Objects,
}

impl Value {
    /// Name of the unit.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Objects => "objects",
        }
    }

    /// The value in these totals.
    #[must_use]
    pub const fn of(self, totals: Totals) -> u64 {
        match self {
            Self::Bytes => totals.bytes,
            Self::Objects => totals.objects,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Value {
    type Err = UnknownValue;

    fn from_str(name: &str) -> Result<Self, UnknownValue> {
        [Self::Bytes, Self::Objects]
            .into_iter()
            .find(|value| value.name() == name)
            .ok_or_else(|| UnknownValue(name.to_owned()))
    }
}

/// A name that no [`Value`] has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown value `{0}`: flame graphs show bytes or objects")]
pub struct UnknownValue(String);

/// Contents of text reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents {
    /// True for verdicts, which come first.
    pub verdicts: bool,
    /// True for the stacks with outstanding allocations, with the wording of bcc's memleak. They are always included without
    /// verdicts, or if it is too early for them.
    pub outstanding: bool,
}

impl Default for Contents {
    fn default() -> Self {
        Self { verdicts: true, outstanding: false }
    }
}

/// Options of rendering.
#[derive(Debug, Clone)]
pub struct Options {
    /// Contents of text reports.
    pub contents: Contents,
    /// Order of stacks; text shows only the top ones.
    pub selection: Selection,
    /// Measure of SVG and collapsed stacks.
    pub value: Value,
    /// Time zone of the reader, for text and SVG.
    pub time_zone: TimeZone,
    /// True for every detail of verdicts and stacks in text; otherwise, a report fits on a screen.
    pub full: bool,
    /// Which frames are the application's, for findings.
    pub rules: Rules,
    /// True to start flame graphs and collapsed stacks at the allocation function and merge its callers.
    pub inverted: bool,
    /// Limits of the size of call graphs.
    pub graph: GraphLimits,
    /// The shown part of the profile, as text; empty if everything is shown.
    pub view: String,
}

/// A profile that could not be rendered.
#[derive(Debug, thiserror::Error)]
#[error("cannot render the profile of process {pid} as {format}")]
pub struct Error {
    pid: u32,
    format: Format,
    source: io::Error,
}

/// Renders the profile into memory.
pub fn render(profile: &Profile, format: Format, options: &Options) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    render_to(profile, format, options, &mut out)?;
    Ok(out)
}

/// Renders the profile. Text, JSON and collapsed stacks are written piece by piece.
pub fn render_to(
    profile: &Profile,
    format: Format,
    options: &Options,
    out: &mut impl io::Write,
) -> Result<(), Error> {
    match format {
        Format::Text => text::write(profile, options, out),
        Format::Json => json::write(profile, options, out),
        Format::Svg => svg::write(profile, options, out),
        Format::Html => html::write(profile, options, out),
        Format::Pprof => pprof::write(profile, out),
        Format::Collapsed => collapsed::write(profile, options, out),
        // Graphviz draws the second one later.
        Format::Dot | Format::Graph => dot::write(profile, options, out),
    }
    .map_err(|source| Error { pid: profile.process.pid, format, source })
}

#[cfg(test)]
mod tests {
    use crate::profile::InWindows;

    use super::*;

    #[test]
    fn every_format_is_read_by_its_name_and_renders_equal_profiles_equally() {
        let options = sample::options();
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
            let rendered = render(&sample::profile(), format, &options).unwrap();
            assert!(!rendered.is_empty(), "{format}");
            assert_eq!(rendered, render(&sample::profile(), format, &options).unwrap(), "{format}");
        }
        assert_eq!("png".parse::<Format>(), Err(UnknownFormat("png".to_owned())));
    }

    #[test]
    fn figures_that_have_just_started_over_have_no_error_and_live_memory_is_unknown() {
        let mut profile = sample::profile();
        let windows = |windows| InWindows { windows, follows_frees: true, ..InWindows::default() };
        profile.coverage.windows = Some(windows(0));
        assert_eq!((profile.live_error(), profile.allocated_error()), (None, None));
        let why = live_unknown(&profile.coverage).unwrap();
        assert!(why.contains("started over"), "{why}");

        profile.coverage.windows = Some(windows(1));
        assert!(profile.live_error().is_some() && profile.allocated_error().is_some());
        assert_eq!(live_unknown(&profile.coverage), None);
    }
}
