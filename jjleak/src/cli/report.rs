//! `jjleak report`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use regex::Regex;

use tokio::runtime::Builder;
use tokio::time::timeout;

use super::Failure;
use super::failure::OTHER;
use super::naming_args::NamingArgs;
use super::output_args::{SavedOutputArgs, TextArgs};
use super::signals;
use super::view::ViewArgs;
use crate::analyze::{Baseline, Matching, Pace};
use crate::notices::print;
use crate::profile::Profile;
use crate::render::Contents;
use crate::reports::{Outputs, source_lines};
use crate::session::{self, Naming, SavedFiles, Source, WatchedFiles};

/// Time between two looks for new files. A file is read once it is the same at two of them.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Show saved profiles (pprof files) of jjleak or of another tool
///
/// Several files of one process count as successive reports: the last one is shown, with the history of all. Files of
/// several processes are shown side by side.
#[derive(Debug, clap::Args)]
#[command(mut_arg("outstanding", |outstanding| outstanding.help("List the stacks with outstanding allocations in text instead of \
    verdicts, as in live reports; implied by --sort. With only --focus, --ignore or --kind, text has both")))]
pub(super) struct ReportArgs {
    /// Profiles: pprof files, such as those of --format pprof; heap profiles of jemalloc, gperftools and tcmalloc; files of heaptrack;
    /// collapsed stacks; recordings of Java Flight Recorder; plain or compressed with gzip or zstd; - for stdin; http://, https:// or unix:SOCKET:PATH for a server's
    #[arg(value_name = "FILE", required_unless_present_any = ["latest", "watch"])]
    files: Vec<PathBuf>,

    /// Show the newest of the files that match this pattern, as in 'heap.*'
    #[arg(long, value_name = "PATTERN", conflicts_with = "files")]
    latest: Option<String>,

    /// Show the files that match this pattern, and again whenever another appears, until Ctrl-C
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["files", "latest"])]
    watch: Option<String>,

    /// Subtract this profile, stack by stack: what came since
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    #[command(flatten)]
    naming: NamingArgs,

    /// Add up profiles, stack by stack, such as those of several instances of a service
    #[arg(long)]
    merge: bool,

    /// Print the source lines of the functions that match, with the memory that was allocated in each, in place of a report
    #[arg(long, value_name = "REGEX", conflicts_with_all = ["format", "out"])]
    list: Option<Regex>,

    /// Folder with the sources for --list, if they are not where the program was built
    #[arg(long, value_name = "DIR", requires = "list")]
    sources: Option<PathBuf>,

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

/// The newest of the files that match a pattern.
fn newest(pattern: &str) -> Result<PathBuf, Failure> {
    let paths =
        glob::glob(pattern).map_err(|error| Failure::usage(format!("--latest {pattern}: {error}")))?;
    let changed = |path: PathBuf| Some((path.metadata().ok()?.modified().ok()?, path));
    let newest = paths.filter_map(Result::ok).filter(|path| path.is_file()).filter_map(changed).max();
    let Some((_, path)) = newest else {
        let what = format!("no file matches --latest {pattern}");
        return Err(Failure::new(OTHER, what, "quote the pattern, so that the shell leaves it alone"));
    };
    print(&format!("the newest of {pattern} is {}", path.display()));
    Ok(path)
}

/// Shows the profiles that the arguments name.
pub(super) fn report(args: &ReportArgs) -> Result<(), Failure> {
    let naming = args.naming.naming()?;
    let base = args.baseline(&naming)?;
    if let Some(pattern) = &args.watch {
        return watch(args, pattern, &naming, base.as_ref());
    }
    let paths = match &args.latest {
        Some(pattern) => vec![newest(pattern)?],
        None => args.files.clone(),
    };
    let profiles = SavedFiles { paths, threads: args.threads, naming }.profiles(Pace::Thorough)?;
    args.show(profiles, base.as_ref())
}

/// Shows the files that match a pattern, and again whenever another appears.
fn watch(args: &ReportArgs, pattern: &str, naming: &Naming, base: Option<&Baseline>) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::new(OTHER, format!("cannot wait for files: {error}"), "try again");
    let interrupt = signals::watch().map_err(failed)?;
    let runtime = Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let mut files = WatchedFiles::new(pattern.to_owned(), args.threads, naming)
        .map_err(|error| Failure::usage(format!("--watch {pattern}: {error}")))?;
    print(&format!("waiting for files that match {pattern}; Ctrl-C to end"));
    runtime.block_on(async {
        // Network file systems announce no changes, so files are looked for again and again.
        while timeout(BETWEEN_LOOKS, interrupt.notified()).await.is_err() {
            if let Some(profiles) = files.read_new() {
                args.show(profiles, base)?;
            }
        }
        Ok(())
    })
}

impl ReportArgs {
    /// The profile to subtract.
    fn baseline(&self, naming: &Naming) -> Result<Option<Baseline>, Failure> {
        let Some(file) = &self.base else { return Ok(None) };
        let read = SavedFiles::read(file, naming).map_err(session::Error::from)?;
        let read = if self.threads { read } else { read.across_threads() };
        Ok(Some(Baseline::of_dump(&read, Matching::default())))
    }

    /// Writes a report.
    fn show(&self, mut profiles: Vec<Profile>, base: Option<&Baseline>) -> Result<(), Failure> {
        if let Some(base) = base {
            for profile in &mut profiles {
                base.subtract_from(profile);
            }
        }
        if self.merge {
            profiles = Profile::added(profiles).into_iter().collect();
        }
        let (shown, mut words): (Vec<_>, Vec<_>) =
            profiles.into_iter().map(|profile| self.view.apply(profile)).unzip();
        words.retain(|words| !words.is_empty());
        if let Some(file) = &self.base {
            words.insert(0, format!("only what is not in {}", file.display()));
        }
        let mut contents = self.contents();
        contents.outstanding |= !words.is_empty();
        let all = Profile::merge(shown.iter());
        let mut plan =
            self.outputs.plan(self.text.sort.unwrap_or_default(), contents, words.join("; "), &all);
        self.text.apply(&mut plan.options);
        if let Some(names) = &self.list {
            let text = source_lines(&all, names, plan.by[0], self.sources.as_deref()).ok_or_else(|| {
                let what = format!("--list {names}: no function of the profile matches");
                Failure::new(OTHER, what, "choose from the functions that --outstanding shows")
            })?;
            // If the reader has gone away, nobody needs the rest.
            let _ = io::stdout().write_all(text.as_bytes());
            return Ok(());
        }
        let pid = match &shown[..] {
            [one] if one.process.pid > 0 => Some(one.process.pid),
            _ => None,
        };
        let mut outputs = Outputs::open(&plan, pid)?;
        outputs.report(&shown);
        Ok(outputs.finish(&shown).print()?)
    }
}
