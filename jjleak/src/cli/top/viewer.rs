//! The live view on a thread of its own: keys are answered whatever the session is busy with, such as a host on which many
//! programs start at once.

use std::future::pending;
use std::io;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

use super::live::{Leave, LiveView, Look, Ways, cpu_seconds, failed};
use crate::cli::args::Args;
use crate::cli::{Failure, notices};
use crate::profile::Profile;
use crate::top::About;

/// Most that waits for a view that is held up: each can hold all profiles of a host.
const MAX_WAITING: usize = 16;

/// What the view is told.
enum Told {
    /// Profiles of an instant.
    Look(Look),
    /// Last profiles of processes that have ended.
    Ended(Vec<Profile>),
    /// Nothing is left to profile.
    End,
}

/// The live view, as the session has it.
pub(in crate::cli) struct Viewer {
    /// None when the view was closed.
    told: Option<Sender<Told>>,
    /// Comes to its end with the view.
    left: Option<oneshot::Receiver<()>>,
    /// How long the view wants the next look to wait.
    pause: Arc<Mutex<Option<Duration>>>,
    look_began: Option<f64>,
    thread: Option<JoinHandle<()>>,
}

impl Viewer {
    /// Takes the terminal over.
    pub(in crate::cli) fn open(about: About, args: &Args) -> Result<Self, Failure> {
        let ways = Ways::of(args);
        let (told, to_show) = channel(MAX_WAITING);
        let (opened, is_open) = mpsc::channel();
        let (leaves, left) = oneshot::channel();
        let pause = Arc::new(Mutex::new(None));
        let paused = Arc::clone(&pause);
        let run = move || {
            let outcome = run(about, ways, to_show, &paused, &opened);
            if let Err(failure) = outcome {
                // Whoever opens the view waits for this.
                let _ = opened.send(Err(failure));
            }
            // The session may have ended first.
            let _ = leaves.send(());
        };
        let thread =
            thread::Builder::new().name("view".to_owned()).spawn(run).map_err(|error| failed(&error))?;
        let viewer =
            Self { told: Some(told), left: Some(left), pause, look_began: None, thread: Some(thread) };
        match is_open.recv() {
            Ok(outcome) => outcome.map(|()| viewer),
            Err(_) => Err(failed(&io::Error::other("its thread has ended"))),
        }
    }

    /// A look begins, of which the view is told the outcome.
    pub(in crate::cli) fn begin_look(&mut self) {
        self.look_began = cpu_seconds();
    }

    /// Shows the profiles of an instant; whether anybody is there to see them.
    pub(in crate::cli) fn show(&mut self, profiles: Vec<Profile>) -> bool {
        let began = self.look_began.take();
        self.tell(Told::Look(Look { profiles, began, done: cpu_seconds() }))
    }

    /// How long to wait until the next look, if that is longer than the interval.
    pub(in crate::cli) fn pause(&self) -> Option<Duration> {
        *self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the last profiles of processes that have ended.
    pub(in crate::cli) fn show_ended(&self, profiles: &[Profile]) {
        // That nobody is there is found out when the next instant is to be shown.
        let _ = self.tell(Told::Ended(profiles.to_vec()));
    }

    /// Nothing is left to profile; whether anybody is there to look at what there was.
    pub(in crate::cli) fn end(&self) -> bool {
        self.tell(Told::End)
    }

    /// Waits until the user leaves. Can be dropped and called again.
    pub(in crate::cli) async fn leaving(&mut self) {
        match &mut self.left {
            Some(left) => {
                // Nothing is sent when the thread has panicked.
                let _ = left.await;
                self.left = None;
            }
            None => pending().await,
        }
    }

    fn tell(&self, what: Told) -> bool {
        let Some(told) = &self.told else { return false };
        // A terminal that is stopped (Ctrl-S) does not get what it has no room for.
        !matches!(told.try_send(what), Err(TrySendError::Closed(_)))
    }

    /// Gives the terminal back.
    pub(in crate::cli) fn close(&mut self) {
        self.told = None;
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl Drop for Viewer {
    /// What is said of a failure must find the terminal as it was.
    fn drop(&mut self) {
        self.close();
    }
}

/// Has the view until the user or the session leaves.
fn run(
    about: About,
    ways: Ways,
    mut to_show: Receiver<Told>,
    pause: &Mutex<Option<Duration>>,
    opened: &mpsc::Sender<Result<(), Failure>>,
) -> Result<(), Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| failed(&error))?;
    runtime.block_on(async {
        let mut view = LiveView::open(about, ways)?;
        // Whoever opens the view waits for this.
        let _ = opened.send(Ok(()));
        let why = loop {
            let shown = tokio::select! {
                biased;
                why = view.leaving() => break why,
                told = to_show.recv() => match told {
                    Some(Told::Look(look)) => view.show(look),
                    Some(Told::Ended(profiles)) => {
                        view.show_ended(&profiles);
                        Ok(())
                    }
                    Some(Told::End) => view.end(),
                    None => break Leave::IsWanted,
                },
            };
            *pause.lock().unwrap_or_else(PoisonError::into_inner) = view.pause();
            if shown.is_err() {
                break Leave::IsGone;
            }
        };
        if why == Leave::IsGone {
            notices::tell("the terminal of the view is gone: leaving");
        }
        Ok(())
    })
}
