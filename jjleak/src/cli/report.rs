//! `jjleak report`.

use std::path::PathBuf;

use super::Failure;
use super::output_args::{SavedOutputArgs, TextArgs};
use super::view::ViewArgs;
use crate::analyze::Pace;
use crate::profile::Profile;
use crate::render::Contents;
use crate::reports::Outputs;
use crate::session::{SavedFiles, Source};

/// Show saved profiles (pprof files) of jjleak or of another tool
///
/// Several files of one process count as successive reports: the last one is shown, with the history of all. Files of
/// several processes are shown side by side.
#[derive(Debug, clap::Args)]
#[command(mut_arg("outstanding", |outstanding| outstanding.help("List the stacks with outstanding allocations in text instead of \
    verdicts, as in live reports; implied by --sort. With only --focus, --ignore or --kind, text has both")))]
pub(super) struct ReportArgs {
    /// Profiles in pprof format, such as those of --format pprof; - for stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    view: ViewArgs,

    /// Separate stacks by thread, in profiles recorded with --threads: the root of each stack is the thread that allocated
    #[arg(long)]
    threads: bool,

    #[command(flatten)]
    text: TextArgs,

    #[command(flatten)]
    outputs: SavedOutputArgs,
}

impl ReportArgs {
    /// Contents of text.
    pub(super) const fn contents(&self) -> Contents {
        self.text.contents_of_saved()
    }
}

/// Shows the profiles that the arguments name.
pub(super) fn report(args: &ReportArgs) -> Result<(), Failure> {
    let mut files = SavedFiles { paths: args.files.clone(), threads: args.threads };
    let profiles = files.profiles(Pace::Thorough)?;
    let (shown, mut words): (Vec<_>, Vec<_>) =
        profiles.into_iter().map(|profile| args.view.apply(profile)).unzip();
    words.retain(|words| !words.is_empty());
    let mut contents = args.contents();
    contents.outstanding |= !words.is_empty();
    let all = Profile::merge(shown.iter());
    let mut plan = args.outputs.plan(args.text.sort.unwrap_or_default(), contents, words.join("; "), &all);
    args.text.apply(&mut plan.options);
    let pid = match &shown[..] {
        [one] if one.process.pid > 0 => Some(one.process.pid),
        _ => None,
    };
    let mut outputs = Outputs::open(&plan, pid)?;
    outputs.report(&shown);
    Ok(outputs.finish(&shown).print()?)
}
