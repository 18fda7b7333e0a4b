//! A library that a JVM loads on request. It stays until the JVM ends.

use std::io;

use super::request::ask;
use super::{Access, Question, Request};
use crate::processes::Process;

/// A library for a JVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Its path in the JVM's root directory.
    pub library: String,
    /// Options that it gets.
    pub options: String,
}

impl Agent {
    fn words(&self) -> [&str; 2] {
        [&self.library, &self.options]
    }
}

/// Makes a JVM load a library, or tell one that it has loaded to look around again. Blocks.
pub fn load(process: &Process, access: Access, agent: &Agent) -> Result<(), String> {
    ask(Question::LoadAgent, process, access, &agent.words()).map(drop)
}

impl Request {
    /// Starts a request to load a library.
    pub fn agent(process: &Process, access: Access, agent: &Agent) -> io::Result<Self> {
        Self::begin(Question::LoadAgent, process, access, &agent.words(), "answer to loading a library")
    }
}
