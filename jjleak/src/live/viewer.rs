//! The live view on a separate thread: it responds to keys while the session is busy, for example when many programs start at
//! once.

use std::future::pending;
use std::io;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

use super::view::{Leave, LiveView, TimedSnapshot, ViewPlan, cpu_seconds};
use crate::notices;
use crate::profile::Profile;
use crate::top::About;

/// Queue length for a view that is delayed: each entry can hold all profiles of a host.
const MAX_WAITING: usize = 16;

/// Messages to the view.
enum Message {
    /// Profiles of a snapshot.
    Snapshot(TimedSnapshot),
    /// Last profiles of ended processes.
    Ended(Vec<Profile>),
    /// Nothing is left to profile.
    End,
}

/// The session's handle of the live view.
pub(super) struct Viewer {
    /// `None` if the view was closed.
    messages: Option<Sender<Message>>,
    /// Completes when the view ends.
    left: Option<oneshot::Receiver<()>>,
    /// Time until the next snapshot, as the view requests it.
    pause: Arc<Mutex<Option<Duration>>>,
    began: Option<f64>,
    shows_ended: bool,
    thread: Option<JoinHandle<()>>,
}

impl Viewer {
    /// Takes over the terminal.
    pub(super) fn open(about: About, plan: ViewPlan) -> io::Result<Self> {
        let (messages, to_show) = channel(MAX_WAITING);
        let (opened, is_open) = mpsc::channel();
        let (leaves, left) = oneshot::channel();
        let pause = Arc::new(Mutex::new(None));
        let paused = Arc::clone(&pause);
        let shows_ended = plan.shows_ended();
        let run = move || {
            let outcome = run(about, plan, to_show, &paused, &opened);
            if let Err(error) = outcome {
                // `open` waits for this.
                let _ = opened.send(Err(error));
            }
            // The session may have ended before.
            let _ = leaves.send(());
        };
        let thread = thread::Builder::new().name("view".to_owned()).spawn(run)?;
        let viewer = Self {
            messages: Some(messages),
            left: Some(left),
            pause,
            began: None,
            shows_ended,
            thread: Some(thread),
        };
        match is_open.recv() {
            Ok(outcome) => outcome.map(|()| viewer),
            Err(_) => Err(io::Error::other("its thread has ended")),
        }
    }

    /// Announces a snapshot, which is shown when it is complete.
    pub(super) fn begin_snapshot(&mut self) {
        self.began = cpu_seconds();
    }

    /// Shows the profiles of a snapshot. Returns false if the view has ended.
    pub(super) fn show(&mut self, profiles: Vec<Profile>) -> bool {
        let began = self.began.take();
        self.send(Message::Snapshot(TimedSnapshot { profiles, began, done: cpu_seconds() }))
    }

    /// Time until the next snapshot if that is longer than the interval.
    pub(super) fn pause(&self) -> Option<Duration> {
        *self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if ended processes are shown.
    pub(super) const fn shows_ended(&self) -> bool {
        self.shows_ended
    }

    /// Keeps the last profiles of ended processes.
    pub(super) fn show_ended(&self, profiles: &[Profile]) {
        // The end of the view is noticed when the next snapshot is shown.
        let _ = self.send(Message::Ended(profiles.to_vec()));
    }

    /// Announces that there is nothing left to profile. Returns true if the view is open.
    pub(super) fn end(&self) -> bool {
        self.send(Message::End)
    }

    /// Waits until the user leaves. Can be dropped and called again.
    pub(super) async fn leaving(&mut self) {
        match &mut self.left {
            Some(left) => {
                // Nothing is sent if the thread has panicked.
                let _ = left.await;
                self.left = None;
            }
            None => pending().await,
        }
    }

    fn send(&self, what: Message) -> bool {
        let Some(messages) = &self.messages else { return false };
        // A stopped terminal (Ctrl-S) misses the messages for which there is no room.
        !matches!(messages.try_send(what), Err(TrySendError::Closed(_)))
    }

    /// Restores the terminal.
    pub(super) fn close(&mut self) {
        self.messages = None;
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl Drop for Viewer {
    /// A failure must be reported on a restored terminal.
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs the view until the user or the session leaves.
fn run(
    about: About,
    plan: ViewPlan,
    mut to_show: Receiver<Message>,
    pause: &Mutex<Option<Duration>>,
    opened: &mpsc::Sender<io::Result<()>>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut view = LiveView::open(about, plan)?;
        // `open` waits for this.
        let _ = opened.send(Ok(()));
        let why = loop {
            let shown = tokio::select! {
                biased;
                why = view.leaving() => break why,
                message = to_show.recv() => match message {
                    Some(Message::Snapshot(snapshot)) => view.show(snapshot),
                    Some(Message::Ended(profiles)) => {
                        view.show_ended(&profiles);
                        Ok(())
                    }
                    Some(Message::End) => view.end(),
                    None => break Leave::IsWanted,
                },
            };
            *pause.lock().unwrap_or_else(PoisonError::into_inner) = view.pause();
            if shown.is_err() {
                break Leave::IsGone;
            }
        };
        if why == Leave::IsGone {
            notices::print("the terminal of the live view is gone: ending");
        }
        Ok(())
    })
}
