//! `jjleak diff`.

use std::path::{Path, PathBuf};

use super::Failure;
use super::failure::USAGE;
use super::view::{ViewArgs, values};
use crate::analyze::{Difference, Matching, Pace, Selection, SortBy};
use crate::notices::tell;
use crate::profile::Profile;
use crate::render::{Format, Value};
use crate::reports::{OutputPlan, write_difference};
use crate::session::{SavedFiles, Source};

/// Compare two saved profiles (pprof files): what has grown, shrunk, come and gone
///
/// Stacks are the same by the names of their functions, whatever the addresses and threads: the profiles can be of
/// different processes, hosts and tools.
#[derive(Debug, clap::Args)]
pub(super) struct DiffArgs {
    /// The profile to compare with
    #[arg(value_name = "BEFORE")]
    before: PathBuf,

    /// The profile to compare
    #[arg(value_name = "AFTER")]
    after: PathBuf,

    /// Multiply the figures before, as if both had run for as long
    #[arg(long)]
    normalize: bool,

    /// Lines make no difference, as between versions of a program
    #[arg(long)]
    ignore_lines: bool,

    #[command(flatten)]
    view: ViewArgs,

    /// Begin the flame graph with the allocation function, and merge what it is called by
    #[arg(long)]
    inverted: bool,

    /// Number of stacks in text
    #[arg(short = 'T', long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// What to write: text, json, svg
    ///
    /// Text goes to stdout, json too unless --out is given.
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', default_values_t = [Format::Text])]
    format: Vec<Format>,

    /// Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak.diff.* here]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,

    /// What flame graphs show: bytes, objects, or both [default: bytes, if the profiles have any]
    #[arg(long, value_name = "VALUES", value_delimiter = ',')]
    by: Vec<Value>,
}

/// Compares the profiles that the arguments name.
pub(super) fn diff(args: &DiffArgs) -> Result<(), Failure> {
    if let Some(format) =
        args.format.iter().find(|format| !matches!(format, Format::Text | Format::Json | Format::Svg))
    {
        let what = format!("--format {format}: a difference is written as text, json or svg");
        return Err(Failure::new(USAGE, what, "choose of these"));
    }
    let (before, words_before) = args.view.apply(read(&args.before)?);
    let (after, words_after) = args.view.apply(read(&args.after)?);
    let matching = Matching { ignore_lines: args.ignore_lines };
    let difference = Difference::new(&before, &after, matching, args.normalize).ok_or_else(|| {
        let what = "--normalize: a profile does not say how long it ran";
        Failure::new(USAGE, what, "leave --normalize out")
    })?;
    let mut options = OutputPlan::options(Selection { sort: SortBy::Size, top: args.top });
    options.inverted = args.inverted;
    if !words_before.is_empty() {
        options.view = format!("before {words_before}; after {words_after}");
    }
    let by = values(&args.by, &Profile::merge([&before, &after].into_iter()));
    let plan = OutputPlan { formats: args.format.clone(), out: args.out.clone(), by, options };
    for path in write_difference(&plan, &difference)? {
        tell(&format!("wrote {}", path.display()));
    }
    Ok(())
}

/// The profile in a file.
fn read(path: &Path) -> Result<Profile, Failure> {
    let profiles = SavedFiles { paths: vec![path.to_owned()], threads: false }.profiles(Pace::Thorough)?;
    Ok(match <[Profile; 1]>::try_from(profiles) {
        Ok([only]) => only,
        Err(several) => Profile::merge(several.iter()),
    })
}
