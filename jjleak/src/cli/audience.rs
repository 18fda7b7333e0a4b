//! Consumers of the profiles during a run: the reader of reports, the user of the live view, or the daemon.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use super::Failure;
use super::args::Args;
use super::outputs::{Asked, Outputs};
use super::top::Viewer;
use super::watch::Watch;
use crate::analyze::Pace;
use crate::cost::Budget;
use crate::processes::Streams;
use crate::profile::Profile;
use crate::render::printable;
use crate::top::About;

/// Kind of output during a run.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    /// A report at every interval.
    Reports,
    /// The live view.
    View(About),
    /// None: another part of jjleak takes the profiles.
    Nothing(Recorder),
}

/// Callback for the profiles of each snapshot, including the last.
#[derive(Clone)]
pub(super) struct Recorder {
    pub(super) take: Arc<dyn Fn(Vec<Profile>) + Send + Sync>,
    /// True if it checks the cost of profiling and stops a run that costs too much.
    pub(super) looks_at_cost: bool,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Recorder")
    }
}

/// Consumer of the profiles.
pub(super) enum Audience {
    /// The reader of reports.
    Reader,
    /// The user of the live view.
    Viewer(Viewer),
    /// The daemon.
    Recorder(Recorder),
}

impl Wanted {
    pub(super) const fn is_view(&self) -> bool {
        matches!(self, Self::View(_))
    }

    /// Standard streams of a command that jjleak starts: a view needs the terminal for itself.
    pub(super) const fn streams(&self) -> Streams {
        match self {
            Self::Reports => Streams::Inherited,
            Self::View(_) | Self::Nothing(_) => Streams::Silent,
        }
    }

    /// Delays the probes until [`Self::bound`], unless the cost until then is acceptable.
    pub(super) fn rest_at_first(&self, watch: &mut Watch) -> Result<(), Failure> {
        match self {
            Self::Reports | Self::View(_) => watch.rest_at_first(),
            Self::Nothing(_) => Ok(()),
        }
    }

    /// Keeps the cost of profiling below a share of the CPU time of the process. The daemon tolerates short bursts for the sake
    /// of a verdict; if the kernel cannot enforce a bound, it checks the cost in each profile.
    pub(super) fn bound(&self, watch: &mut Watch, share: f64) -> Result<(), Failure> {
        match self {
            Self::Reports | Self::View(_) => watch.keep_within(Budget::new(share)),
            Self::Nothing(_) => {
                if let Err(failure) = watch.keep_within(Budget::patient(share)) {
                    tracing::warn!(
                        "{}",
                        printable(&format!(
                            "{failure}: everything is counted until a look shows that it costs too much"
                        ))
                    );
                }
                Ok(())
            }
        }
    }

    /// Outputs to stdout and files.
    pub(super) fn asked<'a>(&self, args: &'a Args) -> Asked<'a> {
        match self {
            Self::Reports | Self::View(_) => args.asked(),
            Self::Nothing(_) => Asked { formats: &[], ..args.asked() },
        }
    }
}

impl Audience {
    /// Opens the consumer.
    pub(super) fn open(wanted: &Wanted, args: &Args) -> Result<Self, Failure> {
        Ok(match wanted {
            Wanted::Reports => Self::Reader,
            Wanted::Nothing(recorder) => Self::Recorder(recorder.clone()),
            Wanted::View(about) => Self::Viewer(Viewer::open(about.clone(), args)?),
        })
    }

    /// Announces a snapshot, which is shown when it is complete.
    pub(super) fn begin_look(&mut self) {
        if let Self::Viewer(view) = self {
            view.begin_look();
        }
    }

    /// Selects the verdicts that each snapshot has to update.
    pub(super) const fn pace(&self) -> Pace {
        match self {
            Self::Reader | Self::Recorder(_) => Pace::Thorough,
            Self::Viewer(_) => Pace::InTurn,
        }
    }

    /// Returns true if it shows verdicts, whatever the outputs are.
    pub(super) const fn shows_verdicts(&self) -> bool {
        matches!(self, Self::Viewer(_))
    }

    /// Time until the next snapshot if that is longer than the interval.
    pub(super) fn pause(&self) -> Option<Duration> {
        match self {
            Self::Reader | Self::Recorder(_) => None,
            Self::Viewer(view) => view.pause(),
        }
    }

    /// Returns true if it needs an early profile to check the cost, in case nothing else bounds it.
    pub(super) const fn looks_at_cost(&self) -> bool {
        matches!(self, Self::Recorder(Recorder { looks_at_cost: true, .. }))
    }

    /// Shows the profiles of a snapshot. Returns false if nobody will see the next one.
    pub(super) fn show(&mut self, profiles: Vec<Profile>, outputs: &mut Outputs) -> bool {
        match self {
            Self::Reader => {
                outputs.report(&profiles);
                outputs.is_wanted()
            }
            Self::Viewer(view) => {
                outputs.keep(&profiles);
                view.show(profiles)
            }
            Self::Recorder(recorder) => {
                (recorder.take)(profiles);
                true
            }
        }
    }

    /// Shows the last profiles of processes that have ended.
    pub(super) fn show_ended(&mut self, profiles: &[Profile], outputs: &mut Outputs) {
        match self {
            Self::Reader => outputs.report(profiles),
            Self::Viewer(view) => {
                outputs.keep(profiles);
                view.show_ended(profiles);
            }
            Self::Recorder(recorder) => (recorder.take)(profiles.to_vec()),
        }
    }

    /// Mentions ended processes if several processes are followed; their reports follow at the end.
    pub(super) fn show_ended_child(&mut self, profiles: &[Profile], outputs: &mut Outputs) {
        match self {
            Self::Reader => outputs.mention_ended(profiles),
            Self::Viewer(_) | Self::Recorder(_) => self.show_ended(profiles, outputs),
        }
    }

    /// Like `show_ended_child`, for runs in which most ended processes are irrelevant.
    pub(super) fn mention_ended(&mut self, profiles: &[Profile], outputs: &mut Outputs) {
        match self {
            Self::Reader => outputs.report_ended(profiles),
            Self::Viewer(view) => {
                outputs.keep(profiles);
                view.show_ended(profiles);
            }
            Self::Recorder(_) => {}
        }
    }

    /// Announces that there is nothing left to profile. Returns true if the user stays to inspect the last state.
    pub(super) fn stays(&mut self) -> bool {
        match self {
            Self::Reader | Self::Recorder(_) => false,
            Self::Viewer(view) => view.end(),
        }
    }

    /// Waits until the user leaves. Can be dropped and called again.
    pub(super) async fn leaving(&mut self) {
        match self {
            Self::Reader | Self::Recorder(_) => pending().await,
            Self::Viewer(view) => view.leaving().await,
        }
    }

    /// Shows the final report: running processes, and ended ones that were shown, or `mentioned`, during the run.
    pub(super) fn dismiss(
        &mut self,
        last: &[Profile],
        closed: &[Profile],
        mentioned: bool,
        outputs: &mut Outputs,
    ) {
        match self {
            Self::Viewer(view) => {
                view.close();
                // Until now, the view had the terminal.
                outputs.print_kept(closed);
            }
            Self::Reader if mentioned => outputs.print_ended(closed),
            Self::Reader => {}
            Self::Recorder(recorder) => (recorder.take)(last.to_vec()),
        }
        outputs.report(last);
    }
}
