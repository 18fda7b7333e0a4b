//! Who looks on while a run goes on: whoever reads the reports, whoever looks at the live view, or the daemon.

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

/// What is to be shown while a run goes on.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    /// A report at every interval.
    Reports,
    /// The live view.
    View(About),
    /// Nothing: another part of jjleak takes the profiles.
    Nothing(Recorder),
}

/// Takes the profiles of each instant, the last ones too.
#[derive(Clone)]
pub(super) struct Recorder {
    pub(super) take: Arc<dyn Fn(Vec<Profile>) + Send + Sync>,
    /// Whether it looks at what profiles cost, and ends what costs too much.
    pub(super) looks_at_cost: bool,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Recorder")
    }
}

/// Who looks on.
pub(super) enum Audience {
    /// Whoever reads the reports.
    Reader,
    /// Whoever looks at the live view.
    Viewer(Viewer),
    /// The daemon.
    Recorder(Recorder),
}

impl Wanted {
    pub(super) const fn is_view(&self) -> bool {
        matches!(self, Self::View(_))
    }

    /// The streams of a command that is started: a view has the terminal for itself.
    pub(super) const fn streams(&self) -> Streams {
        match self {
            Self::Reports => Streams::Inherited,
            Self::View(_) | Self::Nothing(_) => Streams::Silent,
        }
    }

    /// Has nothing be probed until [`Self::bound`], where what is spent before it cannot be spared.
    pub(super) fn rest_at_first(&self, watch: &mut Watch) -> Result<(), Failure> {
        match self {
            Self::Reports | Self::View(_) => watch.rest_at_first(),
            Self::Nothing(_) => Ok(()),
        }
    }

    /// Keeps what profiling costs below a share of what the process takes itself. The daemon pays for a busy moment, for the
    /// sake of a verdict; and where the kernel keeps no bound, it sees from profile to profile what they cost.
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

    /// What goes to stdout and into files.
    pub(super) fn asked<'a>(&self, args: &'a Args) -> Asked<'a> {
        match self {
            Self::Reports | Self::View(_) => args.asked(),
            Self::Nothing(_) => Asked { formats: &[], ..args.asked() },
        }
    }
}

impl Audience {
    /// Opens what is wanted.
    pub(super) fn open(wanted: &Wanted, args: &Args) -> Result<Self, Failure> {
        Ok(match wanted {
            Wanted::Reports => Self::Reader,
            Wanted::Nothing(recorder) => Self::Recorder(recorder.clone()),
            Wanted::View(about) => Self::Viewer(Viewer::open(about.clone(), args)?),
        })
    }

    /// A look begins, of which the audience is shown the outcome.
    pub(super) fn begin_look(&mut self) {
        if let Self::Viewer(view) = self {
            view.begin_look();
        }
    }

    /// Which verdicts are to be of the very look.
    pub(super) const fn pace(&self) -> Pace {
        match self {
            Self::Reader | Self::Recorder(_) => Pace::Thorough,
            Self::Viewer(_) => Pace::InTurn,
        }
    }

    /// Whether it is shown verdicts, whatever is written.
    pub(super) const fn shows_verdicts(&self) -> bool {
        matches!(self, Self::Viewer(_))
    }

    /// How long to wait until the next look, if that is longer than the interval.
    pub(super) fn pause(&self) -> Option<Duration> {
        match self {
            Self::Reader | Self::Recorder(_) => None,
            Self::Viewer(view) => view.pause(),
        }
    }

    /// Whether it is to see soon what profiling costs, where nothing else keeps that below a bound.
    pub(super) const fn looks_at_cost(&self) -> bool {
        matches!(self, Self::Recorder(Recorder { looks_at_cost: true, .. }))
    }

    /// Shows the profiles of an instant; whether anybody is still there to look at the next.
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

    /// Mentions processes that have ended among several that are followed; their reports come at the end.
    pub(super) fn show_ended_child(&mut self, profiles: &[Profile], outputs: &mut Outputs) {
        match self {
            Self::Reader => outputs.mention_ended(profiles),
            Self::Viewer(_) | Self::Recorder(_) => self.show_ended(profiles, outputs),
        }
    }

    /// The same where most that end are of no interest to anybody.
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

    /// Nothing is left to profile; whether the audience stays to look at what there was.
    pub(super) fn stays(&mut self) -> bool {
        match self {
            Self::Reader | Self::Recorder(_) => false,
            Self::Viewer(view) => view.end(),
        }
    }

    /// Waits until the audience has seen enough. Can be dropped and called again.
    pub(super) async fn leaving(&mut self) {
        match self {
            Self::Reader | Self::Recorder(_) => pending().await,
            Self::Viewer(view) => view.leaving().await,
        }
    }

    /// Shows the final report: what runs, and what has ended and was shown, or `mentioned`, while it went on.
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
                // The terminal was the view's until now.
                outputs.print_kept(closed);
            }
            Self::Reader if mentioned => outputs.print_ended(closed),
            Self::Reader => {}
            Self::Recorder(recorder) => (recorder.take)(last.to_vec()),
        }
        outputs.report(last);
    }
}
