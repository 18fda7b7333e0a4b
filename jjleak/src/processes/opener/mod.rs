//! Opens files of targets in a process of its own.
//!
//! A file system can leave a call unanswered: a FUSE server of any user that does not reply, or NFS without its server. No signal ends
//! such a call, so a process that makes it may never end. jjleak lets a child open the file and read its beginning, with a time limit,
//! and receives the descriptor.

mod child;
mod client;
mod message;
mod resolve;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Pid;
use client::Client;

pub use child::{VERB, run};
pub(super) use message::Request;

/// Time for which nothing more is opened for a process, and from a device, after a call that was not answered.
const PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of sources in a pause.
const MAX_SILENT: usize = 4096;

/// Source of files that may not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// All that a process sees.
    Process(Pid),
    /// A device by major and minor number.
    Device(u32, u32),
}

#[derive(Default)]
struct Opener {
    /// `None` if files are opened in this process.
    client: Option<Client>,
    /// Sources that did not answer, and when.
    silent: HashMap<Source, Instant>,
}

static OPENER: Mutex<Option<Opener>> = Mutex::new(None);

/// Opens files in a child from now on, which runs this program. Its main function must call [`run`] for [`VERB`].
pub fn open_in_child(program: &Path) {
    opener().get_or_insert_default().client = Some(Client::new(program));
}

fn opener() -> MutexGuard<'static, Option<Opener>> {
    OPENER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a file for a request of these sources.
pub(super) fn open(sources: &[Source], request: &Request<'_>) -> io::Result<File> {
    opener().get_or_insert_default().open(sources, request)
}

/// Opens a regular file of anybody's: nothing else, such as a pipe, and within a time limit.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open(&[], &Request::Path(path))
}

impl Opener {
    fn open(&mut self, sources: &[Source], request: &Request<'_>) -> io::Result<File> {
        let Some(client) = &mut self.client else { return request.open() };
        let now = Instant::now();
        self.silent.retain(|_, since| now.duration_since(*since) < PAUSE);
        if sources.iter().any(|source| self.silent.contains_key(source)) {
            return Err(silent("did not answer a request within the last minute"));
        }
        let opened = client.open(request);
        let is_silent = opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
        if is_silent && self.silent.len() < MAX_SILENT {
            self.silent.extend(sources.iter().map(|source| (*source, Instant::now())));
        }
        opened
    }
}

fn silent(how: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("its file system {how}"))
}
