//! jjleak's side: starts the child, sends files and requests, and replaces a child that has ended.

use std::collections::HashSet;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::VERB;
use super::protocol::{self, FileNumber, Reply, Request};
use crate::processes::{Pid, Resident, ResidentMemory, SymbolFiles, forget_own_child, note_own_child};

/// Maximum number of files that a child has open; beyond, another child is started.
pub(super) const MAX_FILES: usize = 128;
/// Resident memory of a child, its mapped files included, beyond which it drops what it knows before it reads another file.
const LARGE_BYTES: u64 = 40 << 20;
/// Time without a request after which a child ends. Another one reads the files again.
const IDLE: Duration = Duration::from_secs(60);
/// Maximum time of a reply. Debug information of 2 GiB takes seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Maximum time of a reply, once children that did not reply have taken [`LIMIT`] together: a target can map any number of files.
const LEAST: Duration = Duration::from_secs(1);

/// A program that becomes the child when it runs with [`VERB`].
#[derive(Debug)]
pub(super) struct Client {
    program: PathBuf,
    running: Option<Running>,
    /// Time of the request that waits for a reply.
    asked: Option<Instant>,
    /// Time that may still be lost with children that do not reply.
    patience: Duration,
}

/// A running child.
#[derive(Debug)]
struct Running {
    process: Child,
    socket: UnixStream,
    open: HashSet<FileNumber>,
    /// The file of the last request.
    last: Option<FileNumber>,
    /// `None` if it cannot be read.
    memory: Option<ResidentMemory>,
}

/// Descriptors of a file to be sent to a child.
#[derive(Debug)]
pub(super) struct ToOpen {
    pub(super) files: SymbolFiles,
    /// False for the symbol tables alone.
    pub(super) with_debug_info: bool,
}

/// Failure of a request, in words that follow "the process that reads symbols".
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot be started: {0}")]
    Start(io::Error),
    #[error("did not answer within {} s", .0.as_secs_f64())]
    Slow(Duration),
    #[error("was ended by {0}")]
    Ended(Ending),
    #[error("sent a reply that makes no sense: {0}")]
    Reply(io::Error),
}

/// The way in which a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ending(ExitStatus);

impl Client {
    pub(super) fn new(program: &Path) -> Self {
        Self { program: program.to_owned(), running: None, asked: None, patience: LIMIT }
    }

    /// Ends the child; the next request starts another one.
    pub(super) fn end(&mut self) {
        self.running = None;
    }

    /// Sends a request about a file, and waits for the reply. `files` opens the file and its separate files.
    pub(super) fn ask(
        &mut self,
        file: FileNumber,
        files: impl Fn() -> io::Result<ToOpen>,
        request: &Request,
    ) -> Result<Reply, Error> {
        match self.try_once(file, &files, request) {
            Err(error) if error.may_be_of_others() => self.try_once(file, &files, request),
            outcome => outcome,
        }
    }

    fn try_once(
        &mut self,
        file: FileNumber,
        files: impl Fn() -> io::Result<ToOpen>,
        request: &Request,
    ) -> Result<Reply, Error> {
        self.begin(file, files, request)?;
        loop {
            if let Some(reply) = self.wait(Duration::MAX)? {
                return Ok(reply);
            }
        }
    }

    /// Sends a request about a file. No other one may be waiting for its reply.
    pub(super) fn begin(
        &mut self,
        file: FileNumber,
        files: impl Fn() -> io::Result<ToOpen>,
        request: &Request,
    ) -> Result<(), Error> {
        let has_room = |open: &HashSet<_>| open.len() < MAX_FILES || open.contains(&file);
        let running = self.running.take().filter(|running| has_room(&running.open));
        let mut running = match running.and_then(Running::if_alive) {
            Some(running) => running,
            None => Running::start(&self.program, self.limit())?,
        };
        self.asked = Some(Instant::now());
        match running.ask(file, files, request) {
            Ok(()) => self.running = Some(running),
            Err(error) => return Err(running.failed(error, self.limit())),
        }
        Ok(())
    }

    /// The reply to the last request, if it comes within this time.
    pub(super) fn wait(&mut self, most: Duration) -> Result<Option<Reply>, Error> {
        let (Some(running), Some(asked)) = (self.running.take(), self.asked) else {
            return Err(Error::Reply(ErrorKind::NotConnected.into()));
        };
        let deadline = asked + self.limit();
        let left = deadline.saturating_duration_since(Instant::now());
        if !running.has_reply(most.min(left)) && most < left {
            self.running = Some(running);
            return Ok(None);
        }
        // A reply that is there is not late, however long nobody has taken it.
        match running.receive(deadline.max(Instant::now() + LEAST)) {
            Ok(reply) => {
                self.running = Some(running);
                Ok(Some(reply))
            }
            Err(error) => {
                let failed = running.failed(error, self.limit());
                self.patience = self.patience.saturating_sub(asked.elapsed());
                Err(failed)
            }
        }
    }

    /// Maximum time of a reply.
    fn limit(&self) -> Duration {
        self.patience.max(LEAST)
    }
}

impl Running {
    fn start(program: &Path, limit: Duration) -> Result<Self, Error> {
        let (ours, theirs) = UnixStream::pair().map_err(Error::Start)?;
        theirs.set_read_timeout(Some(IDLE)).map_err(Error::Start)?;
        let process = Command::new(program)
            .arg(VERB)
            .env_clear()
            .current_dir("/")
            // Signals from the terminal are for jjleak, which still needs names.
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Error::Start)?;
        note_own_child(&process);
        let memory = Pid::new(process.id()).and_then(|pid| ResidentMemory::open(pid).ok());
        let running = Self { process, socket: ours, open: HashSet::new(), last: None, memory };
        match running.receive(Instant::now() + limit) {
            Ok(Reply::Ready) => Ok(running),
            Ok(Reply::Refused(why)) => Err(Error::Start(io::Error::other(why))),
            Ok(_) => Err(Error::Start(ErrorKind::InvalidData.into())),
            Err(error) => Err(Error::Start(io::Error::other(running.failed(error, limit)))),
        }
    }

    /// The child, unless it has ended.
    fn if_alive(mut self) -> Option<Self> {
        matches!(self.process.try_wait(), Ok(None)).then_some(self)
    }

    fn ask(
        &mut self,
        file: FileNumber,
        files: impl Fn() -> io::Result<ToOpen>,
        request: &Request,
    ) -> io::Result<()> {
        if self.open.insert(file) {
            let ToOpen { files: SymbolFiles { file: own, debug_file, supplement }, with_debug_info } =
                files()?;
            let open = Request::Open {
                file,
                has_debug_file: debug_file.is_some(),
                has_supplement: supplement.is_some(),
                with_debug_info,
            };
            let files: Vec<_> = [&own].into_iter().chain(&debug_file).chain(&supplement).collect();
            protocol::send(&self.socket, &open, &files)?;
        }
        if self.last.replace(file).is_some_and(|last| last != file) && self.is_large() {
            protocol::send(&self.socket, &Request::Forget, &[])?;
        }
        protocol::send(&self.socket, request, &[])
    }

    /// Returns true if it takes much memory: it keeps what it knows of each file.
    fn is_large(&self) -> bool {
        let memory = self.memory.as_ref().map(ResidentMemory::read);
        matches!(memory, Some(Ok(Resident::Bytes(bytes))) if bytes > LARGE_BYTES)
    }

    /// Returns true if a reply begins to arrive within this time, or the child has ended.
    fn has_reply(&self, most: Duration) -> bool {
        let Ok(most) = Timespec::try_from(most) else { return true };
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&most)).is_ok_and(|ready| ready > 0)
    }

    fn receive(&self, deadline: Instant) -> io::Result<Reply> {
        protocol::read_reply(&mut Until { socket: &self.socket, deadline })
    }

    /// Ends a child that did not answer, and says why it did not.
    fn failed(mut self, error: io::Error, limit: Duration) -> Error {
        // A child that closes its socket is about to end, and this does not change how.
        let _ = self.process.kill();
        match (error.kind(), self.process.wait()) {
            (ErrorKind::TimedOut, _) => Error::Slow(limit),
            (ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset, Ok(status)) => {
                Error::Ended(Ending(status))
            }
            _ => Error::Reply(error),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has nothing to finish. It may have ended before.
        let _ = self.process.kill();
        let _ = self.process.wait();
        forget_own_child(&self.process);
    }
}

/// A socket that is read until a deadline.
struct Until<'socket> {
    socket: &'socket UnixStream,
    deadline: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.read(into).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

impl Error {
    /// Returns true if the request may have nothing to do with it: the child had been idle for too long, or someone killed it.
    pub(super) fn may_be_of_others(&self) -> bool {
        let Self::Ended(Ending(status)) = self else { return false };
        status.success() || status.signal() == Some(Signal::SIGKILL as i32)
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let signal = self.0.signal().and_then(|number| Signal::try_from(number).ok());
        match signal {
            Some(Signal::SIGBUS) => formatter.write_str("SIGBUS: the file became shorter while it was read"),
            Some(Signal::SIGABRT) => formatter.write_str("SIGABRT: the file takes too much memory"),
            Some(signal) => formatter.write_str(signal.as_str()),
            None => write!(formatter, "itself ({})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    const FILE: FileNumber = FileNumber(1);

    fn files() -> io::Result<ToOpen> {
        let files = SymbolFiles { file: tempfile::tempfile()?, debug_file: None, supplement: None };
        Ok(ToOpen { files, with_debug_info: true })
    }

    fn request() -> Request {
        Request::Function(FILE, 1)
    }

    /// A client of a child that runs this shell script once it is ready, and the folder with the script.
    fn client_of(script: &str, patience: Duration) -> (TempDir, Client) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("child");
        fs::write(&program, format!("#!/bin/sh\nprintf '\\1\\0\\0\\0\\0' >&0\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let client = Client { patience, ..Client::new(&program) };
        (folder, client)
    }

    /// Its reply to a request.
    fn reply_of(script: &str, patience: Duration) -> Result<Reply, Error> {
        let (_folder, mut client) = client_of(script, patience);
        client.ask(FILE, files, &request())
    }

    #[test]
    fn a_reply_that_nobody_took_in_time_is_not_late() {
        let (_folder, mut client) = client_of("printf '\\2\\0\\0\\0\\3\\0' >&0; exec cat", LIMIT);
        client.begin(FILE, files, &request()).unwrap();
        client.asked = Instant::now().checked_sub(LIMIT * 2);
        assert_eq!(client.wait(Duration::ZERO).unwrap(), Some(Reply::Function(None)));
    }

    #[test]
    fn a_child_that_does_not_answer_is_killed() {
        let reply = reply_of("exec cat", Duration::ZERO);
        assert!(matches!(reply, Err(Error::Slow(limit)) if limit == LEAST), "{reply:?}");
    }

    #[test]
    fn a_child_that_was_killed_is_replaced_once() {
        let once = "[ -e \"$0.again\" ] && { printf '\\2\\0\\0\\0\\3\\0' >&0; exec cat; }; : >\"$0.again\"; kill -KILL $$";
        assert_eq!(reply_of(once, LIMIT).unwrap(), Reply::Function(None));
        let always = reply_of("kill -KILL $$", LIMIT);
        assert!(matches!(always, Err(Error::Ended(_))), "{always:?}");
    }

    #[test]
    fn a_child_that_a_file_has_ended_is_not_tried_again() {
        let reply = reply_of("[ -e \"$0.again\" ] && exec cat; : >\"$0.again\"; kill -BUS $$", LIMIT);
        let error = reply.unwrap_err().to_string();
        assert_eq!(error, "was ended by SIGBUS: the file became shorter while it was read");
    }

    #[test]
    fn a_reply_that_makes_no_sense_is_none() {
        let reply = reply_of("printf '\\377\\377\\377\\377' >&0; exec cat", LIMIT);
        assert!(matches!(reply, Err(Error::Reply(_))), "{reply:?}");
    }

    #[test]
    fn a_program_that_is_no_child_cannot_be_used() {
        let mut client = Client::new(Path::new("/bin/true"));
        let reply = client.ask(FILE, files, &request());
        assert!(matches!(reply, Err(Error::Start(_))), "{reply:?}");
    }
}
