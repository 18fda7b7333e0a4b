//! Tells the library that draws samples in a running JVM when the process has mapped other libraries, so that they are sampled, too.

use std::time::{Duration, Instant};

use super::Watch;
use super::process::Watched;
use crate::jcmd::{self, Agent, Question, Request, State};
use crate::jvm;

/// Minimum time between two requests to a JVM.
const PAUSE: Duration = Duration::from_secs(2);

/// State of the requests to a JVM.
#[derive(Default)]
pub(super) struct ToldJvm {
    running: Option<Request>,
    last: Option<Instant>,
    /// Number of mapped files that it has been told of; 0 before the first request.
    files: usize,
}

impl Watched {
    /// Sends a request if files have been mapped since the last one. The first request is for those that were mapped since the library
    /// was loaded.
    fn tell_agent(&mut self, agent: &Agent) {
        let files = self.modules.iter().count();
        let Self { told, process, code, modules, .. } = self;
        if let Some(state) = told.running.as_mut().map(Request::state) {
            if state == State::Running {
                return;
            }
            told.running = None;
            let pid = process.pid;
            match state {
                State::Failed(why) => {
                    tracing::warn!("process {pid}: what its new libraries allocate is not sampled: {why}");
                }
                State::Running | State::Done => {
                    tracing::info!("process {pid}: its new libraries are sampled");
                }
            }
        }
        let is_due = files > told.files && told.last.is_none_or(|last| last.elapsed() >= PAUSE);
        if !is_due {
            return;
        }
        told.files = files;
        told.last = Some(Instant::now());
        let Some((library, bias)) = jvm::library(code, modules) else { return };
        let access = jcmd::access_of(process.pid, library, bias, Question::LoadAgent);
        let request = access
            .map_err(|unfit| unfit.to_string())
            .and_then(|access| Request::agent(process, access, agent).map_err(|error| error.to_string()));
        match request {
            Ok(request) => told.running = Some(request),
            Err(why) => tracing::warn!("process {} cannot be told of new libraries: {why}", process.pid),
        }
    }
}

impl Watch {
    /// Tells JVMs of new libraries from now on.
    pub(in crate::session) fn keep_agent(&mut self, agent: Agent) {
        self.agent = Some(agent);
    }

    /// Sends requests that are due.
    pub(super) fn tell_agents(&mut self) {
        let Some(agent) = &self.agent else { return };
        self.processes
            .values_mut()
            .filter(|watched| watched.ended.is_none())
            .for_each(|watched| watched.tell_agent(agent));
    }
}
