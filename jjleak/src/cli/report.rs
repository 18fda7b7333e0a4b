//! `jjleak report`.

use std::path::PathBuf;

use super::Failure;
use super::args::TOP;
use super::view::{ViewArgs, values};
use crate::analyze::{Pace, Selection, SortBy};
use crate::profile::Profile;
use crate::render::{Contents, Format, Value};
use crate::reports::{OutputPlan, Outputs};
use crate::session::{SavedFiles, Source};

/// Show saved profiles (pprof files) of jjleak or of another tool
///
/// Several files of one process count as successive reports: the last one is shown, with the history of all. Files of
/// several processes are shown side by side.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(super) struct ReportArgs {
    /// Profiles in pprof format, such as those of --format pprof; - for stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    view: ViewArgs,

    /// Separate stacks by thread, in profiles recorded with --threads: the root of each stack is the thread that allocated
    #[arg(long)]
    threads: bool,

    /// Invert flame graphs and collapsed stacks: the allocation function is the root, and its callers are merged
    #[arg(long)]
    inverted: bool,

    /// List the stacks with outstanding allocations in text instead of verdicts, as in live reports; implied by -T and --sort.
    /// With only --focus, --ignore or --kind, text has both
    #[arg(long)]
    outstanding: bool,

    /// Give verdicts in text even with options that list stacks; with --outstanding, give both
    #[arg(long)]
    verdicts: bool,

    /// Number of stacks or verdicts in text [default: 10]
    #[arg(short = 'T', long, value_name = "N")]
    top: Option<usize>,

    /// Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the previous report) or
    /// age (of the oldest live allocation) [default: size]
    #[arg(long, value_name = "ORDER")]
    sort: Option<SortBy>,

    /// Output formats: text, json, svg, html, pprof, collapsed
    ///
    /// Text goes to stdout, and so does json unless --out is given; the other formats are files.
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', default_values_t = [Format::Text])]
    format: Vec<Format>,

    /// Destination of files: a folder (existing, or ending in /), a file name, a device or a pipe [default: ./jjleak-PID.*]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,

    /// Values in flame graphs and collapsed stacks: bytes, objects, or both [default: bytes, if the profile has any]
    #[arg(long, value_name = "VALUES", value_delimiter = ',')]
    by: Vec<Value>,
}

impl ReportArgs {
    /// Contents of the text: the same as when the profile was recorded.
    fn contents(&self, is_part: bool) -> Contents {
        let lists = self.outstanding || self.top.is_some() || self.sort.is_some();
        Contents { verdicts: self.verdicts || !lists, outstanding: lists || is_part }
    }
}

/// Shows the profiles that the arguments name.
pub(super) fn report(args: &ReportArgs) -> Result<(), Failure> {
    let mut files = SavedFiles { paths: args.files.clone(), threads: args.threads };
    let profiles = files.profiles(Pace::Thorough)?;
    let (shown, mut words): (Vec<_>, Vec<_>) =
        profiles.into_iter().map(|profile| args.view.apply(profile)).unzip();
    words.retain(|words| !words.is_empty());
    let selection = Selection { sort: args.sort.unwrap_or_default(), top: args.top.unwrap_or(TOP) };
    let mut options = OutputPlan::options(selection);
    options.contents = args.contents(!words.is_empty());
    options.inverted = args.inverted;
    options.view = words.join("; ");
    let by = values(&args.by, &Profile::merge(shown.iter()));
    let plan = OutputPlan { formats: args.format.clone(), out: args.out.clone(), by, options };
    let pid = match &shown[..] {
        [one] if one.process.pid > 0 => Some(one.process.pid),
        _ => None,
    };
    let mut outputs = Outputs::open(&plan, pid)?;
    outputs.report(&shown);
    Ok(outputs.finish(&shown).tell()?)
}
