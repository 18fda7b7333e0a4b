//! Output options of a run, of `top`, and of the commands that show saved profiles.

use std::path::{Path, PathBuf};

use clap::builder::Str;
use regex::Regex;

use crate::analyze::{Rules, Selection, SortBy};
use crate::profile::Profile;
use crate::render::{Contents, Format, GraphLimits, Options, Value};
use crate::reports::OutputPlan;

/// Number of stacks, and of verdicts, in text reports: as many as fit on a screen or two.
const TOP: usize = 10;

/// Additional help text of `--format`.
const FORMAT_NOTE: &str = "Text goes to stdout at every interval, and so does json unless --out is given; the other formats \
    are files written at the end.";

/// Additional help text of `--format` for saved profiles.
const SAVED_FORMAT_NOTE: &str =
    "Text goes to stdout, and so does json unless --out is given; the other formats are files.";

/// Output formats, files, and values.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct OutputArgs {
    /// Number of stacks or verdicts in text reports [default: 10]
    #[arg(short = 'T', long, value_name = "N")]
    pub(super) top: Option<usize>,

    #[arg(help = format_help(), long_help = format!("{}\n\n{FORMAT_NOTE}", format_help()))]
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', default_values_t = [Format::Text, Format::Svg])]
    pub(super) format: Vec<Format>,

    /// Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe, or - for stdout [default: ./jjleak-PID.*]
    #[arg(long, value_name = "PATH")]
    pub(super) out: Option<PathBuf>,

    /// Smallest share of all memory of a function in call graphs (--format dot) [default: 0.005]
    #[arg(long, value_name = "SHARE", value_parser = parse_share, help_heading = "Call graphs")]
    nodefraction: Option<f64>,

    /// Smallest share of all memory of a call in call graphs [default: 0.001]
    #[arg(long, value_name = "SHARE", value_parser = parse_share, help_heading = "Call graphs")]
    edgefraction: Option<f64>,

    /// Maximum number of functions in call graphs [default: 80]
    #[arg(long, value_name = "N", help_heading = "Call graphs")]
    maxnodes: Option<usize>,

    /// Values in flame graphs, call graphs and collapsed stacks: bytes, objects, or both [default: bytes]
    #[arg(long, value_name = "VALUES", value_delimiter = ',')]
    by: Vec<Value>,
}

impl OutputArgs {
    /// The outputs; `by` are the default values.
    pub(super) fn plan(&self, sort: SortBy, contents: Contents, by: Value) -> OutputPlan {
        let mut options = OutputPlan::options(Selection { sort, top: self.top.unwrap_or(TOP) });
        options.contents = contents;
        let usual = GraphLimits::default();
        options.graph = GraphLimits {
            node_fraction: self.nodefraction.unwrap_or(usual.node_fraction),
            edge_fraction: self.edgefraction.unwrap_or(usual.edge_fraction),
            max_nodes: self.maxnodes.unwrap_or(usual.max_nodes),
        };
        let by = if self.by.is_empty() { vec![by] } else { self.by.clone() };
        let stdout = |path: PathBuf| if path == Path::new("-") { PathBuf::from("/dev/stdout") } else { path };
        OutputPlan { formats: self.format.clone(), out: self.out.clone().map(stdout), by, options }
    }
}

/// Contents of text reports.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct TextArgs {
    /// List the stacks with outstanding allocations in text reports, as bcc's memleak does, instead of verdicts; implied by
    /// -a, -C, -o, -s, -t, -T, -z, -Z and --sort
    #[arg(long)]
    outstanding: bool,

    /// Give verdicts in text reports even with options that list stacks; with --outstanding, give both
    #[arg(long)]
    verdicts: bool,

    /// Show all evidence and all frames in text reports, which otherwise fit on a screen
    #[arg(long)]
    full: bool,

    /// Treat functions, source files and modules that match as the application's, even if they belong to a known library
    #[arg(long, value_name = "REGEX")]
    app: Option<Regex>,

    /// Treat functions, source files and modules that match as a library's: a finding names the application's function that is
    /// the nearest to the allocation
    #[arg(long, value_name = "REGEX")]
    skip: Option<Regex>,

    /// Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the last report) or age
    /// (of the oldest live allocation) [default: size]
    #[arg(long, value_name = "ORDER")]
    pub(super) sort: Option<SortBy>,
}

impl TextArgs {
    /// Applies the arguments to the options of rendering.
    pub(super) fn apply(&self, options: &mut Options) {
        options.full = self.full;
        options.rules = Rules { app: self.app.clone(), skip: self.skip.clone() };
    }

    /// Contents of text reports. Stacks are listed if an option requests it or, as `lists` says, implies it.
    pub(super) const fn contents(&self, outputs: &OutputArgs, lists: bool) -> Contents {
        let outstanding = self.outstanding || lists || outputs.top.is_some() || self.sort.is_some();
        Contents { verdicts: self.verdicts || !outstanding, outstanding }
    }
}

impl TextArgs {
    /// Contents of text reports on saved profiles, where a number of verdicts does not imply a list of stacks.
    pub(super) const fn contents_of_saved(&self) -> Contents {
        let outstanding = self.outstanding || self.sort.is_some();
        Contents { verdicts: self.verdicts || !outstanding, outstanding }
    }
}

/// Output options of the commands that show saved profiles.
#[derive(Debug, Clone, clap::Args)]
#[command(mut_arg("format", |format| {
    let help = "Output formats: text, json, svg; jjleak report also writes html, pprof, collapsed and dot";
    format.default_values([Str::from(Format::Text.name())]).help(help).long_help(format!("{help}\n\n{SAVED_FORMAT_NOTE}"))
}))]
#[command(mut_arg("out", |out| out.help("Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe, or - for stdout \
    [default: files in this folder: jjleak-PID.*, jjleak.diff.*]")))]
#[command(mut_arg("by", |by| by.help("Values in flame graphs and collapsed stacks: bytes, objects, or both [default: bytes, if the \
    profile has any]")))]
pub(super) struct SavedOutputArgs {
    /// Invert flame graphs and collapsed stacks: the allocation function is the root, and its callers are merged
    #[arg(long)]
    inverted: bool,

    #[command(flatten)]
    pub(super) outputs: OutputArgs,
}

impl SavedOutputArgs {
    /// The outputs for a profile of which `view` says what part it is.
    pub(super) fn plan(&self, sort: SortBy, contents: Contents, view: String, shown: &Profile) -> OutputPlan {
        let live = shown.live();
        let by = if live.bytes == 0 && live.objects > 0 { Value::Objects } else { Value::Bytes };
        let mut plan = self.outputs.plan(sort, contents, by);
        plan.options.inverted = self.inverted;
        plan.options.view = view;
        plan
    }
}

/// Parses a share of the whole.
fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0. ..=1.).contains(&share) => Ok(share),
        _ => Err("not a number from 0 to 1".to_owned()),
    }
}

/// Help text of `--format`.
fn format_help() -> String {
    format!("Output formats: {}", Format::names())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::command_line::{Command, CommandLine};

    #[test]
    fn a_number_of_verdicts_of_a_saved_profile_leaves_them_verdicts() {
        let contents = |line: &str| match CommandLine::try_parse_from(line.split(' ')).unwrap().command {
            Some(Command::Report(args)) => args.contents(),
            other => panic!("{other:?}"),
        };
        let top = contents("jjleak report a.pb.gz -T 2");
        assert!(top.verdicts && !top.outstanding);
        let sorted = contents("jjleak report a.pb.gz --sort count -T 2");
        assert!(!sorted.verdicts && sorted.outstanding);
    }
}
