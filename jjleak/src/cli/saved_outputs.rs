//! Output options of the commands that show saved profiles.

use std::path::PathBuf;

use super::args::TOP;
use crate::analyze::{Selection, SortBy};
use crate::profile::Profile;
use crate::render::{Contents, Format, Value};
use crate::reports::OutputPlan;

/// The output options.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct SavedOutputArgs {
    /// Invert flame graphs and collapsed stacks: the allocation function is the root, and its callers are merged
    #[arg(long)]
    inverted: bool,

    /// Number of stacks or verdicts in text [default: 10]
    #[arg(short = 'T', long, value_name = "N")]
    pub(super) top: Option<usize>,

    /// Output formats: text, json, svg; jjleak report also writes html, pprof and collapsed
    ///
    /// Text goes to stdout, and so does json unless --out is given; the other formats are files.
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', default_values_t = [Format::Text])]
    pub(super) format: Vec<Format>,

    /// Destination of files: a folder (existing, or ending in /), a file name, a device or a pipe [default: files in this
    /// folder: jjleak-PID.*, jjleak.diff.*]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,

    /// Values in flame graphs and collapsed stacks: bytes, objects, or both [default: bytes, if the profile has any]
    #[arg(long, value_name = "VALUES", value_delimiter = ',')]
    by: Vec<Value>,
}

impl SavedOutputArgs {
    /// The outputs for a profile of which `view` says what part it is.
    pub(super) fn plan(&self, sort: SortBy, contents: Contents, view: String, shown: &Profile) -> OutputPlan {
        let mut options = OutputPlan::options(Selection { sort, top: self.top.unwrap_or(TOP) });
        options.contents = contents;
        options.inverted = self.inverted;
        options.view = view;
        OutputPlan { formats: self.format.clone(), out: self.out.clone(), by: self.values(shown), options }
    }

    /// Values in flame graphs: bytes by default, unless the profile has none.
    fn values(&self, shown: &Profile) -> Vec<Value> {
        if !self.by.is_empty() {
            return self.by.clone();
        }
        let live = shown.live();
        vec![if live.bytes == 0 && live.objects > 0 { Value::Objects } else { Value::Bytes }]
    }
}
