//! Selection of a part of saved profiles.

use regex::Regex;

use crate::notices::print;
use crate::profile::{FrameKinds, Granularity, Profile, StackFilter};

/// The options by which a part is chosen.
#[derive(Debug, Clone, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line, of which one can be given"
)]
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

    /// Distinguish frames by function only, without source lines
    #[arg(long, group = "granularity")]
    functions: bool,

    /// Distinguish frames by source line
    #[arg(long, group = "granularity")]
    lines: bool,

    /// Distinguish frames by source file
    #[arg(long = "files", id = "by_files", group = "granularity")]
    files: bool,

    /// Distinguish frames by address
    #[arg(long, group = "granularity")]
    addresses: bool,
}

impl ViewArgs {
    /// The selected part of the profile, and its description; empty for the whole.
    pub(super) fn apply(&self, profile: Profile) -> (Profile, String) {
        let view =
            StackFilter { focus: self.focus.clone(), ignore: self.ignore.clone(), kinds: self.kind.clone() };
        if view.is_everything() {
            return (self.distinguished(profile), String::new());
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
        (self.distinguished(profile), words)
    }

    fn distinguished(&self, profile: Profile) -> Profile {
        let choices = [
            (self.functions, Granularity::Functions),
            (self.lines, Granularity::Lines),
            (self.files, Granularity::Files),
            (self.addresses, Granularity::Addresses),
        ];
        let chosen = choices.into_iter().find(|(is_chosen, _)| *is_chosen);
        match chosen {
            Some((_, by)) => by.apply(profile),
            None => profile,
        }
    }
}
