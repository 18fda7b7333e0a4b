//! `jjleak report`.

use std::path::PathBuf;

use super::Failure;
use super::failure::OTHER;
use super::output_args::{SavedOutputArgs, TextArgs};
use super::view::ViewArgs;
use crate::analyze::{Baseline, Matching, Pace};
use crate::notices::print;
use crate::profile::Profile;
use crate::render::Contents;
use crate::reports::Outputs;
use crate::session::{self, Header, Naming, SavedFiles, Source};

/// Show saved profiles (pprof files) of jjleak or of another tool
///
/// Several files of one process count as successive reports: the last one is shown, with the history of all. Files of
/// several processes are shown side by side.
#[derive(Debug, clap::Args)]
#[command(mut_arg("outstanding", |outstanding| outstanding.help("List the stacks with outstanding allocations in text instead of \
    verdicts, as in live reports; implied by --sort. With only --focus, --ignore or --kind, text has both")))]
pub(super) struct ReportArgs {
    /// Profiles: pprof files, such as those of --format pprof, and heap profiles of jemalloc, gperftools and tcmalloc; plain or compressed
    /// with gzip or zstd; - for stdin; http://, https:// or unix:SOCKET:PATH for a server's
    #[arg(value_name = "FILE", required_unless_present = "latest")]
    files: Vec<PathBuf>,

    /// Show the newest of the files that match this pattern, as in 'heap.*'
    #[arg(long, value_name = "PATTERN", conflicts_with = "files")]
    latest: Option<String>,

    /// Subtract this profile, stack by stack: what came since
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    /// Names of generated code for heap profiles of allocators [default: perf-PID.map beside the profile]
    #[arg(long, value_name = "FILE")]
    perf_map: Option<PathBuf>,

    /// Folder with the root file system of the profiled process, for names in heap profiles of allocators
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,

    /// Header of requests, such as 'Authorization: Bearer TOKEN'; can be given several times
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_header)]
    header: Vec<Header>,

    /// Add up profiles, stack by stack, such as those of several instances of a service
    #[arg(long)]
    merge: bool,

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

/// Parses a header of a request.
fn parse_header(text: &str) -> Result<Header, String> {
    let (name, value) = text.split_once(':').ok_or("a header has the form 'NAME: VALUE'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
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
    let naming = Naming {
        perf_map: args.perf_map.clone(),
        sysroot: args.sysroot.clone(),
        headers: args.header.clone(),
    };
    let paths = match &args.latest {
        Some(pattern) => vec![newest(pattern)?],
        None => args.files.clone(),
    };
    let base = match &args.base {
        Some(file) => {
            let read = SavedFiles::read(file, &naming).map_err(session::Error::from)?;
            let read = if args.threads { read } else { read.across_threads() };
            Some(Baseline::of_dump(&read, Matching::default()))
        }
        None => None,
    };
    let mut profiles = SavedFiles { paths, threads: args.threads, naming }.profiles(Pace::Thorough)?;
    if let Some(base) = &base {
        for profile in &mut profiles {
            base.subtract_from(profile);
        }
    }
    if args.merge {
        profiles = Profile::added(profiles).into_iter().collect();
    }
    let (shown, mut words): (Vec<_>, Vec<_>) =
        profiles.into_iter().map(|profile| args.view.apply(profile)).unzip();
    words.retain(|words| !words.is_empty());
    if let Some(file) = &args.base {
        words.insert(0, format!("only what is not in {}", file.display()));
    }
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
