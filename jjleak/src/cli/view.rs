//! Selection of a part of saved profiles.

use regex::Regex;

use crate::notices::print;
use crate::profile::{FrameKinds, Profile, StackFilter};

/// The options by which a part is chosen.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ViewArgs {
    /// Show only stacks with a frame whose function, source file or module matches
    #[arg(long, value_name = "REGEX")]
    focus: Option<Regex>,

    /// Leave out stacks with a frame whose function, source file or module matches
    #[arg(long, value_name = "REGEX")]
    ignore: Option<Regex>,

    /// Show only frames of these kinds (native, java, jvm, kernel, unknown), and only stacks that have any
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    kind: Vec<FrameKinds>,
}

impl ViewArgs {
    /// The selected part of the profile, and its description; empty for the whole.
    pub(super) fn apply(&self, profile: Profile) -> (Profile, String) {
        let view =
            StackFilter { focus: self.focus.clone(), ignore: self.ignore.clone(), kinds: self.kind.clone() };
        if view.is_everything() {
            return (profile, String::new());
        }
        let (profile, shown) = view.apply(profile);
        let mut words = format!(
            "{} of {} stacks, {} of {} live bytes",
            shown.of.stacks, shown.all.stacks, shown.of.live_bytes, shown.all.live_bytes
        );
        if shown.narrowed {
            words.push_str("; rates and surviving bytes are those of whole call sites");
        }
        if shown.of.stacks == 0 {
            print("no stack matches --focus, --ignore and --kind");
        }
        (profile, words)
    }
}
