//! `jjleak top`.

use std::env;
use std::io::{self, IsTerminal};
use std::path::Path;

use jiff::tz::TimeZone;

use super::failure::USAGE;
use super::top_args::TopArgs;
use super::{Failure, plan, profile};
use crate::live::{Live, ViewPlan};
use crate::processes::Streams;
use crate::render::printable;
use crate::top::{About, Colors};

/// Shows the processes that the arguments name.
pub(super) fn watch(args: &TopArgs) -> Result<(), Failure> {
    args.check()?;
    if !io::stdout().is_terminal() {
        return Err(Failure::new(
            USAGE,
            "the live view needs a terminal, but stdout is not one",
            "remove the redirection (over ssh: use ssh -t), or run jjleak without top for reports",
        ));
    }
    let profiling = args.profiling();
    let about = About {
        interval: profiling.interval,
        time_zone: TimeZone::system(),
        view: left_out(profiling.baseline.as_deref()),
        several: profiling.may_be_several(),
        colors: colors(|name| env::var(name).unwrap_or_default()),
        sort: args.sort,
    };
    let view = ViewPlan {
        forgets_ended: profiling.name.is_some() || profiling.system_wide,
        is_of_all: profiling.system_wide,
        folder: profiling.outputs.out.clone().filter(|out| out.is_dir()).unwrap_or_default(),
    };
    let mut plan = plan::plan(profiling, Streams::Silent)?;
    plan.schedule.has_verdicts = profiling.source.is_judged();
    profile::run(profiling, plan, &mut Live::new(about, view, profiling.output_plan()))
}

/// Text that names the baseline of the figures.
fn left_out(baseline: Option<&Path>) -> String {
    let name = baseline.map(|file| file.file_name().unwrap_or(file.as_os_str()).display());
    name.map(|name| printable(&format!("without {name}")).into_owned()).unwrap_or_default()
}

/// Colours that the terminal supports according to its environment variables; none if the user wants none
/// (<https://no-color.org>).
fn colors(variable: impl Fn(&str) -> String) -> Colors {
    if !variable("NO_COLOR").is_empty() || variable("TERM") == "dumb" {
        Colors::None
    } else if matches!(variable("COLORTERM").as_str(), "truecolor" | "24bit") {
        Colors::True
    } else {
        Colors::Sixteen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_that_the_terminal_has_and_the_user_wants() {
        let with = |pairs: &[(&str, &str)]| {
            let pairs: Vec<_> = pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            colors(|name| {
                pairs
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| value.clone())
                    .unwrap_or_default()
            })
        };
        assert_eq!(with(&[("TERM", "xterm")]), Colors::Sixteen);
        assert_eq!(with(&[("COLORTERM", "truecolor")]), Colors::True);
        assert_eq!(with(&[("COLORTERM", "truecolor"), ("NO_COLOR", "1")]), Colors::None);
        assert_eq!(with(&[("TERM", "dumb")]), Colors::None);
    }
}
