//! `jjleak diff`.

use std::path::{Path, PathBuf};

use super::Failure;
use super::failure::USAGE;
use super::naming_args::NamingArgs;
use super::output_args::SavedOutputArgs;
use super::view::ViewArgs;
use crate::analyze::{Difference, Matching, Pace, SortBy};
use crate::profile::Profile;
use crate::render::{Contents, Format};
use crate::reports::write_difference;
use crate::session::{Naming, SavedFiles, Source};

/// Compare two saved profiles (pprof files): which stacks have grown or shrunk, are new or gone
///
/// Stacks match by the names of their functions, regardless of addresses and threads: the profiles can come from
/// different processes, hosts and tools.
#[derive(Debug, clap::Args)]
pub(super) struct DiffArgs {
    /// The profile to compare with
    #[arg(value_name = "BEFORE")]
    before: PathBuf,

    /// The profile to compare
    #[arg(value_name = "AFTER")]
    after: PathBuf,

    /// Scale the figures of BEFORE as if both profiles had run for the same time
    #[arg(long)]
    normalize: bool,

    /// Ignore line numbers when matching stacks, for different versions of a program
    #[arg(long)]
    ignore_lines: bool,

    #[command(flatten)]
    naming: NamingArgs,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    outputs: SavedOutputArgs,
}

/// Compares the profiles that the arguments name.
pub(super) fn diff(args: &DiffArgs) -> Result<(), Failure> {
    if let Some(format) = args
        .outputs
        .outputs
        .format
        .iter()
        .find(|format| !matches!(format, Format::Text | Format::Json | Format::Svg | Format::Html))
    {
        let what = format!("--format {format}: diff writes text, json, svg or html");
        return Err(Failure::new(USAGE, what, "choose one of these formats"));
    }
    let naming = args.naming.naming()?;
    let (before, words_before) = args.view.apply(read(&args.before, &naming)?);
    let (after, words_after) = args.view.apply(read(&args.after, &naming)?);
    let matching = Matching { ignore_lines: args.ignore_lines };
    let difference = Difference::new(&before, &after, matching, args.normalize).ok_or_else(|| {
        let what = "--normalize: a profile does not record how long it ran";
        Failure::new(USAGE, what, "omit --normalize")
    })?;
    let mut view = String::new();
    if !words_before.is_empty() {
        view = format!("before {words_before}; after {words_after}");
    }
    let both = Profile::merge([&before, &after].into_iter());
    let plan = args.outputs.plan(SortBy::Size, Contents { verdicts: true, outstanding: true }, view, &both);
    Ok(write_difference(&plan, &difference)?)
}

/// The profile in a file.
fn read(path: &Path, naming: &Naming) -> Result<Profile, Failure> {
    let profiles = SavedFiles { paths: vec![path.to_owned()], threads: false, naming: naming.clone() }
        .profiles(Pace::Thorough)?;
    Ok(match <[Profile; 1]>::try_from(profiles) {
        Ok([only]) => only,
        Err(several) => Profile::merge(several.iter()).into_owned(),
    })
}
