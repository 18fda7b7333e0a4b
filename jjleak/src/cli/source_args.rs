//! The arguments of profiling for a source other than allocations: without the options that do not apply to it.

use std::marker::PhantomData;

use clap::{ArgMatches, Command, FromArgMatches};

use super::args::Args;
use crate::profile::SourceKind;

/// IDs of options about blocks of native memory.
pub(super) const OF_BLOCKS: [&str; 19] = [
    "min_size",
    "max_size",
    "obj",
    "symbols_prefix",
    "allocators",
    "entry_and_return",
    "mmap",
    "older",
    "combined_only",
    "show_allocs",
    "trace",
    "max_live",
    "settle",
    "outstanding",
    "verdicts",
    "estimate",
    "baseline",
    "sampled",
    "load",
];

/// A source of profiles.
pub(super) trait ProfiledSource {
    /// The source.
    const KIND: SourceKind;
    /// IDs of options that do not apply to it, besides those of [`OF_BLOCKS`].
    const EXCLUDED: &'static [&'static str];
    /// Help on options that have another effect here: their IDs, the summary, and what follows it.
    const HELP: &'static [(&'static str, &'static str, &'static str)] = &[];
    /// Subject of the message that refuses such an option, after the option's name.
    const REFUSAL: &'static str;
}

/// Arguments of profiling for a source.
#[derive(Debug)]
pub(super) struct SourceArgs<S> {
    pub(super) args: Args,
    source: PhantomData<S>,
}

impl<S: ProfiledSource> SourceArgs<S> {
    /// IDs of all options that do not apply.
    pub(super) fn excluded() -> impl Iterator<Item = &'static str> {
        OF_BLOCKS.into_iter().chain(S::EXCLUDED.iter().copied())
    }

    fn adapted(command: Command) -> Command {
        command.mut_args(|arg| {
            let is_excluded = Self::excluded().any(|id| arg.get_id() == id);
            match S::HELP.iter().find(|(id, ..)| arg.get_id() == id) {
                Some((_, summary, rest)) => arg.help(*summary).long_help(format!("{summary}\n\n{rest}")),
                None if is_excluded => arg.hide(true),
                None => arg,
            }
        })
    }

    /// The arguments, unless one does not apply.
    fn of(args: Args, matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |id: &&str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
        if let Some(id) = Self::excluded().find(is_given) {
            let what = format!("--{} {}\n", id.replace('_', "-"), S::REFUSAL);
            return Err(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, what));
        }
        Ok(Self { args: Args { source: S::KIND, ..args }, source: PhantomData })
    }
}

impl<S: ProfiledSource> clap::Args for SourceArgs<S> {
    fn augment_args(command: Command) -> Command {
        Self::adapted(Args::augment_args(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::adapted(Args::augment_args_for_update(command))
    }
}

impl<S: ProfiledSource> FromArgMatches for SourceArgs<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::of(Args::from_arg_matches(matches)?, matches)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.args.update_from_arg_matches(matches)
    }
}
