//! Requests a perf map from JVMs, for `--refresh-perf-map`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Watch;
use crate::jcmd::{self, Access, Question, Request, State, Unfit};
use crate::jvm;
use crate::processes::{Module, Process};

/// Minimum time between two requests to a JVM, which are made for code without a name. Writing a map of ten thousand
/// methods takes the JVM about 10 ms: a thousandth of this.
const PAUSE: Duration = Duration::from_secs(10);
/// Time until the next request after a failed one.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(60);
/// Maximum number of times that a JVM that does not catch signals yet gets another second to start.
const ATTEMPTS: u32 = 3;
/// Maximum time that a report waits for a map that is being written.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval of checks for a finished map.
const POLL: Duration = Duration::from_millis(10);

/// State of the requests to a JVM.
#[derive(Default)]
pub(super) struct AskedJvm {
    running: Option<Request>,
    /// Earliest time of the next request.
    next: Option<Instant>,
    attempts: u32,
    /// Last reported reason for a failure; each is reported once.
    reported: Option<String>,
}

impl AskedJvm {
    /// Checks a running request, or starts one that is due: the first, and later ones if code `lacks_names`.
    pub(super) fn go_on<'a>(
        &mut self,
        process: &Process,
        lacks_names: bool,
        library: impl FnOnce() -> Option<(&'a Module, u64)>,
    ) {
        let is_due = self.next.is_none_or(|next| lacks_names && Instant::now() >= next);
        if self.is_running(process) || !is_due {
            return;
        }
        let Some((library, bias)) = library() else { return };
        match jcmd::access_of(process.pid, library, bias, Question::PerfMap) {
            Ok(Access::Socket(Unfit::NotCaught | Unfit::UnknownFlags)) if self.attempts < ATTEMPTS => {
                self.attempts += 1;
            }
            Ok(access) => match Request::perf_map(process, access) {
                Ok(request) => self.running = Some(request),
                Err(error) => self.fail(process, "cannot be asked for a perf map", error.to_string()),
            },
            Err(unfit) => self.fail(process, "is not asked for a perf map", unfit.to_string()),
        }
    }

    /// Returns true if a request is running. Notes the outcome of a finished one.
    pub(super) fn is_running(&mut self, process: &Process) -> bool {
        let Some(state) = self.running.as_mut().map(Request::state) else { return false };
        if state == State::Running {
            return true;
        }
        self.running = None;
        if let State::Failed(why) = state {
            self.fail(process, "has written no perf map", why);
        } else {
            tracing::info!("process {} has written its perf map", process.pid);
            self.next = Some(Instant::now() + PAUSE);
        }
        false
    }

    fn fail(&mut self, process: &Process, what: &str, why: String) {
        self.next = Some(Instant::now() + PAUSE_AFTER_FAILURE);
        if self.reported.as_ref() != Some(&why) {
            tracing::warn!("process {} {what}: {why}", process.pid);
            self.reported = Some(why);
        }
    }
}

impl Watch {
    /// Enables requests for perf maps.
    pub(in crate::session) const fn ask_for_perf_maps(&mut self) {
        self.stacks.asks_for_perf_maps = true;
    }

    /// Sends requests that are due.
    pub(super) fn ask_jvms(&mut self) {
        if !self.stacks.asks_for_perf_maps {
            return;
        }
        for watched in self.processes.values_mut().filter(|watched| watched.ended.is_none()) {
            let is_jvm = watched.modules.iter().any(|(_, module)| jvm::is_library(module));
            if is_jvm {
                watched.perf_map.ask(&watched.process, &watched.code, &watched.modules);
            }
        }
    }

    /// Waits at most [`PATIENCE`] for maps that are being written.
    pub(super) fn await_perf_maps(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let mut is_one_written = || {
            let mut all = self.processes.values_mut();
            all.any(|watched| watched.perf_map.is_being_written(&watched.process))
        };
        while is_one_written() && Instant::now() < deadline {
            sleep(POLL);
        }
    }
}
