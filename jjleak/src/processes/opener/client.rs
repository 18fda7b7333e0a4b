//! jjleak's side: starts the child, and leaves behind one that does not answer.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, setsockopt, socketpair,
};
use nix::sys::time::{TimeVal, TimeValLike};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::child::{VERB, file, receive};
use super::message::Request;
use super::silent;
use crate::processes::own_children::{forget_own_child, note_own_child};

/// Maximum time of an answer. File systems over a network take a fraction of it.
const LIMIT: Duration = Duration::from_secs(3);
/// Seconds without a request after which a child ends.
const IDLE_S: i64 = 30;
/// Maximum number of children that wait for a file system. They end when it answers, or is unmounted.
const MAX_STUCK: usize = 16;
/// Maximum size of a reply: an error number, or the words of another error.
const MAX_REPLY_BYTES: usize = 512;

/// A program that becomes the child when it runs with [`VERB`].
pub(super) struct Client {
    program: PathBuf,
    running: Option<Running>,
    /// Children that were killed, and have not ended.
    stuck: Vec<Child>,
}

struct Running {
    process: Child,
    socket: OwnedFd,
}

impl Client {
    pub(super) fn new(program: &Path) -> Self {
        Self { program: program.to_owned(), running: None, stuck: Vec::new() }
    }

    /// Lets the child open a file.
    pub(super) fn open(&mut self, request: &Request<'_>) -> io::Result<File> {
        let running = self.ask(request)?;
        if !running.answers()? {
            self.abandon(running.process);
            return Err(silent(&format!("did not answer within {} s", LIMIT.as_secs())));
        }
        let mut bytes = [0; MAX_REPLY_BYTES];
        let (length, descriptor) = receive(running.socket.as_raw_fd(), &mut bytes)?;
        if length > 0 {
            self.running = Some(running);
        } else {
            self.abandon(running.process);
        }
        match error(&bytes[..length]) {
            Some(error) => Err(error),
            None => file(descriptor),
        }
    }

    /// Sends a request to the child.
    fn ask(&mut self, request: &Request<'_>) -> io::Result<Running> {
        if let Some(running) = self.running.take() {
            if running.ask(request).is_ok() {
                return Ok(running);
            }
            // It had nothing to do for a while.
            self.abandon(running.process);
        }
        let running = self.start()?;
        running.ask(request)?;
        Ok(running)
    }

    fn start(&mut self) -> io::Result<Running> {
        self.stuck.retain_mut(|child| {
            let is_stuck = matches!(child.try_wait(), Ok(None));
            if !is_stuck {
                forget_own_child(child);
            }
            is_stuck
        });
        if self.stuck.len() >= MAX_STUCK {
            return Err(silent(&format!("was not asked: {MAX_STUCK} calls to others have no answer")));
        }
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let idle = TimeVal::seconds(IDLE_S);
        setsockopt(&theirs, ReceiveTimeout, &idle)?;
        let process = Command::new(&self.program)
            .arg(VERB)
            .env_clear()
            .current_dir("/")
            // Signals from the terminal are for jjleak.
            .process_group(0)
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        note_own_child(&process);
        Ok(Running { process, socket: ours })
    }

    /// Ends a child, without waiting for the end.
    fn abandon(&mut self, mut child: Child) {
        // It may have ended.
        let _ = child.kill();
        self.stuck.push(child);
    }
}

impl Running {
    fn ask(&self, request: &Request<'_>) -> io::Result<()> {
        let (kind, path, descriptor) = request.parts();
        send(self.socket.as_raw_fd(), &[&[kind], path], descriptor)
    }

    /// Waits for an answer; `false` if there is none in time.
    fn answers(&self) -> io::Result<bool> {
        let limit = Timespec::try_from(LIMIT).map_err(io::Error::other)?;
        Ok(poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit))? > 0)
    }
}

fn send(socket: RawFd, parts: &[&[u8]], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let descriptors = descriptor.map(|descriptor| [descriptor.as_raw_fd()]);
    let rights = descriptors.as_ref().map(|descriptors| [ControlMessage::ScmRights(descriptors)]);
    let rights = rights.as_ref().map_or(&[][..], |rights| rights);
    sendmsg::<()>(socket, &parts, rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Sends the outcome of a request.
pub(super) fn send_reply(socket: RawFd, outcome: io::Result<File>) -> io::Result<()> {
    match outcome {
        Ok(file) => send(socket, &[&0i32.to_ne_bytes()], Some(file.as_fd())),
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(-1).to_ne_bytes();
            let words = error.to_string();
            let words = &words.as_bytes()[..words.len().min(MAX_REPLY_BYTES - number.len())];
            send(socket, &[&number, words], None)
        }
    }
}

/// The error in a reply.
fn error(reply: &[u8]) -> Option<io::Error> {
    let Some((number, words)) = reply.split_first_chunk() else { return Some(Errno::EPROTO.into()) };
    match i32::from_ne_bytes(*number) {
        0 => None,
        -1 => Some(io::Error::other(String::from_utf8_lossy(words).into_owned())),
        number => Some(io::Error::from_raw_os_error(number)),
    }
}
