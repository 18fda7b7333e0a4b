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

/// Show saved profiles (pprof files), jjleak's own or another tool's
///
/// Several files of one process are taken for successive reports: the last is shown, with the history of them all. Files
/// of several processes are shown side by side.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(super) struct ReportArgs {
    /// Profiles in pprof's format, as --format pprof writes them; - for stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    view: ViewArgs,

    /// Tell threads apart, in profiles that were recorded with --threads: each stack stands below its thread
    #[arg(long)]
    threads: bool,

    /// Begin flame graphs and collapsed stacks with the allocation function, and merge what it is called by
    #[arg(long)]
    inverted: bool,

    /// Text lists the stacks with outstanding allocations instead of verdicts, as live reports do; so it does with -T and --sort,
    /// and, beside verdicts, when a part is chosen
    #[arg(long)]
    outstanding: bool,

    /// Text gives verdicts, also with options by which it lists stacks; with --outstanding, both
    #[arg(long)]
    verdicts: bool,

    /// Number of stacks, or of verdicts, in text [default: 10]
    #[arg(short = 'T', long, value_name = "N")]
    top: Option<usize>,

    /// Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the report before) or
    /// age (of the oldest live allocation) [default: size]
    #[arg(long, value_name = "ORDER")]
    sort: Option<SortBy>,

    /// What to write: text, json, svg, html, pprof, collapsed
    ///
    /// Text goes to stdout, json too unless --out is given; the others are files.
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', default_values_t = [Format::Text])]
    format: Vec<Format>,

    /// Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak-PID.* here]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,

    /// What flame graphs and collapsed stacks show: bytes, objects, or both [default: bytes, if the profile has any]
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
